"""Every exercise: the stub fails, the library passes, each mistake fails and is called by its name."""

import inspect
import shutil
import subprocess
import sys

import numpy as np
import pytest

from lessons import check, run

EXERCISES = check.exercises()
TASKS = [(number, task) for number, about in EXERCISES.items() for task in about.TASKS]
MUTANTS = [(number, task, sentence) for number, task in TASKS for sentence in task.mutants]


def test_every_page_has_an_exercise():
    assert EXERCISES and EXERCISES.keys() == run.pages().keys()


def ids(case):
    return str(getattr(case, "name", case))


@pytest.mark.parametrize("number, task", TASKS, ids=ids)
def test_the_stub_is_still_to_be_written(number, task):
    stub = getattr(check.load(check.ROOT / f"lessons/exercises/ex{number}.py"), task.name)
    assert inspect.signature(stub) == inspect.signature(task.solution)
    with pytest.raises(NotImplementedError, match=f"lesson {number}"):
        check.check(task, stub)


@pytest.mark.parametrize("number, task", TASKS, ids=ids)
def test_the_library_passes(number, task):
    lines, good = check.check(task, task.solution)
    assert good, lines


@pytest.mark.parametrize("number, task, sentence", MUTANTS, ids=ids)
def test_a_mistake_fails_and_is_named(number, task, sentence):
    lines, good = check.check(task, task.mutants[sentence])
    assert not good
    named = [line for line in lines if "known mistake" in line]
    assert named == [f"This is a known mistake: {sentence}"], lines


@pytest.mark.parametrize("number", EXERCISES)
def test_an_exercise_has_mistakes_and_three_hints(number):
    about = EXERCISES[number]
    assert about.TASKS and all(task.mutants for task in about.TASKS) and len(about.HINTS) == 3
    assert "lessons.check" in check.hint(about, number, 1)
    assert ".py:" in check.hint(about, number, 4)


def test_another_mistake_is_shown_by_its_worst_entry():
    [task] = EXERCISES["03"].TASKS

    def off(dout, cache):
        dx, dg = task.solution(dout, cache)
        dx[1, 2, 0] += 7
        return dx, dg * np.nan

    lines, good = check.check(task, off)
    assert not good and "The first wrong one is dx." in lines
    assert any("1 of 30 entries are off, most of all dx[1, 2, 0]" in line for line in lines)
    assert any(line.startswith("dg") and "3 of 3 entries are off" in line for line in lines)


def test_shapes_come_first():
    [task] = EXERCISES["03"].TASKS
    lines, good = check.check(task, lambda dout, cache: (dout, dout))
    assert not good and lines[-1] == "shape of dg  expected (3,)  got (2, 5, 3)"
    lines, good = check.check(task, lambda dout, cache: dout)
    assert not good and lines == ["returns 1 results, expected 2: dx, dg"]
    lines, good = check.check(task, lambda dout, cache: None)
    assert not good and lines == ["returns nothing, expected dx, dg"]


def test_what_would_break_the_model_is_not_well():
    """In the model dout also goes straight on, past the layer: who writes into it spoils another gradient."""
    [task] = EXERCISES["03"].TASKS

    def in_place(dout, cache):
        grads = task.solution(dout, cache)
        dout *= 2
        return grads

    lines, good = check.check(task, in_place)
    assert not good and "writes into dout or the cache" in lines[0]

    def imaginary(dout, cache):
        dx, dg = task.solution(dout, cache)
        return dx + 1j, dg

    lines, good = check.check(task, imaginary)
    assert not good and "no array of numbers" in lines[0]


def test_a_mutant_cannot_outlive_the_line_it_breaks():
    with pytest.raises(AssertionError, match="stands 0 times"):
        check.mutant(check.slopes, "no such line", "")


@pytest.fixture
def clone(tmp_path):
    """A copy of the lessons, so that a my/ of this repository stays as it is."""
    shutil.copytree(check.ROOT / "lessons", tmp_path / "lessons")
    (tmp_path / "ministem").symlink_to(check.ROOT / "ministem")

    def lessons_check(*args):
        command = [sys.executable, "-m", "lessons.check", *args]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return lessons_check, tmp_path / "my" / "ex03.py"


def test_a_learner_starts_fails_and_passes(clone):
    lessons_check, mine = clone
    code, said = lessons_check("03")
    assert (code, said) == (2, "check.py: there is no my/ex03.py yet: python -m lessons.check 03 --start\n")
    assert lessons_check("03", "--start")[0] == 0 and mine.exists()
    code, said = lessons_check("03", "--start")
    assert code == 2 and "there already" in said
    code, said = lessons_check("03")
    assert code == 1 and "still to be written" in said
    mine.write_text("\ndef rmsnorm_backward(dout, cache):\n    return dout / nothing\n", "utf-8")
    code, said = lessons_check("03")
    assert code == 1 and "my/ex03.py:3: return dout / nothing\nNameError" in said
    mine.write_text("def rmsnorm_backward(dout, cache):\n    pass\nraise NotImplementedError\n", "utf-8")
    code, said = lessons_check("03")
    assert code == 1 and "outside of any function" in said and "Traceback" not in said
    mine.write_text("import sys\nsys.exit(0)\n", "utf-8")
    assert lessons_check("03")[0] == 1
    mine.write_text("from ministem.model import rmsnorm_backward\n", "utf-8")
    code, said = lessons_check("3")
    assert code == 0 and "testing my/ex03.py" in said and "All is well." in said
    assert "dout * g" in lessons_check("03", "--hint", "2")[1]
    assert lessons_check("77")[0] == 2
