"""What the checks say to attempts at the exercises: 158 wrong and 34 right ones (attempts.py)."""

from pathlib import Path

import attempts
import pytest

from lessons import check

SOLVED = Path(__file__).with_name("solved")
EXERCISES = check.exercises()
# a line that begins so names a cause; a list of the rows that are off, or how many entries, is none
NAMING = "This is a known mistake", "What one can see", "On the way", "writes into", "returns ", "takes "


def judged(attempt, folder):
    """-> whether all tasks find the attempt right, and the lines that name what is wrong with it"""
    number, name, old, new = attempt
    text = (SOLVED / f"ex{number}.py").read_text("utf-8")
    before, function = text[: text.index(f"def {name}(")], text[text.index(f"def {name}(") :]
    assert old in function, f"{old!r} is not in {name}"
    path = folder / f"ex{number}.py"
    path.write_text(before + function.replace(old, new, 1), "utf-8")
    _, verdicts = check.judge(path, EXERCISES[number])
    lines = [line for task, lines, state in verdicts if task == name and state != "right" for line in lines]
    crash = [line for line in lines if line.startswith(f"my/ex{number}.py:")]
    named = [
        line for line in lines if line.startswith(NAMING) and not ("off in [" in line or "are off" in line)
    ]
    kept = [line for line in lines if "(to stay)" in line and "off" in line]
    return all(state == "right" for task, _, state in verdicts if task == name), crash + named + kept


@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning")
def test_no_wrong_attempt_is_accepted_and_nine_of_ten_have_their_cause_named(tmp_path):
    assert len(attempts.WRONG) > 100
    found = [judged(attempt, tmp_path) for attempt in attempts.WRONG + attempts.AFRESH]
    accepted = [a for a, (right, _) in zip(attempts.WRONG + attempts.AFRESH, found, strict=True) if right]
    assert not accepted
    named = [bool(lines) for _, lines in found]
    n = len(attempts.WRONG)
    assert sum(named[:n]) >= 0.9 * n and sum(named[n:]) >= 0.6 * len(attempts.AFRESH), (
        sum(named[:n]), sum(named[n:])
    )  # fmt: skip


def test_no_right_attempt_is_refused(tmp_path):
    assert len(attempts.RIGHT) >= 30
    refused = [attempt for attempt in attempts.RIGHT if not judged(attempt, tmp_path)[0]]
    assert not refused
