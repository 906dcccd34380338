"""Every lesson runs as its page shows it; the runner notices when it does not."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lessons import run
from lessons.figures.__main__ import HERE as FIGURES
from lessons.figures.__main__ import figures
from results.plot import draw

ROOT = Path(__file__).resolve().parent.parent
PAGES = run.pages()


@pytest.fixture(autouse=True)
def in_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def prose(path):
    return run.FENCE.sub("", path.read_text("utf-8"))


# ------------------------------------------------------------------------------------------ the pages


def test_all_pages_are_found():
    assert list(PAGES) == [f"{n:02}" for n in range(1, 14)]


@pytest.mark.parametrize("number", PAGES)
def test_a_page_runs_and_prints_what_it_shows(number):
    problems = run.execute(PAGES[number])
    assert not problems, "\n".join(f"{PAGES[number].name}:{line}: {what}" for line, what, *_ in problems)


@pytest.mark.parametrize("number", PAGES)
def test_a_page_has_its_parts(number):
    """Question, what is built, minutes, needs, seconds; a figure with its caption; the box; the check."""
    text = PAGES[number].read_text("utf-8")
    assert text.startswith(f"# {number} · ")
    opening = text.split("\n\n")[1].replace("\n", " ")
    bold = r"[*]{2}%s[*]{2}"
    parts = [bold % "Question:" + r" .+\?", bold % "You build:" + " .+", bold % r"\d+ minutes",
             bold % "needs" + " .+", bold % r"\d+ CPU seconds?"]  # fmt: skip
    assert re.fullmatch(" · ".join(parts), opening), opening
    words = " ".join(text.split())
    shown = re.findall(r"!\[[^]]+\]\(figures/(\w+)\.svg\)", words)
    assert shown, "no figure"
    for figure in shown:
        sentence = " ".join(figures()[figure].__doc__.split())
        assert sentence in words, f"the caption of {figure} says something else than the figure"
        assert f"`python -m lessons.figures {figure}`" in words, f"the caption of {figure} names no command"
    assert "> **Differs from the paper.**" in text
    assert f"python -m lessons.check {number}\n" in text
    assert (ROOT / f"lessons/exercises/ex{number}.py").exists()


@pytest.mark.parametrize("number", PAGES)
def test_a_page_can_be_read_in_one_sitting(number):
    assert run.own_lines(PAGES[number]) <= 120, "a page that needs more code is two pages"
    assert 700 <= len(prose(PAGES[number]).split()) <= 1200


def test_what_page_11_says_of_caches_is_in_the_record():
    record = json.loads((ROOT / "results/cache.json").read_text("utf-8"))["rates"]
    rates = [r for r in record if r["vocab_size"] == 2048]
    tokens = [r for r in rates if r["stream"] == "tokens"]
    assert {r["lfu"] > 0.8 for r in tokens if r["size"] <= 512} == {False} and tokens[-1]["lfu"] > 0.8
    [large] = [r for r in record if (r["vocab_size"], r["stream"], r["size"]) == (8192, "tokens", 2048)]
    assert large["lfu"] > 0.8 and large["share_of_rows"] == 0.25
    assert all(r["lru"] > r["lfu"] - 0.01 and r["fixed"] > r["lru"] - 0.03 for r in tokens)
    small = [r for r in rates if r["stream"] == "batches" and r["size"] < r["rows_per_batch"] == 686]
    assert len(small) == 5 and all(r["lfu"] < 0.01 and r["lru"] < 0.01 < r["fixed"] for r in small)


@pytest.mark.parametrize("number", PAGES)
def test_links_lead_somewhere(number):
    for target in re.findall(r"\]\(([^)#]+)", prose(PAGES[number])):
        if not target.startswith("http"):
            assert (ROOT / "lessons" / target).exists(), target


def test_the_map_names_every_page():
    readme = (ROOT / "lessons/README.md").read_text("utf-8")
    for number, path in PAGES.items():
        title = path.read_text("utf-8").splitlines()[0].split(" · ")[1]
        assert f"| {number} | [{title}]({path.name}) |" in readme


# ----------------------------------------------------------------------------------------- the runner

PAGE = """# 99 · A page

```python
import math
x = math.pi
print(x, "and more")
```

```output ~1e-2
3.14159 and more
```

```python src=ministem/model.py:flat
def flat(x):
    \"\"\"(B,T,·) -> (B*T,·): one row per position, so that a product is one BLAS call.\"\"\"
    return x.reshape(-1, x.shape[-1])
```

```python skip
never(run)
```

```python
print(x > 3)
```

```output
True
```
"""


@pytest.fixture
def page(tmp_path):
    path = tmp_path / "99_page.md"
    path.write_text(PAGE, "utf-8")
    return path


def test_a_right_page_has_no_problems(page):
    assert run.execute(page) == []


@pytest.mark.parametrize(
    "right, wrong, line, what",
    [
        ("3.14159", "3.2", 9, "+3.14159"),
        ("and more\n```", "and less\n```", 9, "and less"),
        ("True", "False", 27, "-False"),
        ("one row", "two rows", 13, "ministem/model.py:flat"),
        ("```output\nTrue\n```", "", 23, "no output block follows"),
        ("```python skip", "```pyhton skip", 19, "no such kind"),
    ],
)
def test_a_page_that_is_wrong_is_told_where(page, right, wrong, line, what):
    page.write_text(PAGE.replace(right, wrong), "utf-8")
    [problem] = run.execute(page)
    assert problem[0] == line and what in problem[1]


def test_numbers_within_the_tolerance_are_right(page):
    page.write_text(PAGE.replace("3.14159", "3.15"), "utf-8")
    assert run.execute(page) == []


def test_an_error_names_the_line_of_the_page(page):
    page.write_text(PAGE.replace("print(x > 3)", "y = 1\nprint(x / 0)"), "utf-8")
    with pytest.raises(ZeroDivisionError) as error:
        run.execute(page)
    last = error.traceback[-1]
    assert (Path(last.path).name, last.lineno + 1) == ("99_page.md", 25)


def test_update_writes_what_is_printed_and_quoted(page):
    broken = PAGE.replace("3.14159", "2").replace("True", "").replace("one row", "two rows")
    page.write_text(broken.replace("```output\n\n```", ""), "utf-8")
    run.update(page, run.execute(page))
    assert run.execute(page) == []
    assert "3.14159" in page.read_text("utf-8") and "one row" in page.read_text("utf-8")


def test_methods_and_constants_can_be_quoted():
    assert run.source_of("ministem/config.py:Config.head_dim").startswith("@property\ndef head_dim(self):")
    assert run.source_of("ministem/tables.py:CHUNK").startswith("CHUNK = ")
    with pytest.raises(ValueError, match="no nothing in ministem/model.py"):
        run.source_of("ministem/model.py:nothing")


def test_a_reader_sees_what_a_page_prints(page):
    screen = io.StringIO()
    run.execute(page, echo=screen)
    assert "-- line 4: import math\n3.14159" in screen.getvalue()


def test_the_command_runs_a_page_and_refuses_others():
    def lessons_run(*args):
        return subprocess.run([sys.executable, "-m", "lessons.run", *args], capture_output=True, text=True)

    done = lessons_run("03")
    assert done.returncode == 0 and "as on the page" in done.stdout, done.stdout + done.stderr
    done = lessons_run("77")
    assert done.returncode == 2 and "there is no lesson 77" in done.stderr


def test_a_reader_may_stop_reading():
    """`| head -1`: no traceback."""
    command = [sys.executable, "-m", "lessons.run", "03"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("-- line")
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 0


# ---------------------------------------------------------------------------------------- the figures


def test_every_drawing_has_its_function_and_every_function_its_drawing():
    assert {path.stem for path in FIGURES.glob("*.svg")} == figures().keys() and figures()


def test_without_matplotlib_one_line_says_what_to_install():
    """And a list of the figures needs none: the tests above run without it."""
    code = "import sys; sys.modules['matplotlib'] = None; from lessons.figures.__main__ import {0}; {0}()"
    done = subprocess.run([sys.executable, "-c", code.format("figures")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([sys.executable, "-c", code.format("main")], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "[lessons]" in done.stderr


@pytest.mark.parametrize("name", sorted(path.stem for path in FIGURES.glob("*.svg")))
def test_a_figure_is_drawn_from_what_is_in_the_repository(name, tmp_path):
    matplotlib = pytest.importorskip("matplotlib", reason='needs matplotlib: pip install -e ".[lessons]"')
    committed = (FIGURES / f"{name}.svg").read_bytes()
    assert len(committed) < 40_000 and b"<title>" in committed
    by = re.search(rb"Matplotlib v([\d.]+)", committed)[1].decode()
    if by != matplotlib.__version__:
        pytest.skip(f"drawn by matplotlib {by}, this is {matplotlib.__version__}")
    assert draw(name, figures()[name], tmp_path).read_bytes() == committed
