"""The README tells the truth about what can be checked: line counts, files, flags, links.

The flags in the lessons are checked here too; what else they say, in test_lessons.py."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_links_lead_somewhere():
    headings = re.findall(r"^#+ (.+)$", README, re.M)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)]+)\)", README):
        if target.startswith("#"):
            assert target[1:] in anchors, target
        elif not target.startswith("http"):
            assert (ROOT / target).exists(), target


TEXTS = [README, *(path.read_text("utf-8") for path in sorted((ROOT / "lessons").glob("*.md")))]
SCRIPTS = ("train.py", "sample.py", "benchmarks/", "results/", "-m lessons.", "-m ministem.")
COMMANDS = [
    part.strip()
    for block in re.findall(r"```sh\n(.*?)```", "".join(TEXTS), re.S)
    for line in block.splitlines()
    for part in line.split("&&")
    if part.strip().startswith(tuple(f"python {script}" for script in SCRIPTS))
]


def test_commands_are_found():
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize("command", dict.fromkeys(COMMANDS))
def test_every_flag_of_a_command_exists(command):
    """--help lists each flag that the README or a lesson uses."""
    words = shlex.split(command, comments=True)[1:]
    script, flags = (words[:2], words[2:]) if words[0] == "-m" else (words[:1], words[1:])
    done = subprocess.run([sys.executable, *script, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for flag in flags:
        if flag.startswith("--"):
            assert re.search(rf"{flag}\b", done.stdout), f"{script} has no {flag}"


def test_the_python_example_learns():
    (example,) = re.findall(r"```python\n(.*?)```", README, re.S)
    names = {}
    exec(example, names)
    assert names["loss"] < 1.0  # from ln 50 = 3.9


def test_no_placeholder_is_left():
    assert not re.findall(r"^[A-Z_]{4,}$|[A-Z]+_[A-Z]{3,}", README, re.M)
