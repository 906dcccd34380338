"""Check an exercise:  python -m lessons.check 03

    python -m lessons.check 03 --start     copies lessons/exercises/ex03.py to my/ex03.py: yours to fill in
    python -m lessons.check 03             tests my/ex03.py
    python -m lessons.check 03 --hint      a hint; --hint 2 and 3 are more, --hint 4 the answer's place

An exercise is two files. lessons/exercises/ex03.py is the stub: the library function's signature, the
shapes, `raise NotImplementedError("lesson 03")`. lessons/exercises/about03.py says how it is checked: TASKS,
a list of Task (usually of one), and HINTS, three sentences. The solution of a task is the library function:
there is no other copy of it.

Everything is float64 with sizes that differ, ids that repeat and a random upstream gradient, and seeded.
"""

import argparse
import copy
import importlib.util
import inspect
import shutil
import sys
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ministem.run.cli import fail

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-6  # of the largest entry
MY = ROOT / "my"


@dataclass
class Task:
    """One function that the learner writes."""

    solution: Callable  # a function of the library; the learner's function has its name and signature
    results: tuple[str, ...]  # names of what it returns, in order: ("dx", "dg"); of a forward pass ("out",);
    # of a function that returns nothing, the arguments that it changes
    args: Callable  # rng -> a dict of arguments: of `forward` if there is one, else of the function itself
    forward: Callable | None = None  # the solution is its backward: (dout, cache) -> gradients
    mutants: dict = field(default_factory=dict)  # the sentence that names a mistake -> a function with it
    name: str | None = None  # of the learner's function, if it is not the library function's
    look: Callable | None = None  # (arguments after the call, what came back) -> the arrays to compare,
    # where what comes back is something else, or what happened to the arguments counts as well

    def __post_init__(self):
        self.name = self.name or self.solution.__name__


def slopes(f, x, h=1e-6):
    """The gradient of the number f(x), from values of f alone: nudge each entry of x up and down by h."""
    grad = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        nudge = np.zeros_like(x)
        nudge[i] = h
        grad[i] = (f(x + nudge) - f(x - nudge)) / (2 * h)
    return grad


def mutant(function, *changes):
    """The library function with a mistake in it: mutant(f, old, new, old, new, ...) changes its source text.

    Each `old` must stand in the source exactly once: a mutant cannot outlive the line that it breaks."""
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {function.__name__}"
        source = source.replace(old, new)
    names = dict(function.__globals__)
    exec(source, names)
    return names[function.__name__]


def arrays(results, expected):
    """What a function returned -> a list of float64 arrays, or a sentence that says what is wrong with it."""
    results = results if isinstance(results, tuple) else (results,)
    if expected == ("out",):
        results = results[:1]  # a forward pass: what it caches is its own business
    if len(results) != len(expected):
        return f"returns {len(results)} results, expected {len(expected)}: {', '.join(expected)}"
    dense = [result.to_dense() if hasattr(result, "to_dense") else result for result in results]
    try:  # "same_kind": a complex number does not lose half of itself
        return [np.asarray(result).astype("float64", casting="same_kind") for result in dense]
    except (TypeError, ValueError):
        return f"returns something that is no array of numbers: expected {', '.join(expected)}"


def worst(name, got, want):
    """-> None if got equals want but for rounding, else a sentence with the entry that is farthest off."""
    size = np.abs(want).max(initial=0)
    off = np.where(np.isfinite(got), np.abs(got - want), np.inf)
    if (off <= TOLERANCE * max(size, 1e-12)).all():
        return None
    i = np.unravel_index(off.argmax(), off.shape)
    values = f"got {got[i]:.6g}, expected {want[i]:.6g}"
    if not i:
        return values
    wrong = (off > TOLERANCE * size).sum()
    return f"{wrong} of {off.size} entries are off, most of all {name}[{', '.join(map(str, i))}]: {values}"


def unchanged(given, before):
    """Whether two arrays, or tuples and dicts of such, hold the same numbers."""
    if isinstance(before, dict):
        given, before = tuple(given.values()), tuple(before.values())
    if isinstance(before, tuple):
        return all(unchanged(g, b) for g, b in zip(given, before, strict=True))
    return np.array_equal(given, before)


def equal(made, got):
    """Whether the results of two functions (as from `arrays`) are the same but for rounding."""
    if isinstance(made, str):
        return False
    return all(m.shape == g.shape and not worst("", g, m) for m, g in zip(made, got, strict=True))


def check(task, function):
    """Try the learner's function -> lines to show, and whether all is well. Raises what it raises."""
    rng = np.random.default_rng(3)
    args = task.args(rng)
    inputs = args
    if task.forward:
        out, cache = task.forward(**copy.deepcopy(args))
        inputs = dict(dout=rng.standard_normal(np.shape(out)), cache=cache)

    def call(f):
        given = copy.deepcopy(inputs)
        returned = f(*given.values())
        if task.forward and not unchanged(given, inputs):
            return "writes into dout or the cache, which others still read: make new arrays"
        if returned is None and given.keys() >= set(task.results):
            returned = tuple(given[name] for name in task.results)
        if returned is None:
            return f"returns nothing, expected {', '.join(task.results)}"
        look = task.look(tuple(given.values()), returned) if task.look else returned
        return arrays(look, task.results)

    want, got = call(task.solution), call(function)
    if isinstance(got, str):
        return [got], False
    lines, wide = [], max(map(len, task.results))
    for name, g, w in zip(task.results, got, want, strict=True):
        verdict = "ok" if g.shape == w.shape else f"got {g.shape}"
        lines.append(f"shape of {name:{wide}}  expected {w.shape}  {verdict}")
    known = [sentence for sentence, wrong in task.mutants.items() if equal(call(wrong), got)]
    known = [f"This is a known mistake: {sentence}" for sentence in known]
    if any(g.shape != w.shape for g, w in zip(got, want, strict=True)):
        return lines + known, False

    first = None
    if task.forward:  # results are the gradients of forward's float arguments, in order
        floats = [name for name, a in args.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
        for name, argument, g in zip(task.results, floats, got, strict=False):
            def loss(x, argument=argument):
                return np.sum(inputs["dout"] * task.forward(**{**args, argument: x})[0])

            off = worst(name, g, slopes(loss, args[argument]))
            lines.append(f"{name:{wide}} against slopes   {off or 'ok'}")
            first = first or (off and name)
    for name, g, w in zip(task.results, got, want, strict=True):
        off = worst(name, g, w)
        lines.append(f"{name:{wide}} against library  {off or 'ok'}")
        first = first or (off and name)
    if first:
        lines += [f"The first wrong one is {first}.", *known]
    return lines, not first


def load(path):
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exercises():
    """-> {"03": the module about03}"""
    found = sorted((ROOT / "lessons/exercises").glob("about[0-9][0-9].py"))
    return {path.stem[-2:]: load(path) for path in found}


def hint(about, lesson, n):
    """The n-th hint, and how to get the next; after the last one, where the answer is."""
    if n > len(about.HINTS):
        places = []
        for task in about.TASKS:
            file = Path(inspect.getsourcefile(task.solution)).relative_to(ROOT)
            places.append(f"{file}:{inspect.getsourcelines(task.solution)[1]} has {task.solution.__name__}.")
        return "\n".join(dict.fromkeys(places))
    more = "the next" if n < len(about.HINTS) else "the place of the answer"
    return f"{about.HINTS[n - 1]}\n({more}: python -m lessons.check {lesson} --hint {n + 1})"


def main():
    parser = argparse.ArgumentParser(prog="python -m lessons.check", description="Check an exercise.")
    parser.add_argument("lesson", help="its number, like 03")
    parser.add_argument("--start", action="store_true", help="make my/ex03.py, to be filled in by you")
    parser.add_argument("--hint", type=int, nargs="?", const=1, choices=range(1, 5), help="1 if not said")
    args = parser.parse_args()
    lesson, there = args.lesson.zfill(2), exercises()
    if lesson not in there:
        fail(f"there is no exercise {lesson}; there are {', '.join(there)}")
    mine, stub = MY / f"ex{lesson}.py", ROOT / f"lessons/exercises/ex{lesson}.py"
    shown = mine.relative_to(ROOT)
    if args.hint:
        return print(hint(there[lesson], lesson, args.hint))
    if args.start:
        if mine.exists():
            fail(f"{shown} is there already; move it away to start again")
        MY.mkdir(exist_ok=True)
        shutil.copy(stub, mine)
        return print(f"{shown} is yours now. Fill it in, then: python -m lessons.check {lesson}")
    if not mine.exists():
        fail(f"there is no {shown} yet: python -m lessons.check {lesson} --start")

    print(f"testing {shown}")
    task = None
    try:
        module, good = load(mine), True
        for task in there[lesson].TASKS:
            function = getattr(module, task.name, None)
            if function is None:
                fail(f"{shown} has no function {task.name}")
            lines, ok = check(task, function)
            print(task.name, *("  " + line for line in lines), sep="\n")
            good &= ok
    except NotImplementedError:
        if task is None:
            sys.exit(f"{shown} raises NotImplementedError outside of any function: take that line out")
        sys.exit(f"{task.name} in {shown} is still to be written")
    except (Exception, SystemExit) as error:  # sys.exit(0) in it would look as if all were well
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(mine)]
        at = f"{shown}:{frames[-1].lineno}: {frames[-1].line}\n" if frames else ""
        sys.exit(f"{at}{type(error).__name__}: {error}")
    print("All is well." if good else f"Not yet. (python -m lessons.check {lesson} --hint helps)")
    sys.exit(not good)


if __name__ == "__main__":
    main()
