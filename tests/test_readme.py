"""The pages tell the truth about what can be checked: links, anchors, commands and their flags, example code.

The commands in the lessons are checked here too; what else they say, in test_lessons.py."""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMES = "README.md", "results/README.md", "tests/README.md", "ministem/convert/README.md"
PAGES = {name: (ROOT / name).read_text("utf-8") for name in NAMES if (ROOT / name).exists()}
LESSONS = [path.read_text("utf-8") for path in sorted((ROOT / "lessons").glob("*.md"))]
README = PAGES["README.md"]


def prose(page):
    return re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)


def anchors(page):
    """-> what #... can follow the page's address, as GitHub makes it of headings"""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150 and len(README.split()) <= 1000


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name):
    links = re.findall(r"\]\(([^)]+)\)", prose(PAGES[name]))
    assert links
    for link in links:
        if link.startswith("http"):
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text("utf-8")), link


def test_the_page_of_results_shows_every_figure():
    shown = re.findall(r"!\[[^]]+\]\(figures/(\w+\.svg)\)", PAGES["results/README.md"])
    assert sorted(shown) == sorted(path.name for path in (ROOT / "results/figures").iterdir())


# ------------------------------------------------------------------------------------------- commands

OURS = re.compile(r"python (train\.py|sample\.py|(benchmarks|results)/\w+\.py|-m (lessons|ministem)\.).*")


def commands(page):
    """Each command line of ours in a page: in a block of the shell, or between backticks."""
    lines = [part for block in re.findall(r"```sh\n(.*?)```", page, re.S)
             for line in block.splitlines() for part in line.split("&&")]  # fmt: skip
    lines += [" ".join(code.split()) for code in re.findall(r"(?<!`)`(python [^`]+)`", prose(page))]
    return [line.strip() for line in lines if OURS.fullmatch(line.strip())]


ALL = dict.fromkeys(command for page in [*PAGES.values(), *LESSONS] for command in commands(page))


def test_commands_are_found():
    for page in (README, PAGES["results/README.md"], *LESSONS[:1]):
        assert len(commands(page)) >= 3


@functools.cache
def help_of(*script):
    done = subprocess.run([sys.executable, *script, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", ALL)
def test_a_command_exists_with_every_flag_and_choice(command):
    """--help lists each flag that a page uses, and the experiment that it names."""
    words = shlex.split(command, comments=True)[1:]
    script, rest = (words[:2], words[2:]) if words[0] == "-m" else (words[:1], words[1:])
    text = help_of(*script)
    if rest and re.search(rf"[{{,]{rest[0]}[,}}]\S* ?\.\.\.", text):  # a command with flags of its own
        text = help_of(*script, rest[0])
    for word in rest:
        if word.startswith("--"):
            assert re.search(rf"{word}\b", text), f"{script} has no {word}"
    choices = re.search(r"\{([\w,]+)\}$", text.partition("\n\n")[0])  # the usage line ends in them
    if choices and rest:
        assert set(choices[1].split(",")) & set(rest), f"{script} has no {rest[0]}"


def test_the_python_example_learns():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names = {}
    exec(example, names)
    assert names["loss"] < 1.0  # from ln 50 = 3.9


@pytest.mark.parametrize("name", PAGES)
def test_no_placeholder_is_left(name):
    assert not re.findall(r"^[A-Z_]{4,}$|\b(TODO|TBD|FIXME|XXX)\b|[A-Z]+_[A-Z]{3,}", prose(PAGES[name]), re.M)
