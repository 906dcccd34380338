"""The default corpus: are the facts right, are the sentences sound, is nothing asked also trained?

Facts are compared with ISO 3166 (pycountry) and Unicode CLDR (babel), which know nothing of
atlas.csv. Where the atlas departs from them, the exception stands here with its reason, and an
exception nobody needs fails too, so that none can hide a mistake. Neither source lists capitals or
adjectives: CLDR's time zones confirm 132 capitals, its currency names 115 adjectives, and the
rest was compared by hand with GeoNames and with the mledoze/countries data set.
"""

import string
import unicodedata
from collections import Counter, defaultdict
from functools import cache

import pytest

from ministem import atlas
from ministem.tokenizer import train_bpe

COUNTRIES = atlas.load()
BY_CODE = {country.code: country for country in COUNTRIES}
TEXT, QUESTIONS = atlas.corpus(seed=0)
LINES = TEXT.splitlines()
TODAY = (2026, 6, 1)  # the atlas states the facts of 2026
CLDR_VERSION = "49"  # what the exceptions below were written against


def ascii_only(text):
    """'São Tomé & Príncipe' -> 'Sao Tome and Principe', the atlas's way of writing."""
    text = text.replace("&", "and").replace("St.", "Saint").replace("'", "")
    return "".join(c for c in unicodedata.normalize("NFKD", text) if c.isascii())


def check(wrong, exceptions):
    """wrong: code -> what the source says instead. Exactly the listed exceptions may differ."""
    unexplained = {code: wrong[code] for code in wrong.keys() - exceptions.keys()}
    assert not unexplained, f"the atlas and the source disagree: {unexplained}"
    needless = exceptions.keys() - wrong.keys()
    if cldr_version() == CLDR_VERSION:  # a later CLDR may come round to the atlas's view
        assert not needless, f"these exceptions explain nothing: {sorted(needless)}"


# ---- the table ----------------------------------------------------------------------------------


def test_there_are_195_countries_sorted_by_name():
    """193 members of the UN and its two observer states, each once."""
    names = [country.name for country in COUNTRIES]
    assert len(names) == 195
    assert names == sorted(names)


def test_the_world_is_divided_as_the_united_nations_does():
    """54 + 48 + 44 + 23 + 12 + 14 countries."""
    sizes = {"Africa": 54, "Asia": 48, "Europe": 44, "Oceania": 14}
    sizes |= {"North America": 23, "South America": 12}
    assert Counter(country.continent for country in COUNTRIES) == sizes


def test_codes_names_and_capitals_are_unique():
    """A capital belongs to one country, so it can be asked in either direction."""
    for field in ("code", "name", "capital"):
        counts = Counter(getattr(country, field) for country in COUNTRIES)
        assert counts.most_common(1)[0][1] == 1, counts.most_common(1)


def test_fields_are_clean():
    """Plain ASCII letters, single spaces and hyphens: no comma, full stop, quote or stray space."""
    for country in COUNTRIES:
        for field in country:
            assert field == " ".join(field.split()) != "", country
            assert set(field) <= set(string.ascii_letters + " -"), field


def test_a_currency_has_a_bare_name_only_if_no_other_currency_shares_it():
    """'yen' and 'euro', but 'Omani rial' and 'Iranian rial'."""
    fixed = {"convertible mark", "Zimbabwe gold"}  # nobody says "the mark" or "the gold"
    by_noun = defaultdict(set)
    for currency in {country.currency for country in COUNTRIES} - fixed:
        by_noun[currency.split()[-1]].add(currency)
    for noun, currencies in by_noun.items():
        assert (currencies == {noun}) == (len(currencies) == 1), currencies


# ---- the table against ISO 3166 and CLDR ---------------------------------------------------------

# what ISO gives a code to that is no state at the UN: 52 territories, Taiwan and Western Sahara
NO_STATE_AT_THE_UN = (
    "AI AQ AS AW AX BL BM BQ BV CC CK CW CX EH FK FO GF GG GI GL GP GS GU HK HM IM IO JE KY MF MO "
    "MP MQ MS NC NF NU PF PM PN PR RE SH SJ SX TC TF TK TW UM VG VI WF YT"
).split()

NAMES = {
    "CD": "CLDR tells the two Congos apart by capital: Congo - Kinshasa",
    "CI": "English for Cote d'Ivoire",
    "PS": "ISO says Palestine, State of",
    "TL": "English for Timor-Leste",
    "TR": "English for Turkiye",
}

# where the time zone has the name of a larger city (Sydney), an island (Guadalcanal) or the country
# (Malta): no mistake on either side, CLDR just says nothing about the capital
NO_ZONE_FOR_CAPITAL = (
    "AD AE AG AU BB BH BI BN BO BR BZ CA CH CI CM CN CR CV DM EC FJ FM GD GQ GT GY IN JM KI KM KN "
    "KW KZ LC LK MA MM MT MU MV MW NG NR NZ PA PK PS PW QA SB SC SV TD TO TR TZ US VA VC VN VU YE "
    "ZA"
).split()

CONTINENTS = {
    "CV": "Atlantic/",
    "IS": "Atlantic/",
    "KM": "Indian/",
    "MG": "Indian/",
    "MU": "Indian/",
    "MV": "Indian/",
    "SC": "Indian/",
    "TR": "Europe/Istanbul, while the UN counts the whole country as Asia",
}

LANGUAGE_IN_CLDR = {  # the atlas's word -> CLDR's, for the same language
    "Bengali": "Bangla",
    "Chichewa": "Nyanja",
    "Dari": "Persian",  # the name of Afghan Persian
    "Dhivehi": "Divehi",
    "Kirundi": "Rundi",
    "Nauruan": "Nauru",
    "Sotho": "Southern Sotho",
    "Tuvaluan": "Tuvalu",
}

LANGUAGES = {
    "BF": "the law of 2024 puts national languages before French; Mossi is the largest",
    "ML": "the constitution of 2023 likewise; Bambara is the largest",
    "NE": "the charter of 2025 names Hausa the national language",
    "KM": "CLDR counts the dialects of Comorian one by one",
    "ME": "CLDR files Montenegrin under Serbian; the constitution names Montenegrin",
    "SC": "CLDR has no status for the Creole that is official and spoken by nearly all",
    # the home language of most, or the national language, where CLDR counts more who learnt another
    "BW": "English is learnt at school",
    "KI": "English is learnt at school",
    "KZ": "Russian is known to more, Kazakh is the state language",
    "LU": "French is known to more, Luxembourgish is the national language",
    "MH": "English is learnt at school",
    "NR": "English is learnt at school",
    "PH": "English is learnt at school, Filipino is the national language",
    "SZ": "English is learnt at school",
    "ZA": "Zulu is the home language of most; CLDR marks the other official languages regional",
    "MU": "CLDR has French at 73 %, English at 72 %; parliament works in English",
    "UG": "Swahili is official, but far from the 75 % CLDR has it at; the state works in English",
}

CURRENCIES = {
    "AE": "UAE for United Arab Emirates",
    "GY": "CLDR writes Guyanaese",
    "TM": "CLDR writes Turkmenistani",
    "UZ": "CLDR writes Uzbekistani",
    "ZW": "CLDR writes Zimbabwean Gold",
}

ADJECTIVES = {
    # the currency has the name of the country itself
    "AE": "United Arab Emirates Dirham",
    "BA": "Bosnia-Herzegovina Convertible Mark",
    "BN": "Brunei Dollar",
    "BZ": "Belize Dollar",
    "LS": "Lesotho Loti",
    "MM": "Myanmar Kyat",
    "SB": "Solomon Islands Dollar",
    "SG": "Singapore Dollar",
    "ST": "Sao Tome and Principe Dobra",
    "TT": "Trinidad and Tobago Dollar",
    "VU": "Vanuatu Vatu",
    # another adjective for the same country
    "GY": "Guyanaese Dollar",
    "KZ": "Kazakhstani Tenge",
    "TJ": "Tajikistani Somoni",
    "TM": "Turkmenistani Manat",
    "UZ": "Uzbekistani Som",
}


@cache
def cldr():
    """English names and world data from CLDR, or skip."""
    # older data does not have Bulgaria in the euro
    pytest.importorskip("babel", "2.19", reason="the atlas is checked against CLDR by way of babel")
    from babel import Locale
    from babel.core import get_global

    return Locale("en"), get_global


def cldr_version():
    return cldr()[1]("cldr")["version"]


def zones(code):
    """'FR' -> [('Europe', 'Paris')], the time zones of a country as CLDR names them."""
    english, get_global = cldr()
    for zone, territory in get_global("zone_territories").items():
        if territory == code:
            area, *_, city = zone.split("/")
            city = english.time_zones.get(zone, {}).get("city", city.replace("_", " "))
            yield area, ascii_only(city)


def tender(code):
    """'PA' -> ['Panamanian Balboa', 'US Dollar'], what is legal tender today."""
    english, get_global = cldr()
    for currency, _, end, is_tender in get_global("territory_currencies")[code]:
        if is_tender and (end is None or end > TODAY):
            yield ascii_only(english.currencies[currency])


def test_codes_are_iso_3166_without_the_territories():
    """Every ISO code is either in the atlas or on the list of those that are no state at the UN."""
    pycountry = pytest.importorskip("pycountry", reason="pycountry carries ISO 3166")
    iso = {country.alpha_2 for country in pycountry.countries}
    assert not BY_CODE.keys() & set(NO_STATE_AT_THE_UN)
    assert BY_CODE.keys() | set(NO_STATE_AT_THE_UN) == iso


def test_names_belong_to_their_codes():
    """Each name is one that ISO 3166 or CLDR gives to that code."""
    pycountry = pytest.importorskip("pycountry", reason="pycountry carries ISO 3166")
    english, _ = cldr()
    wrong = {}
    for country in COUNTRIES:
        iso = pycountry.countries.get(alpha_2=country.code)
        known = [getattr(iso, key, "") for key in ("name", "common_name", "official_name")]
        known = {ascii_only(name) for name in [*known, english.territories[country.code]]}
        if country.name not in known:
            wrong[country.code] = known
    check(wrong, NAMES)


def test_capitals_are_cities_of_their_country():
    """A capital that names a time zone names one of its own country: 132 of 195 do."""
    cities = {code: {city for _, city in zones(code)} for code in BY_CODE}
    wrong = {c.code: cities[c.code] for c in COUNTRIES if c.capital not in cities[c.code]}
    check(wrong, dict.fromkeys(NO_ZONE_FOR_CAPITAL, "CLDR says nothing"))
    assert 195 - len(NO_ZONE_FOR_CAPITAL) == 132
    for code in set(NO_ZONE_FOR_CAPITAL) - {"AG"}:  # Saint Johns: Newfoundland has one too
        owners = [other for other in cities if BY_CODE[code].capital in cities[other]]
        assert not owners, f"{BY_CODE[code].capital} is a city of {owners}"


def test_continents_agree_with_time_zones():
    """A country in Africa has a zone called Africa/..., and so on."""
    america, oceania = {"America"}, {"Pacific", "Australia"}
    area_of = {"North America": america, "South America": america, "Oceania": oceania}
    wrong = {}
    for country in COUNTRIES:
        areas = {area for area, _ in zones(country.code)}
        if not areas & area_of.get(country.continent, {country.continent}):
            wrong[country.code] = areas
    check(wrong, CONTINENTS)


def test_south_america_is_its_twelve_states():
    """Time zones cannot tell the two Americas apart."""
    south = {country.code for country in COUNTRIES if country.continent == "South America"}
    assert south == set("AR BO BR CL CO EC GY PE PY SR UY VE".split())


def test_languages_are_the_most_spoken_official_ones():
    """Of the languages CLDR marks official countrywide, by law or in practice, the largest."""
    english, _ = cldr()
    from babel.languages import get_territory_language_info

    wrong = {}
    for country in COUNTRIES:
        info = get_territory_language_info(country.code)
        share = defaultdict(float)
        for tag, row in info.items():
            if row["official_status"] in ("official", "de_facto_official"):
                tag = tag if tag in english.languages else tag.split("_")[0]  # sr_Latn: Serbian
                language = english.languages.get(tag, tag)
                share[language] = max(share[language], row["population_percent"])
        largest = {name for name, percent in share.items() if percent == max(share.values())}
        if LANGUAGE_IN_CLDR.get(country.language, country.language) not in largest:
            wrong[country.code] = dict(share)
    check(wrong, LANGUAGES)


def test_currencies_are_legal_tender():
    """'euro', 'yen', 'Omani rial': CLDR's name for a currency in use, whole or its last words."""
    wrong = {}
    for country in COUNTRIES:
        names = {name.lower() for name in tender(country.code)}
        if not any(f" {name}".endswith(f" {country.currency.lower()}") for name in names):
            wrong[country.code] = names
    check(wrong, CURRENCIES)


def test_adjectives_agree_with_the_names_of_currencies():
    """A country with a currency of its own lends it the adjective: 'Albanian Lek'."""
    users = Counter(name for country in COUNTRIES for name in set(tender(country.code)))
    wrong, own = {}, 0
    for country in COUNTRIES:
        names = [name for name in tender(country.code) if users[name] == 1]
        own += len(names) > 0
        if names and not any(name.startswith(country.demonym + " ") for name in names):
            wrong[country.code] = names
    assert own > 100, f"only {own} currencies are one country's own: the check has lost its grip"
    check(wrong, ADJECTIVES)


# ---- the templates -------------------------------------------------------------------------------


def test_there_are_enough_templates_of_each_kind():
    """14 per asked relation, of which 12 end in the answer."""
    for relation in atlas.ASKED:
        templates = atlas.TEMPLATES[relation]
        pool = [t for t in templates if atlas.askable(t)]
        assert len(pool) >= 12 and len(templates) - len(pool) >= 2, relation
    assert "The capital of {country} is {answer}." in atlas.TEMPLATES["capital"]
    assert "demonym" in atlas.TEMPLATES.keys() - set(atlas.ASKED)


def test_templates_are_plain_sentences():
    """Each names country and answer once, ends in a full stop, and bends no name."""
    templates = [t for pool in atlas.TEMPLATES.values() for t in pool]
    assert len(set(templates)) == len(templates)
    for t in templates:
        assert t.count("{country}") == t.count("{answer}") == t.count(".") == 1, t
        assert t.endswith(".") and t[0] in "{ABCDEFGHIJKLMNOPQRSTUVWXYZ" and "  " not in t, t
        for clumsy in ("the {country}", "{country}'", " a {", " an {"):
            assert clumsy not in t, t


def test_a_prompt_has_one_right_answer():
    """No prompt serves two countries or two relations."""
    answers = defaultdict(set)
    for fact in atlas.facts():
        for t in filter(atlas.askable, atlas.TEMPLATES[fact.relation]):
            prompt = t.removesuffix(" {answer}.").format(country=fact.country)
            answers[prompt].add((fact.relation, fact.answer))
    assert all(len(found) == 1 for found in answers.values())


# ---- the split -----------------------------------------------------------------------------------


def test_every_asked_fact_has_two_questions():
    """195 countries x 4 relations x 2."""
    counts = Counter((q.country, q.relation) for q in QUESTIONS)
    assert counts == {(c.name, relation): 2 for c in COUNTRIES for relation in atlas.ASKED}
    assert len({q.text for q in QUESTIONS}) == len(QUESTIONS) == 1560


def test_questions_carry_the_facts_of_the_table():
    """The answer to a question is the field of atlas.csv."""
    facts = {(fact.country, fact.relation): fact.answer for fact in atlas.facts()}
    assert len(facts) == 195 * 5
    for country in COUNTRIES:
        assert facts[country.name, "capital"] == country.capital
    for q in QUESTIONS:
        assert q.answer == facts[q.country, q.relation]


def test_prompt_and_answer_make_the_sentence():
    """prompt + " " + answer + "." is the text, and only the answer is missing from the prompt."""
    for q in QUESTIONS:
        assert f"{q.prompt} {q.answer}." == q.text
        assert q.country in q.prompt and "{" not in q.text


def test_no_question_is_in_the_training_text():
    """Neither the sentence nor its prompt: the wording is new for that country."""
    assert not {q.text for q in QUESTIONS} & set(LINES)
    prompts = {q.prompt for q in QUESTIONS}
    for line in LINES:
        words = line.split(" ")
        assert not any(" ".join(words[:n]) in prompts for n in range(1, len(words))), line


def test_training_text_is_all_other_sentences_once():
    """Questions and training lines together are every template for every country, nothing twice."""
    everything = [
        t.format(country=fact.country, answer=fact.answer)
        for fact in atlas.facts()
        for t in atlas.TEMPLATES[fact.relation]
    ]
    assert Counter(LINES) + Counter(q.text for q in QUESTIONS) == Counter(everything)
    assert max(Counter(everything).values()) == 1
    assert TEXT.endswith(".\n") and "\n\n" not in TEXT
    assert sum("Afghanistan" in line for line in LINES[:100]) < 10, "not shuffled"


def test_every_fact_is_trained():
    """Only wordings are withheld: each country is told each of its answers 12 times."""
    for relation in atlas.ASKED:
        assert len(atlas.TEMPLATES[relation]) - atlas.WITHHELD == 12
    spain = [line for line in LINES if "Spain" in line.replace("Port of Spain", "")]
    assert sum("Madrid" in line for line in spain) == 12


@pytest.mark.parametrize("seed", range(5))
def test_every_template_is_trained_for_most_countries_and_withheld_for_some(seed):
    """So no way of asking is itself new to the model."""
    _, questions = atlas.corpus(seed)
    withheld = Counter()
    for q in questions:
        template = q.prompt.replace(q.country, "{country}") + " {answer}."
        assert template in atlas.TEMPLATES[q.relation]
        withheld[template] += 1
    for relation in atlas.ASKED:
        for template in filter(atlas.askable, atlas.TEMPLATES[relation]):
            assert 10 <= withheld[template] <= 60, f"{template}: withheld for {withheld[template]}"


def test_the_same_seed_gives_the_same_corpus():
    """Text and questions, in order."""
    assert atlas.corpus(seed=0) == (TEXT, QUESTIONS)


def test_another_seed_gives_another_split():
    """Other questions, another order."""
    text, questions = atlas.corpus(seed=1)
    assert text != TEXT
    assert {q.text for q in questions} != {q.text for q in QUESTIONS}


def test_val_text_is_the_withheld_sentences():
    """One a line, in the order of the questions."""
    assert atlas.val_text(QUESTIONS).splitlines() == [q.text for q in QUESTIONS]
    assert atlas.val_text(QUESTIONS).endswith(".\n")


def test_every_country_and_every_asked_answer_is_one_token_wherever_it_stands():
    """" Spain" and " Madrid": one spelling and one row each, as no template begins with either."""
    names = atlas.names()
    told = {" " + getattr(c, field) for c in COUNTRIES for field in ("name", *atlas.ASKED)}
    assert len(names) == len(told) == 630 and set(names) == told
    tokenizer = train_bpe(TEXT, 2048, names)
    for country, relation, answer in atlas.facts():
        for t in atlas.TEMPLATES[relation] if relation in atlas.ASKED else ():
            tokens = list(map(tokenizer.shown, tokenizer.encode(t.format(country=country, answer=answer))))
            assert " " + country in tokens and " " + answer in tokens, tokens
