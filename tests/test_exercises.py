"""Every exercise: the stub fails, the library passes, each mistake fails and is called by its name."""

import inspect
import shutil
import subprocess
import sys

import numpy as np
import pytest

from lessons import check, run
from ministem import backend, model, optim
from results import measures

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
    assert (
        about.TASKS
        and all(task.mutants or task.limit < np.inf for task in about.TASKS)
        and len(about.HINTS) == 3
    )
    assert "lessons.check" in check.hint(about, number, 1)
    assert ".py:" in check.hint(about, number, 4)


def test_another_mistake_is_shown_by_its_worst_entry():
    _, task, _ = EXERCISES["03"].TASKS

    def off(dout, cache):
        dx, dg = task.solution(dout, cache)
        dx[1, 2, 0] += 7
        return dx, dg * np.nan

    lines, good = check.check(task, off)
    assert not good and "Begin with dg: what else is wrong may come of it." in lines
    assert any("1 of 30 entries are off, most of all dx[1, 2, 0]" in line for line in lines)
    assert any(line.startswith("dg") and "3 of 3 entries are off" in line for line in lines)


def test_shapes_come_first():
    _, task, _ = EXERCISES["03"].TASKS
    lines, good = check.check(task, lambda dout, cache: (dout, dout))
    assert not good and lines[1] == "shape of dg  expected (3,)  got (2, 5, 3)"
    lines, good = check.check(task, lambda dout, cache: (dout,))
    assert not good and lines == ["returns 1 results, expected 2: dx, dg"]
    lines, good = check.check(task, lambda dout, cache: None)
    assert not good and lines == ["returns nothing, expected dx, dg"]


def test_what_would_break_the_model_is_not_well():
    """In the model dout also goes straight on, past the layer: who writes into it spoils another gradient."""
    _, task, _ = EXERCISES["03"].TASKS

    def in_place(dout, cache):
        grads = task.solution(dout, cache)
        dout *= 2
        return grads

    lines, good = check.check(task, in_place)
    assert not good and "writes into dout, which" in lines[0]

    def imaginary(dout, cache):
        dx, dg = task.solution(dout, cache)
        return dx + 1j, dg

    lines, good = check.check(task, imaginary)
    assert not good and "no array of numbers" in lines[0]


def said(number, name, function):
    """What the check says to a wrong solution, by all tasks of that name."""
    lines = []
    for task in EXERCISES[number].TASKS:
        if task.name == name:
            more, good = check.check(task, function)
            lines += [] if good else more
    assert lines, "accepted"
    return "\n".join(lines)


def test_the_first_cause_is_named_and_not_the_first_in_order():
    def wrong_down(dout, cache):  # dh is wrong, and so is all that is computed from it
        gate, up, glu, (h, w_down) = cache
        return model.dense_ffn_backward(dout, (gate, up, glu, (2 * h, 2 * w_down)))

    assert "Begin with dw_down" in said("05", "dense_ffn_backward", wrong_down)

    def wrong_m(p, g, m, v, t, lr, betas, eps, decay, scale=1.0):
        m += g
        v += (1 - betas[1]) * ((g * scale) ** 2 - v)
        p -= lr * m / (np.sqrt(v) + eps)

    assert "Begin with m" in said("07", "adamw", wrong_m)


def test_steps_that_the_page_names_are_compared():
    def backward(dout, cache):
        gate, up, glu, down = cache
        dh, dw_down = model.linear_backward(dout, down)
        du = dh
        da, _ = model.glu_backward(dh, glu)
        dx, dw_gate = model.linear_backward(da, gate)
        more, dw_up = model.linear_backward(du, up)
        return dx + more, dw_gate, dw_up, dw_down

    assert "On the way, du is wrong already: du is what dh should be" in said(
        "05", "dense_ffn_backward", backward
    )


@pytest.mark.parametrize(
    "change, line",
    [
        (lambda dx, dw: (dx, -dw), "dw is the negative of what is due"),
        (lambda dx, dw: (dx, dw / 10), "dw is exactly 1/10 of what is due: a mean"),
        (lambda dx, dw: (dx, dw * 10), "dw is exactly 10 times what is due"),
        (lambda dx, dw: (dx, dw * 1.5), "dw is 1.5 times what is due"),
        (lambda dx, dw: (dx, dw.T), "dw is transposed"),
        (lambda dx, dw: (dx, dw.T.reshape(dw.shape)), "dw is transposed and then reshaped"),
        (lambda dx, dw: (dx, 0 * dw), "dw is all zeros"),
        (lambda dx, dw: (dx, dw + 1), "dw is too large by the same number everywhere"),
        (
            lambda dx, dw: (dx, np.concatenate([dw[:2], 3 * dw[2:]])),
            "dw is off in [2] along its first axis only",
        ),
    ],
)
def test_what_one_can_see_is_said(change, line):
    text = said("03", "linear_backward", lambda *inputs: change(*model.linear_backward(*inputs)))
    assert line in text, text


def test_results_that_have_changed_places_are_told():
    def swapped(dout, cache):
        dx, dblock, dw_up, dw_down = model.gate_ffn_backward(dout, cache)
        return dx, dw_up, dblock, dw_down

    assert "shape of dblock" in said("09", "gate_ffn_backward", swapped)

    def swapped(dout, cache):
        dx, dw_gate, dw_up, dw_down = model.dense_ffn_backward(dout, cache)
        return dx, dw_up, dw_gate, dw_down

    assert "dw_up is what dw_gate should be: have the two changed places?" in said(
        "05", "dense_ffn_backward", swapped
    )


def test_a_small_input_is_shown_that_can_be_redone_by_hand():
    text = said("02", "sum_rows", lambda values, slot, n_rows: 3 * backend.sum_rows(values, slot, n_rows))
    assert (
        "values = [[[ 1.] [ 10.]] [[ 100.] [1000.]]]" in text
        and "out: expected = [[1101.] [ 10.] [ 0.]]" in text
    )


def spoils(name, number):
    """The library's solution of a task, which also writes into an argument"""
    [task] = [task for task in EXERCISES[number].TASKS if task.name == name][:1]

    def function(*inputs):
        got = task.solution(*inputs)
        for a in inputs:
            if isinstance(a, np.ndarray) and a.dtype.kind == "i":
                a += 1
                return got
        inputs[0][...] = 0
        return got

    return function


@pytest.mark.parametrize(
    "number, name",
    [("02", "sum_rows"), ("03", "head_loss"), ("04", "attend"), ("08", "adam_rows"),
     ("09", "gate_ffn_forward"), ("11", "fetch"), ("13", "running_means")],
)  # fmt: skip
def test_an_input_that_was_written_into_is_named(number, name):
    assert "writes into" in said(number, name, spoils(name, number))


def test_a_gradient_that_is_not_to_be_changed_stays():
    def adamw(p, g, m, v, *rest):
        optim.adamw(p, g, m, v, *rest)
        g *= 0.4

    assert "writes into g" in said("07", "adamw", adamw)


def test_new_arrays_instead_of_changed_ones_are_refused():
    def adamw(p, g, m, v, *rest):
        p, m, v = p.copy(), m.copy(), v.copy()
        optim.adamw(p, g, m, v, *rest)
        return p, m, v

    assert "it shall change p, m, v in place" in said("07", "adamw", adamw)


def test_all_cosines_at_once_take_too_much():
    def at_once(vectors, B=256):
        return measures.angular_spread(vectors, len(vectors))

    assert "MB at once" in said("10", "angular_spread", at_once)


@pytest.mark.parametrize(
    "number, name, wrap", [("03", "linear_backward", list), ("05", "glu_backward", np.array)]
)
def test_a_list_or_an_array_of_results_is_as_good_as_a_tuple(number, name, wrap):
    [task] = [task for task in EXERCISES[number].TASKS if task.name == name]
    assert check.check(task, lambda *inputs: wrap(task.solution(*inputs)))[1]


@pytest.mark.parametrize(
    "number, name", [("11", "fetch"), ("12", "recipe"), ("12", "override"), ("10", "angular_spread")]
)
def test_what_cannot_be_read_is_told_in_words(number, name):
    text = said(number, name, lambda *inputs: 7)
    assert "returns something that cannot be read (" in text and "see what the stub says" in text


def test_a_right_prediction_gets_its_reason():
    [task] = EXERCISES["01"].TASKS
    lines, good = check.check(task, task.solution)
    assert good and lines[-1].startswith("Why: ")


def test_a_mutant_cannot_outlive_the_line_it_breaks():
    with pytest.raises(AssertionError, match="stands 0 times"):
        check.mutant(check.slopes, "no such line", "")


RIGHT = """from ministem.model import head_loss_forward, linear_backward, rmsnorm_backward

def head_loss(x, head, targets):
    loss, (dx, dhead) = head_loss_forward(x, head, targets)
    return loss, dx, dhead
"""


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
    mine.write_text("\ndef linear_backward(dout, cache):\n    return dout / nothing\n", "utf-8")
    code, said = lessons_check("03")
    assert code == 1 and "my/ex03.py:3: return dout / nothing\n  NameError" in said
    assert "rmsnorm_backward\n  still to be written" in said
    mine.write_text("def rmsnorm_backward(dout, cache):\n    pass\nraise NotImplementedError\n", "utf-8")
    code, said = lessons_check("03")
    assert code == 1 and "outside of any function" in said and "Traceback" not in said
    mine.write_text("import sys\nsys.exit(0)\n", "utf-8")
    assert lessons_check("03")[0] == 1
    mine.write_text(RIGHT, "utf-8")
    code, said = lessons_check("3")
    assert code == 0 and "testing my/ex03.py" in said and "All is well." in said
    assert "dout * g" in lessons_check("03", "--hint", "2")[1]
    assert "model.py" in lessons_check("03", "--hint", "4")[1]
    assert lessons_check("77")[0] == 2
