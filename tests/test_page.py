"""The page in a real browser says what the library says, and nothing in it can be anything but text."""

import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import browser
import numpy as np
import pytest
import tiktoken
from browser import choose, exchange, type_prompt, wait
from commands import TINY, command

from ministem import Config, forward, init_params, train_bpe
from ministem.generate import generate
from ministem.knowledge import edit, inside, naming, page
from ministem.run.checkpoint import Run
from ministem.tables import Tables
from ministem.tokenizer import Tokenizer

missing = browser.missing()
in_browser = pytest.mark.skipif(missing is not None, reason=f"needs {missing}")

HOSTILE = ["</script>", "<img src=x onerror=alert(1)>", "<!--", "<b>Spain</b>", "{{weights}}", "</textarea>"]
NAMES = [" Spain", " Germany", " South Sudan", " Chad", "\x80", "\u2028", "\U0010ffff", *HOSTILE]
TEXT = "The capital of Spain is Madrid, of Germany Berlin. Papua New Guinea has a capital, too! Aaaah! " * 9
TOKENIZER = train_bpe(TEXT, 400, NAMES)
CONTENT = re.compile(r'id="content">(.*?)</script>')


def run(folder, ffn="stem", tokenizer=TOKENIZER, seed=0, **shape):
    """An untrained model with opinions: weights so large that each layer, row and head matters."""
    shape = dict(dim=24, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=30, context=24) | shape
    config = Config(tokenizer.n_vocab, ffn=ffn, **shape)
    params, tables = init_params(config, seed)
    rng = np.random.default_rng(seed)
    for name in params:
        if params[name].ndim == 1:  # norms at one would hide one that is forgotten
            params[name] += rng.normal(0, 0.3, params[name].shape).astype("float32")
        if name.endswith("wqkv"):
            params[name] *= 2
    params["head"] *= 40
    arrays = {n: tables[n] * np.float32(50 if n.endswith("table") else 3) for n in tables.names}
    folder = Path(folder)
    folder.mkdir(exist_ok=True)
    settings = dict(data="some/<b>text.txt", seed=0)
    return Run(folder, config, settings, tokenizer, params, Tables(arrays), step=7)


@pytest.fixture(scope="module")
def driver():
    with browser.chromium() as driver:
        yield driver


@pytest.fixture
def opened(driver, tmp_path):
    """-> a function that shows a run's page, and checks in the end that nothing was wrong with it"""
    driver.get_log("browser"), driver.get_log("performance")

    def opened(run, prompt="The capital of Spain is", **more):
        path = tmp_path / "a <page> & more.html"
        path.write_text(page.make(run, prompt, **more), "utf-8")
        browser.open_page(driver, path)
        return driver

    yield opened
    assert driver.get_log("browser") == [], "the console has complaints"
    sent = [message["params"] for message in messages(driver, "Network.requestWillBeSent")]
    urls = [request["request"]["url"] for request in sent if not request["documentURL"].startswith("chrome:")]
    assert urls and all(url.startswith(("file://", "data:image/svg+xml,")) for url in urls)


def messages(driver, method):
    found = (json.loads(entry["message"])["message"] for entry in driver.get_log("performance"))
    return [message for message in found if message["method"] == method]


def js(driver, body, *arguments):
    """Run JavaScript in the page: the model's own functions are there."""
    return driver.execute_script(body, *arguments)


def text(driver, id):
    return driver.find_element("id", id).text


# ------------------------------------------------------------------------------------------- the model

VARIANTS = [
    ("dense", dict()),
    ("stem", dict()),
    ("gate", dict(stem_layers=(0, 2))),
    ("additive", dict(stem_layers=(1, 2), n_kv_heads=4)),
    ("stem", dict(stem_layers=(1,), n_kv_heads=1, dim=12, n_heads=2, n_layers=2, ffn_dim=7)),
]
LOGITS = """
const [ids, reads] = arguments;
const tokens = ids.map((id, t) => ({ id, reads: reads[t], key: String(t) }));
return text_forward(tokens, params, config).map((p) => Array.from(linear_forward(p.x, params.head)));
"""


@in_browser
@pytest.mark.parametrize("ffn, shape", VARIANTS)
def test_logits_are_those_of_numpy(opened, tmp_path, ffn, shape):
    """With positions that read other tokens' rows, the mean of two among them, in all layers or some."""
    model = page.as_on_page(run(tmp_path / "run", ffn, **shape))
    L, ids = model.config.n_layers, np.random.default_rng(1).integers(0, model.config.vocab_size, 14)
    batch, reads = model.tables.fetch(ids[None]), [[[int(id)] for _ in range(L)] for id in ids]
    layers = [i for i in range(L) if model.config.ffn_kind(i) != "dense"]
    if layers:
        for t, rows, where in ((3, [5], layers), (6, [9, 260], layers), (8, [300], layers[-1:])):
            batch = edit.override(batch, model.tables, [(0, t, rows)], where)
            for i in where:
                reads[t][i] = rows
    expected = forward(model.params, model.config, batch)[0]
    found = np.array(js(opened(model), LOGITS, ids.tolist(), reads))
    assert found.shape == expected.shape and np.ptp(expected) > 5
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@in_browser
def test_what_is_taken_from_an_earlier_text_is_what_would_be_computed(opened, tmp_path):
    found = js(opened(run(tmp_path / "run")), """
        const token = (id, read = id) => ({ id, reads: [[read], [read], [read]], key: `${id} ${read}` });
        const a = [1, 2, 3, 4].map((id) => token(id));
        const b = [token(1), token(2), token(3, 9), token(4), token(5)];
        const plain = text_forward(a, params, config), other = text_forward(b, params, config, plain);
        const shorter = text_forward(a.slice(0, 2), params, config, other, plain);
        const bytes = (text) => text.map((p) => Array.from(p.x)).join(";");
        return [plain[1] === other[1], plain[2] === other[2], shorter.length, plain.length,
                bytes(other) === bytes(text_forward(b, params, config))];
    """)  # fmt: skip
    assert found == [True, False, 2, 4, True]


@in_browser
@pytest.mark.parametrize("prompt, old, now", [
    ("The capital of Spain is", "Spain", "Germany"),
    ("capital, of Spain, the Spain, is", "Spain", "Germany"),
    ("The capital of Spain is The capital of Spain is The capital of Spain is", "is", "Chad"),
])  # fmt: skip
def test_a_greedy_text_is_that_of_generate(opened, tmp_path, prompt, old, now):
    """As it is and with an exchange; beyond the context, where the window moves on."""
    model = page.as_on_page(run(tmp_path / "run", seed=6))
    driver = opened(model, prompt)
    exchange(driver, old, now)
    found = js(driver, """
        writing++;
        return sides.map((side) => {
          side.written = [];
          for (let i = 0; i < 40; i++) side.written.push(next_token(side, 0));
          return side.written;
        });""")
    ids = model.tokenizer.encode(prompt)
    [token], [row] = (naming.spelling(model.tokenizer, name) for name in (old, now))
    start = ids.index(token)
    override = edit.while_generating(model.tables, [(start, [row])])
    parts = model.params, model.tables, model.config
    expected = [list(generate(*parts, ids, 40, temperature=0, override=o)) for o in (None, override)]
    assert len(ids) + 40 > 1.5 * model.config.context and expected[0] != expected[1]
    assert found == expected


@in_browser
def test_drawn_tokens_follow_the_odds(opened, tmp_path):
    odds = [0.1, 0.5, 0.15, 0.25]
    for temperature in (0.5, 1, 2):
        draws = js(opened(run(tmp_path / "run")), """
            const [odds, temperature] = arguments;
            return Array.from({ length: 4000 }, () => sample(Float64Array.from(odds), temperature));
        """, odds, temperature)  # fmt: skip
        p = np.array(odds) ** (1 / temperature)
        np.testing.assert_allclose(np.bincount(draws, minlength=4) / 4000, p / p.sum(), atol=0.04)


@in_browser
def test_rows_most_alike_and_lens_are_those_of_inside(opened, tmp_path):
    model = page.as_on_page(run(tmp_path / "run", stem_layers=(1, 2)))
    driver = opened(model)
    for ids in ([270], [270, 300]):
        found = js(driver, "return [1, 2].map((i) => nearest(i, arguments[0], 6))", ids)
        expected = inside.nearest(model.tables, ids, 6)
        for rows, name in zip(found, ("layers.1.table", "layers.2.table"), strict=True):
            assert [id for id, _ in rows] == [id for id, _ in expected[name]]
            np.testing.assert_allclose([c for _, c in rows], [c for _, c in expected[name]], atol=1e-5)
    odds = inside.next_odds(model, model.tokenizer.encode("The capital of Spain is"))
    np.testing.assert_allclose(js(driver, "return Array.from(sides[0].odds)"), odds, atol=1e-4)


# ------------------------------------------------------------------------------------------ the tokens


def strings(n):
    """Odd strings: Hangul, emoji, marks, CRLF, long runs, all kinds of blanks, hostile ones, plain ones."""
    rng = random.Random(0)
    pieces = [
        "서울", "한", "日本の", "हिन्दी", "é", "e\u0301", "ſ's", "ﬁ", "Ⅷ", "²",
        "\U0001f469\u200d\U0001f680", "\U0001f1ea\U0001f1f8",  # an astronaut, a flag
        "\r\n", "\n\n", "\t", "\u0085", "\ufeff", "\u2028", "\u00a0", "\u3000", "\x1f", "\x00", " ", "  ",
        "a" * 70, "aaaaa", " " * 70, "!" * 70, "7" * 70, "it's", "we'll", "'tis", "IT'S",
        "<|endoftext|>", "\\s\\",
        "South Sudan", " South Sudan", " South Sudanese", "Papua New Guinea", " Spain", "Spain", "Spain.",
        "capital", "The", ".", ",", "-", "\ud800", "\udc00", "\U0010ffff", "\ue000", *HOSTILE,
    ]  # fmt: skip
    made = ["", *pieces]
    while len(made) < n:
        made.append("".join(rng.choice(pieces) for _ in range(rng.randrange(1, 9))))
    return made


def with_pattern(pattern):
    """The test's vocabulary, cutting texts as a stock one does (whose tokens would have to be downloaded)."""
    ranks = {token: id for token, id in TOKENIZER.encoding._mergeable_ranks.items()}
    special = {"<|endoftext|>": len(ranks)}
    other = tiktoken.Encoding("other", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special)
    return Tokenizer(other)


STOCK = {  # as in tiktoken_ext/openai_public.py
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"""
    r"""|\s++$|\s*[\r\n]|\s+(?!\S)|\s""",
    "o200k": "|".join([
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
        r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+""",
    ]),
}  # fmt: skip


@in_browser
@pytest.mark.parametrize("pattern", ["ours", *STOCK])
def test_ids_are_those_of_tiktoken(opened, tmp_path, pattern):
    tokenizer = TOKENIZER if pattern == "ours" else with_pattern(STOCK[pattern])
    driver, texts = opened(run(tmp_path / "run", tokenizer=tokenizer)), strings(1000)
    # lone surrogates would not survive the way to the browser: they go there as numbers
    units = [np.frombuffer(t.encode("utf-16-le", "surrogatepass"), "<u2").tolist() for t in texts]
    encode = "return arguments[0].map((units) => tokenizer.encode(String.fromCharCode(...units)))"
    found = js(driver, encode, units)
    for string, ids in zip(texts, found, strict=True):
        assert ids == tokenizer.encode(string), repr(string)


@in_browser
def test_tokens_are_shown_as_the_tokenizer_shows_them(opened, tmp_path):
    driver = opened(run(tmp_path / "run"))
    found = js(driver, "return tokenizer.tokens.map((_, id) => tokenizer.shown(id))")
    assert found == [TOKENIZER.shown(id) for id in range(TOKENIZER.n_vocab)]


@in_browser
def test_an_exchange_reads_the_rows_that_an_edit_reads(opened, tmp_path):
    """For every recipe, names of one token and of several, at the beginning of a text and within it."""
    driver, cases = opened(run(tmp_path / "run")), []
    names = ["Spain", "Papua New Guinea", "Guinea", "South Sudan", "Atlantis", "Madrid"]
    prompts = ("The capital of {} is", "{} is", "({}) is", "of\n{} the")
    for prompt, old, now, how in itertools.product(prompts, names, [*names, "日本"], naming.HOW):
        prompt = prompt.format(old)
        try:
            expected = [[t, list(ids)] for t, ids in naming.plan(TOKENIZER, prompt, [(old, now)], how)]
        except ValueError as error:
            expected = str(error)
        cases.append([prompt, old, now, how, expected])
    found = js(driver, """
        know(["South Sudan", "Papua New Guinea"]);
        return arguments[0].map(([prompt, old, now, how]) => {
          ids = tokenizer.encode(prompt), words = find_words(ids);
          const word = words.find((word) => word.name === old);
          try {
            return plan(word, { now, how }).reads.map((read, i) => [word.start + i, read]);
          } catch (error) {
            return error.message;
          }
        });""", cases)  # fmt: skip
    assert {len(expected) for *_, expected in cases if isinstance(expected, list)} > {1, 3}
    for case, reads in zip(cases, found, strict=True):
        assert reads == case[-1], case


# --------------------------------------------------------------------------------------------- the page


@in_browser
def test_type_exchange_look_write_undo(opened, tmp_path):
    driver = opened(run(tmp_path / "run"))
    type_prompt(driver, "The capital of Spain is")
    assert text(driver, "chips").endswith("␣Spain\n␣is")
    assert text(driver, "texts").startswith("As it is\nThe capital of Spain is")
    assert "reading" not in text(driver, "texts")
    before = text(driver, "odds")

    exchange(driver, "Spain", "Germany")
    assert text(driver, "exchanges") == "⇄ Spain reads the rows of Germany\nUndo"
    assert "⇄ reads Germany" in text(driver, "chips")
    assert all("Spain, reading Germany" in text(driver, id) for id in ("odds", "texts"))
    exchange(driver, "capital", "Chad")
    assert len(driver.find_elements("css selector", "#exchanges li")) == 2
    driver.find_element("css selector", "#layers input[value='0']").click()  # of the exchange for "capital"
    assert text(driver, "exchanges").splitlines()[-2] == "⇄ capital reads the rows of Chad in layers 1 and 2"

    wait(driver, "return document.querySelectorAll('#lens tbody tr').length === 4")
    assert len(driver.find_elements("css selector", "#rows canvas")) == 9
    assert "row of [ Chad]" in text(driver, "rows")  # the chosen token, in the layers where it reads that
    assert len(driver.find_elements("css selector", "#attention tbody tr")) == 3

    driver.find_element("id", "write").click()
    wait(driver, "return sides.every((side) => side.written.length >= 60)")
    assert len({js(driver, f"return tokenizer.decode(sides[{n}].written)") for n in (0, 1)}) == 2

    for _ in range(2):
        driver.find_element("css selector", "#exchanges button").click()
    assert text(driver, "exchanges") == "" and text(driver, "odds") == before


@in_browser
def test_an_exchange_stays_with_its_word_while_the_text_changes(opened, tmp_path):
    driver = opened(run(tmp_path / "run"), "Spain Spain is")
    choose(driver, "Spain", 1)
    driver.find_element("id", "new").send_keys("Chad\n")
    reads = "return sides.at(-1).tokens.map((token) => tokenizer.shown(token.reads[0][0]).trim())"
    assert js(driver, reads)[-2:] == ["Chad", "is"]
    type_prompt(driver, "The Spain of Spain is")
    assert js(driver, reads) == ["The", "Spain", "of", "Chad", "is"]
    type_prompt(driver, "The capital")
    assert "not in the text now" in text(driver, "exchanges") and len(js(driver, "return sides")) == 1


@in_browser
def test_what_a_newcomer_does_is_understood(opened, tmp_path):
    """A name in small letters; a space at the end; a new text, of which the name is the word to exchange."""
    driver = opened(run(tmp_path / "run"), "The capital of Spain is")
    driver.execute_script('page.names = ["Spain", "Germany"], choices = page.names; update()')
    own = "return [...document.querySelectorAll('#own canvas')].map((strip) => strip.ariaLabel)"
    assert [label[:12] for label in js(driver, own)] == ["row of Spain"]
    exchange(driver, "Spain", "germany")
    assert text(driver, "exchanges") == "⇄ Spain reads the rows of Germany\nUndo"
    assert [label.split(":")[0] for label in js(driver, own)] == ["row of Spain", "reads"]
    rows = js(driver, "return [...own.querySelectorAll('canvas')].map((strip) => strip.toDataURL())")
    assert rows[0] != rows[1] and "still says Spain" in text(driver, "own")
    type_prompt(driver, "The capital of Germany is ")
    assert "ends in a space" in text(driver, "why") and text(driver, "old") == "Germany"
    assert driver.find_element("id", "new").get_property("value") == ""  # it was about Spain
    choose(driver, "capital")
    driver.find_element("id", "prompt").send_keys("Spain")
    assert text(driver, "old") == "capital"  # chosen by hand, and still there
    assert "space" not in text(driver, "why")


@in_browser
def test_an_empty_text_a_missing_name_and_no_layer_are_said(opened, tmp_path):
    driver = opened(run(tmp_path / "run"), "")
    assert "Type something" in text(driver, "texts")
    type_prompt(driver, "of Spain")
    driver.find_element("css selector", "#exchange .main").click()
    assert "Choose or type a name" in text(driver, "problem")
    for box in driver.find_elements("css selector", "#layers input"):
        box.click()
    driver.find_element("id", "new").send_keys("Chad\n")
    assert "at least one layer" in text(driver, "problem") and text(driver, "exchanges") == ""


@in_browser
def test_the_page_says_why_an_exchange_fails(opened, tmp_path):
    driver = opened(run(tmp_path / "run"))
    exchange(driver, "Spain", "Papua New Guinea")
    why = "“Papua New Guinea” is 3 tokens, [ Papua][ New][ Guinea]; [ Spain] reads [ Guinea]."
    assert text(driver, "why").startswith(why)
    assert driver.find_element("id", "several").is_displayed()
    for i in (0, 1):
        driver.find_element("css selector", f"#layers input[value='{i}']").click()
    assert text(driver, "why").startswith("Too late: no odds change at all.")
    assert js(driver, "return sides[0].odds.every((p, id) => p === sides[1].odds[id])")


@in_browser
def test_a_model_without_tables_has_nothing_to_exchange(opened, tmp_path):
    driver = opened(run(tmp_path / "run", "dense"))
    assert not driver.find_element("id", "exchange").is_displayed() and "%" in text(driver, "odds")


@in_browser
def test_what_looks_like_html_stays_text(opened, tmp_path):
    """In the vocabulary, the prompt, a name, the run's folder and its data."""
    model = run(tmp_path / "<img src=x onerror=alert(2)>")
    assert all(len(TOKENIZER.encode(string)) == 1 for string in HOSTILE[:2])
    driver = opened(model, "".join(HOSTILE))
    type_prompt(driver, "".join(HOSTILE) + " Spain")
    choose(driver, HOSTILE[0])
    exchange(driver, "Spain", HOSTILE[1])
    driver.find_element("id", "write").click()
    wait(driver, "return sides[0].written.length >= 60 && document.querySelector('#rows canvas')")
    assert js(driver, "return document.querySelectorAll('img, #chips b, #texts script').length") == 0
    assert js(driver, "return document.scripts.length") == 4
    assert HOSTILE[0] in text(driver, "chips")
    assert f"reads the rows of {HOSTILE[1]}" in text(driver, "exchanges")
    assert "<img src=x onerror=alert(2)>" in text(driver, "facts") and "<b>text.txt" in text(driver, "facts")


@in_browser
def test_the_policy_forbids_requests_foreign_code_and_html_from_strings(driver, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page.make(run(tmp_path / "run"), "The"), "utf-8")
    browser.open_page(driver, path)
    refused = driver.execute_async_script("""
        const done = arguments[0], refused = [];
        document.addEventListener("securitypolicyviolation", (e) => refused.push(e.effectiveDirective));
        fetch("https://example.invalid/").catch(() => 0);
        const image = new Image();
        image.src = "https://example.invalid/x.png";
        const script = document.createElement("script"), type = document.createElement("style");
        try { script.text = "window.hacked = 1" } catch { refused.push("script text") }
        try { document.body.innerHTML += "<p onclick=alert(1)>" } catch { refused.push("innerHTML") }
        type.textContent = "body { color: red }";
        document.head.append(type);
        setTimeout(() => done([window.hacked ?? 0, ...new Set(refused)].sort()), 300);
    """)  # fmt: skip
    wanted = {"connect-src", "img-src", "style-src-elem", "script text", "innerHTML"}
    assert refused[0] == 0 and wanted <= set(refused[1:]), refused
    driver.get_log("browser")


@in_browser
def test_it_can_be_used_with_the_keyboard_and_everything_has_a_name(opened, tmp_path):
    from selenium.webdriver.common.keys import Keys

    driver = opened(run(tmp_path / "run"))
    here = driver.find_element("id", "prompt")
    here.click()
    names = []
    for _ in range(4):  # from the text along its tokens
        driver.switch_to.active_element.send_keys(Keys.TAB)
        names.append(driver.switch_to.active_element.accessible_name)
    while "Spain" not in driver.switch_to.active_element.accessible_name:
        driver.switch_to.active_element.send_keys(Keys.TAB)
    driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert driver.switch_to.active_element.get_attribute("aria-pressed") == "true"  # it kept the focus
    while driver.switch_to.active_element.get_attribute("id") != "new":
        driver.switch_to.active_element.send_keys(Keys.TAB)
    driver.switch_to.active_element.send_keys("Germany", Keys.ENTER)
    assert "Spain reads the rows of Germany" in text(driver, "exchanges")
    wait(driver, "return document.getElementById('summary').textContent.includes('Spain, reading Germany: ')")
    controls = driver.find_elements("css selector", "button, input, select, textarea, canvas, summary, svg")
    assert len(controls) > 30
    nameless = [c for c in controls if c.is_displayed() and not c.accessible_name]
    assert [c.get_attribute("outerHTML") for c in nameless] == []
    ids = re.findall(r'id="([^"]+)"', (page.WEB / "page.html").read_text("utf-8"))
    assert len(ids) == len(set(ids))


@in_browser
@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_telephone_in_light_and_dark(tmp_path, dark):
    with browser.chromium(360, 700, dark) as driver:
        size = dict(width=360, height=700, deviceScaleFactor=1, mobile=True)
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        path = tmp_path / "page.html"
        path.write_text(page.make(run(tmp_path / "run"), "The capital of Spain is"), "utf-8")
        browser.open_page(driver, path)
        exchange(driver, "Spain", "Germany")
        wait(driver, "return document.querySelector('#rows canvas')")
        assert js(driver, "return document.documentElement.scrollWidth") <= 360
        paper = js(driver, "return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(23, 22, 20)") == dark


def test_colours_have_enough_contrast():
    """At least 4.5 for text, in light and in dark, 3 for what is drawn (WCAG 2)."""

    def luminance(colour):
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return np.dot(linear, [0.2126, 0.7152, 0.0722]) + 0.05

    css = (page.WEB / "page.css").read_text("utf-8")
    themes = re.findall(r":root \{([^}]+)\}", css)
    least = dict(ink=4.5, soft=4.5, after=4.5, before=3, minus=3, plus=3)
    assert len(themes) == 2
    for theme in themes:
        luminances = {name: luminance(colour) for name, colour in re.findall(r"--(\w+): (#\w{6})", theme)}
        for ground, name in itertools.product(("paper", "raised", "wash"), least):
            dark, light = sorted([luminances[ground], luminances[name]])
            assert light / dark >= least[name], (ground, name)


# ------------------------------------------------------------------------------------------- the writer


def test_a_number_on_the_page_is_float16_without_two_bits(tmp_path):
    x = np.random.default_rng(0).standard_normal(10_000).astype("float32")
    near = page.codes("x", x).view("float16").astype("float32")
    assert (page.codes("x", x) % 4 == 0).all() and (abs(near - x) <= abs(x) * (2**-9 + 2**-11)).all()
    assert (page.codes("x", np.float32([0, -0.0, 1, -2])).view("float16") == [0, 0, 1, -2]).all()
    model = page.as_on_page(run(tmp_path / "run"))
    again = page.as_on_page(model)
    assert all((model.tables[name] == again.tables[name]).all() for name in model.tables.names)


def test_a_model_that_cannot_be_a_page_is_refused_in_a_line(tmp_path, monkeypatch):
    model = run(tmp_path / "run")
    model.params["norm"][3] = 65_536
    with pytest.raises(ValueError, match="norm has numbers that float16 cannot hold"):
        page.make(model)
    monkeypatch.setattr(page, "LIMIT", 10_000)
    with pytest.raises(ValueError, match=r"too large for a page: [\d,]+ numbers are 0 MB in .*--vocab-size"):
        page.make(run(tmp_path / "run"))


def test_a_damaged_curve_is_named(tmp_path):
    model = run(tmp_path / "run")
    (model.folder / "metrics.jsonl").write_text('{"step": 1, "train_loss": 2.0, "val_lo')
    with pytest.raises(ValueError, match="metrics.jsonl is damaged"):
        page.make(model)


def test_it_is_one_file_without_an_address(tmp_path):
    html = page.make(run(tmp_path / "run"), "The")
    code = html.replace(CONTENT.search(html)[1], "")  # that is data: there may be anything in a vocabulary
    code = code.replace("http://www.w3.org/2000/svg", "")  # the name of a language, not an address
    assert len(code) > 50_000
    forbidden = r"https?://|\bsrc=|@import|url\(|innerHTML|AdjacentHTML|document\.write|\beval\b"
    assert not re.search(forbidden, code)


def test_the_command(tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    steps = "--steps", 2, "--eval-every", 1
    done = command("train.py", "--data", "fox.txt", *TINY, *steps, "--out", "a run", cwd=tmp_path)
    assert done.code == 0, done.err

    def written(*args):
        line = [sys.executable, "-m", "ministem.knowledge.page", *args]
        env = os.environ | {"PYTHONPATH": str(page.WEB.parents[2])}
        done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
        return done.returncode, done.stderr

    code, said = written("a run", "fox.html")
    assert code == 0 and re.fullmatch(r"fox.html: 0.\d MB; open it in a browser\n", said), said
    assert written("a run", "fox.html")[0] == 0, "a page may be made anew"
    content = json.loads(CONTENT.search((tmp_path / "fox.html").read_text("utf-8"))[1])
    assert content["about"] == "fox.txt" and [row[0] for row in content["curve"]] == [1, 2]
    for run, out, message in (
        ("nowhere", "x.html", "nowhere is not a folder"),
        ("a run", ".", ". is a folder"),
        ("a run", "fox.txt", "it is no page of ours"),
        ("a run", "no/x.html", "no/x.html: No such file"),
    ):
        code, said = written(run, out)
        assert code == 2 and message in said and said.count("\n") == 1, said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a run", "fox.html", "fox.txt"]
    assert (tmp_path / "fox.txt").read_text() == TEXT
