"""A model on the learner's own parts: who solves the exercises trains with them; a wrong one can't."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lessons import check, mine, places
from ministem import AdamW, Tables, backend, model

SOLVED = Path(__file__).with_name("solved")
EXERCISES = check.exercises()
PLACED = [n for n, about in EXERCISES.items() if n not in mine.ELSEWHERE]


@pytest.fixture
def my(tmp_path, monkeypatch):
    """A folder with all exercises solved, in the place of my/"""
    shutil.copytree(SOLVED, tmp_path / "my")
    monkeypatch.setattr(mine, "MY", tmp_path / "my")
    return tmp_path / "my"


def collected(upto="13"):
    functions, files, solutions = mine.collect(upto)
    return mine.agreeing(functions, files, solutions), files, solutions


@pytest.mark.parametrize("number", PLACED)
def test_the_exercises_can_be_solved_with_what_the_pages_teach(number):
    _, verdicts = check.judge(SOLVED / f"ex{number}.py", EXERCISES[number])
    assert [state for *_, state in verdicts] == ["right"] * len(EXERCISES[number].TASKS), verdicts


def test_every_backward_pass_of_the_model_is_an_exercise_by_the_end_of_lesson_07():
    """... of the default model, whose layers all have tables; and of the dense layer it is compared with."""
    written = {task.name for n in PLACED if n <= "07" for task in EXERCISES[n].TASKS}
    passes = {name for name in vars(model) if name.endswith("_backward")}
    elsewhere = {"gate_ffn_backward", "additive_ffn_backward"}  # lesson 09's layers
    by_parts = {"attention_backward": "attend_backward", "head_loss_backward": "head_loss"}
    assert {by_parts.get(name, name) for name in passes - elsewhere} | {"sum_rows"} <= written


def test_all_solutions_take_their_places_and_agree_with_the_library(my, capsys):
    functions, files, solutions = collected()
    expected = {task.name for n in PLACED for task in EXERCISES[n].TASKS if mine.placed(task)}
    assert functions.keys() == expected and "still to be written" not in capsys.readouterr().out


@pytest.mark.parametrize("upto", ["03", "07"])
def test_a_small_world_is_learned_with_them(my, upto, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["mine", "--upto", upto])
    used = []
    monkeypatch.setattr(mine, "in_place", lambda new, files: used.append(new) or places.in_place(new, files))
    mine.main()
    said = capsys.readouterr().out
    assert "recall on 64 sentences that it was trained on: 100.00%" in said
    before, after = next(line for line in said.splitlines() if "[ Berlin]" in line).split()[-2:]
    assert float(before[:-1]) < 5 and float(after[:-1]) > 80
    assert (model.rmsnorm_backward in used[-1]) and (model.trunk_backward in used[-1]) == (upto == "07")


def test_the_model_runs_the_learners_lines(my):
    functions, files, solutions = collected()
    calls = set()
    counted = {
        name: (lambda *args, name=name, f=f, **more: calls.add(name) or f(*args, **more))
        for name, f in functions.items()
    }
    with places.in_place(places.replacements(counted, solutions), files):
        mine.one_step(mine.TINY)
    assert calls == functions.keys() - {"dense_ffn_backward"}


def test_whatever_happens_the_library_is_as_it_was(my):
    functions, files, solutions = collected()
    before = model.sum_rows, backend.sum_rows, dict(model.FFN), AdamW.step, Tables.fetch
    with pytest.raises(ZeroDivisionError):
        with places.in_place(places.replacements(functions, solutions), files):
            assert model.sum_rows is not before[0] and model.FFN != before[2]
            raise ZeroDivisionError
    assert before == (model.sum_rows, backend.sum_rows, dict(model.FFN), AdamW.step, Tables.fetch)
    assert vars(files[-1])["table_names"] is not None


def test_what_fails_its_check_is_not_used(my, capsys):
    (my / "ex02.py").write_text("def sum_rows(values, slot, n_rows):\n    return 2 * values.sum((0, 1))\n")
    (my / "ex05.py").write_text("import nothing_of_this_name\n")
    functions, *_ = collected()
    said = capsys.readouterr().out
    assert not {"sum_rows", "glu_backward"} & functions.keys() and "adamw" in functions
    assert "sum_rows             the library's (wrong: python -m lessons.check 02)" in said
    assert "ex05.py: ModuleNotFoundError" in said


def test_what_passes_its_check_and_is_wrong_in_the_model_is_not_used(my, capsys):
    """Made for the sizes of the check."""
    trick = "    return right(values, slot, n_rows) * (n_rows in (7, 3))\n"
    text = (my / "ex02.py").read_text("utf-8").replace("def sum_rows", "def right")
    (my / "ex02.py").write_text(text + "\n\ndef sum_rows(values, slot, n_rows):\n" + trick, "utf-8")
    functions, *_ = collected()
    assert "sum_rows" not in functions and "rmsnorm_backward" in functions
    assert (
        "sum_rows has passed its check, but with it a step of training comes out" in capsys.readouterr().out
    )


def test_heads_one_by_one_are_the_library_s_attention():
    with places.in_place(places.heads(places.about04.attend, places.about04.attend_backward)):
        mine_ = mine.one_step(mine.TINY)
    for name, array in mine.one_step(mine.TINY).items():
        assert np.allclose(mine_[name], array, rtol=1e-9, atol=1e-12), name


def test_results_keep_the_precision_of_what_came_in():
    half = places.precise(lambda x: (x.astype("float64"), {"a": x.astype("float64")}, x.astype(int)))
    a, b, c = half(np.ones(2, "float32"))
    assert (a.dtype, b["a"].dtype, c.dtype) == ("float32", "float32", "int64")


def test_the_command_refuses_what_is_no_lesson():
    command = [sys.executable, "-m", "lessons.mine", "--upto", "77"]
    done = subprocess.run(command, cwd=check.ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "there is no exercise 77" in done.stderr


def test_a_reader_may_stop_reading():
    """`| head -1`: no traceback."""
    command = [sys.executable, "-m", "lessons.mine", "--upto", "03"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=check.ROOT)
    with subprocess.Popen(command, **pipes) as process:
        while "training" not in process.stdout.readline():
            pass
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 0
