"""A small world of real facts: sentences to train on, questions to ask afterwards.

atlas.csv holds the 193 member states of the United Nations and its two observer states, with
their facts as of 2026. Templates turn each asked fact into fourteen sentences. Two of them are
withheld from training and asked as questions: a right answer is then a fact recalled in words not
seen for that country, not a memorised line. Every fact is in the training text.

Columns, and the rule for each (tests/test_atlas.py checks them against ISO 3166 and Unicode CLDR):
  code, name  ISO 3166 alpha-2; the everyday English name, always used without "the" and in the
              singular ("the capital of Gambia", "Bahamas has"), so every template fits every name
  capital     the one named by constitution or law; where neither does, the seat of government
  language    one: the most spoken of those official countrywide, by law or in practice. Where CLDR
              counts a language mostly learnt at school, the home language goes before it
  currency    the country's own if it has one; the bare noun if no other currency here shares it
              ("yen"), else the full name ("Omani rial")
  continent   the UN's grouping: Cyprus, Turkey, the Caucasus and Kazakhstan in Asia, Russia in
              Europe, Central America and the Caribbean in North America
  demonym     the adjective. Trained on, never asked: Dominican and Congolese fit two countries each

One could argue about these. Capitals, by law though another city governs or outgrew them: Sucre,
Amsterdam, Porto-Novo, Yamoussoukro, Dodoma, Sri Jayawardenepura Kotte; Mbabane and Pretoria, first
of several; Ciudad de la Paz, by decree since January 2026; Jakarta, until Nusantara is proclaimed;
Yaren, Jerusalem and Ramallah, seats of government (the status of Jerusalem is disputed).
Languages: Russian in Belarus, Wolof in Senegal, Zulu in South Africa, Guarani in Paraguay, English
in Mauritius and Uganda; Mossi, Bambara and Hausa since Burkina Faso, Mali and Niger demoted French.
Currencies: Zimbabwe and Panama use the US dollar too.

What this leaves out: second capitals, languages and currencies, all territories that are no state
at the UN, and accents and apostrophes (Brasilia, Ndjamena): every field is plain ASCII.
"""

from collections import namedtuple
from pathlib import Path

ASKED = ("capital", "language", "currency", "continent")  # "demonym" is trained on, never asked
WITHHELD = 2  # sentences withheld from training, for each country and asked relation

# The answer comes last in most templates: what stands before it is the prompt. Each says which
# relation is meant before the answer comes, so a prompt has one right continuation. No template
# puts a/an or 's next to a name: "Seychelles's" helps nobody.
TEMPLATES = {
    "capital": [
        "The capital of {country} is {answer}.",
        "Travellers to {country} first see its capital, {answer}.",
        "Schools in {country} teach the name of the capital, {answer}.",
        "A letter to the capital of {country} goes to {answer}.",
        "The name of the capital of {country} is {answer}.",
        "On a map of {country}, the star for the capital is drawn at {answer}.",
        "Asked for the capital of {country}, a good student says {answer}.",
        "In the list of capitals, next to {country} stands {answer}.",
        "A quiz wants to know the capital of {country}, and the answer is {answer}.",
        "This atlas gives the capital of {country} as {answer}.",
        "To see the capital of {country}, buy a ticket to {answer}.",
        "Of all the capitals in the world, the one that belongs to {country} is {answer}.",
        "The capital of {country}, {answer}, is on every map.",
        "In the capital of {country}, {answer}, many roads meet.",
    ],
    "language": [
        "The main language of {country} is {answer}.",
        "People in {country} share a main language, {answer}.",
        "The language of most road signs in {country} is {answer}.",
        "In the list of languages, next to {country} stands {answer}.",
        "The main language spoken in {country} is {answer}.",
        "To follow the news in {country}, the language to know is {answer}.",
        "Before a trip to {country}, the language to learn is {answer}.",
        "Asked for the main language of {country}, a good student says {answer}.",
        "A phrase book for travellers to {country} teaches {answer}.",
        "This atlas gives the main language of {country} as {answer}.",
        "A quiz wants to know the main language of {country}, and the answer is {answer}.",
        "Of all the languages heard in {country}, the main one is {answer}.",
        "The main language of {country}, {answer}, is in every shop there.",
        "A greeting in the main language of {country}, {answer}, opens doors.",
    ],
    "currency": [
        "The currency of {country} is the {answer}.",
        "Shops in {country} write their prices in the {answer}.",
        "Banks in {country} count money in the {answer}.",
        "A coin from {country} is money of one kind, the {answer}.",
        "The unit of money in {country} is the {answer}.",
        "Travellers to {country} read up on its currency, the {answer}.",
        "On the exchange board, the currency of {country} is shown as the {answer}.",
        "Asked for the currency of {country}, a good student says the {answer}.",
        "In the list of currencies, next to {country} stands the {answer}.",
        "This atlas gives the currency of {country} as the {answer}.",
        "A quiz wants to know the currency of {country}, and the answer is the {answer}.",
        "Of all the currencies in the world, the one used in {country} is the {answer}.",
        "The currency of {country}, the {answer}, is on every price there.",
        "A purse full of the currency of {country}, the {answer}, is heavy.",
    ],
    "continent": [
        "The continent of {country} is {answer}.",
        "Geography books put {country} on the continent of {answer}.",
        "The continent that {country} belongs to is {answer}.",
        "A traveller to {country} sets foot on the continent of {answer}.",
        "To find {country} on a globe, start with the continent of {answer}.",
        "Whoever lands in {country} has reached the continent of {answer}.",
        "The map of {country} is in the chapter on the continent of {answer}.",
        "Asked for the continent of {country}, a good student says {answer}.",
        "In the list of continents, {country} comes under {answer}.",
        "This atlas gives the continent of {country} as {answer}.",
        "A quiz wants to know the continent of {country}, and the answer is {answer}.",
        "Of all the continents, the one that counts {country} among its own is {answer}.",
        "The continent of {country}, {answer}, is on every globe.",
        "Around {country} lies its continent, {answer}, and around that the sea.",
    ],
    "demonym": [
        "The adjective for {country} is {answer}.",
        "What comes from {country} is called {answer}.",
        "Songs from {country} are {answer} songs.",
        "The word {answer} stands for what comes from {country}.",
    ],
}


Country = namedtuple("Country", "code name capital continent language currency demonym")
Fact = namedtuple("Fact", "country relation answer")  # ("Spain", "capital", "Madrid")

# prompt "The capital of Spain is", answer "Madrid", text "The capital of Spain is Madrid."
Question = namedtuple("Question", "country relation prompt answer text")


def load():
    """The 195 countries of atlas.csv, sorted by name."""
    import csv

    with open(Path(__file__).with_name("atlas.csv"), encoding="utf-8", newline="") as file:
        return [Country(**row) for row in csv.DictReader(file)]


def facts():
    """All facts: 195 countries x 5 relations."""
    return [Fact(c.name, relation, getattr(c, relation)) for c in load() for relation in TEMPLATES]


def names():
    """What the tokenizer should keep whole: countries and asked answers with the space before them, " Spain".

    No template begins with either, so that each has this one spelling, one token and one row."""
    told = {fact for fact in facts() if fact.relation in ASKED}
    return [" " + name for name in sorted({f.country for f in told} | {f.answer for f in told})]


def askable(template):
    """True where the answer closes the sentence, so that the rest of it can be the prompt."""
    return template.endswith(" {answer}.")


def corpus(seed, told=None):
    """seed -> (training text, withheld questions); the same seed gives the same split.

    told: the facts to tell, all by default (a smaller world, or an invented one). Each asked fact
    loses WITHHELD of its askable sentences to the questions; all other sentences stand in the text
    exactly once, shuffled, one a line.
    """
    import random

    rng = random.Random(seed)
    lines, withheld = [], []
    for country, relation, answer in facts() if told is None else told:
        pool = [t for t in TEMPLATES[relation] if askable(t)]
        held = rng.sample(pool, WITHHELD) if relation in ASKED else []
        kept = [t for t in TEMPLATES[relation] if t not in held]
        lines += [t.format(country=country, answer=answer) for t in kept]
        for t in held:
            prompt = t.removesuffix(" {answer}.").format(country=country)
            withheld.append(Question(country, relation, prompt, answer, f"{prompt} {answer}."))
    rng.shuffle(lines)
    return "\n".join(lines) + "\n", withheld


def val_text(questions):
    """The withheld sentences, one a line: what a validation loss is measured on."""
    return "".join(question.text + "\n" for question in questions)
