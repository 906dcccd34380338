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
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from lessons.causes import at_hand, multiple, relation, worst
from ministem.run.cli import fail

ROOT = Path(__file__).resolve().parent.parent
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
    causes: tuple[str, ...] = ()  # results in the order in which one is wrong because of those before it.
    # By default the last comes first: that is how a backward pass goes
    steps: tuple[str, ...] = ()  # variables on the way, named so on the page, in the order of their making
    small: dict | None = None  # arguments small enough to be redone by hand
    limit: float = np.inf  # bytes that may be in memory at once
    why: str = ""  # what to say to a right answer

    def __post_init__(self):
        self.name = self.name or self.solution.__name__
        self.causes = self.causes or self.results[::-1]


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


class Misuse(Exception):
    """What came back cannot be compared; the message says why."""


def arrays(results, expected, shapes=()):
    """What a function returned -> a list of float64 arrays. Raises Misuse. shapes: of what is due; one array
    that holds just these may come instead of a tuple."""
    stacked = isinstance(results, np.ndarray) and shapes == [results.shape[1:]] * len(results)
    if len(expected) > 1 and (isinstance(results, list) or stacked):
        results = tuple(results)
    results = results if isinstance(results, tuple) else (results,)
    if expected == ("out",):
        results = results[:1]  # a forward pass: what it caches is its own business
    if len(results) != len(expected):
        raise Misuse(f"returns {len(results)} results, expected {len(expected)}: {', '.join(expected)}")
    dense = [result.to_dense() if hasattr(result, "to_dense") else result for result in results]
    try:  # "same_kind": a complex number does not lose half of itself
        return [np.asarray(result).astype("float64", casting="same_kind") for result in dense]
    except (TypeError, ValueError):
        expected = ", ".join(expected)
        raise Misuse(f"returns something that is no array of numbers: expected {expected}") from None


def changed(given, before):
    """Which arguments hold other numbers than before the call -> their names. (What is no array, and no tuple
    or dict of such, may be anything.)"""

    def same(g, b):
        if isinstance(b, dict):
            return same(tuple(g.values()), tuple(b.values()))
        if isinstance(b, tuple | list):
            return len(g) == len(b) and all(map(same, g, b))
        return not isinstance(b, np.ndarray) or np.array_equal(g, b, equal_nan=b.dtype.kind in "fc")

    return [name for name in before if not same(given[name], before[name])]


def equal(made, got):
    """Whether the results of two functions (as from `arrays`) are the same but for rounding."""
    return all(m.shape == g.shape and not worst("", g, m) for m, g in zip(made, got, strict=True))


def ask(task, inputs, f, shapes=()):
    """Call f with copies of the inputs -> its results as from `arrays`, and its variables when it returned.
    Raises Misuse, and what f raises."""
    given, variables, code = copy.deepcopy(inputs), {}, getattr(f, "__code__", None)
    names = ", ".join(task.results)

    def spy(frame, event, arg):
        if event == "return" and frame.f_code is code:
            variables.update(frame.f_locals)

    peak = 0
    if task.limit < np.inf:
        tracemalloc.start()
        tracemalloc.reset_peak()
        peak = -tracemalloc.get_traced_memory()[0]
    sys.setprofile(spy)
    try:
        returned = f(*given.values())
        peak += tracemalloc.get_traced_memory()[1]
    finally:
        sys.setprofile(None)
        if task.limit < np.inf:
            tracemalloc.stop()
    if peak > task.limit:
        raise Misuse(
            f"takes {peak / 1e6:.1f} MB at once; a block at a time takes less than {task.limit / 1e6:.1f}"
        )
    spoilt = [name for name in changed(given, inputs) if name not in task.results]
    if spoilt:
        raise Misuse(f"writes into {spoilt[0]}, which others still read: make new arrays")
    if given.keys() >= set(task.results):
        if returned is not None:
            raise Misuse(f"returns something; it shall change {names} in place: m += ..., not m = m + ...")
        returned = tuple(given[name] for name in task.results)
    if returned is None:
        raise Misuse(f"returns nothing, expected {names}")
    try:
        found = task.look(tuple(given.values()), returned) if task.look else returned
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise Misuse(f"returns something that cannot be read ({what}): see what the stub says") from None
    return arrays(found, task.results, shapes), variables


def same_mistake(task, inputs, mutant, got):
    """Whether a known mistake gives what the learner's function gave."""
    try:
        return equal(ask(task, inputs, mutant)[0], got)
    except Misuse:
        return False


def prepared(task, args, rng):
    """What the learner's function is called with."""
    if not task.forward:
        return args
    out, cache = task.forward(**copy.deepcopy(args))
    return dict(dout=rng.standard_normal(np.shape(out)).round(1), cache=cache)


def by_hand(task, function):
    """A small input on which the function is wrong, with both results -> lines"""
    inputs = prepared(task, task.small, np.random.default_rng(0))
    try:
        (want, _), (got, _) = ask(task, inputs, task.solution), ask(task, inputs, function)
    except Exception:
        return []
    if equal(want, got):
        return []
    shown = dict(task.small, **({"dout": inputs["dout"]} if task.forward else {}))

    def line(name, value):
        return f"  {name} = " + " ".join(
            np.array2string(np.asarray(value), precision=4, suppress_small=True).split()
        )

    lines = ["Small enough to be redone by hand:", *(line(*item) for item in shown.items())]
    for name, g, w in zip(task.results, got, want, strict=True):
        if g.shape != w.shape or worst(name, g, w):
            lines += [line(f"{name}: got     ", g), line(f"{name}: expected", w)]
    return lines


def check(task, function):
    """Try the learner's function -> lines to show, and whether all is well. Raises what it raises."""
    rng = np.random.default_rng(3)
    args = task.args(rng)
    inputs = prepared(task, args, rng)
    want, right = ask(task, inputs, task.solution)
    try:
        got, mine = ask(task, inputs, function, [w.shape for w in want])
    except Misuse as error:
        return [str(error)], False
    lines, wide, wrong = [], max(map(len, task.results)), {}
    results = {name: (g, w) for name, g, w in zip(task.results, got, want, strict=True)}
    for name, (g, w) in results.items():
        verdict = "ok" if g.shape == w.shape else f"got {g.shape}"
        lines.append(f"shape of {name:{wide}}  expected {w.shape}  {verdict}")
        if g.shape != w.shape:
            wrong[name] = verdict
    if not wrong and task.forward:  # results are the gradients of forward's float arguments, in order
        floats = [name for name, a in args.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
        for (name, (g, _)), argument in zip(results.items(), floats, strict=False):

            def loss(x, argument=argument):
                return np.sum(inputs["dout"] * task.forward(**{**args, argument: x})[0])

            off = worst(name, g, slopes(loss, args[argument]))
            lines.append(f"{name:{wide}} against slopes   {off or 'ok'}")
            wrong |= {name: off} if off else {}
    if not any(verdict.startswith("got (") for verdict in wrong.values()):
        for name, (g, w) in results.items():
            off = worst(name, g, w)
            lines.append(f"{name:{wide}} against library  {off or 'ok'}")
            wrong |= {name: off} if off else {}
    if not wrong:
        return lines + ([task.why] if task.why else []), True

    first = next(name for name in task.causes if name in wrong)
    if len(wrong) > 1:
        lines.append(f"Begin with {first}: what else is wrong may come of it.")
    known = [sentence for sentence, f in task.mutants.items() if same_mistake(task, inputs, f, got)]
    lines += [f"This is a known mistake: {sentence}" for sentence in known]
    shown = {n: np.asarray(mine[n]) for n in task.steps if np.shape(mine.get(n)) == np.shape(right[n])}
    off = [name for name, array in shown.items() if worst(name, array, right[name])]
    off = [name for name in off if not multiple(shown[name], right[name])]  # scaled later, perhaps
    pool = at_hand(right, args)
    if off and not known:
        name, array, due = off[0], shown[off[0]], right[off[0]]
        said = relation(name, array, due, {n: right[n] for n in task.steps}, pool) or worst(name, array, due)
        lines.append(f"On the way, {name} is wrong already: {said}.")
    elif not known:
        said = relation(first, *results[first], {name: w for name, (_, w) in results.items()}, pool)
        lines += [f"What one can see: {said}."] if said else []
    return lines + (by_hand(task, function) if task.small else []), False


def load(path):
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def where(path, error):
    """An error as two lines: which line of the learner's file, and what."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    at = f"my/{path.name}:{frames[-1].lineno}: {frames[-1].line}\n" if frames else ""
    return f"{at}{type(error).__name__}: {error}"


def judge(path, about):
    """Test a learner's file -> its module, and for each task (name, lines to show, state): "right", "wrong"
    or "still to be written". Raises what the file raises outside of functions."""
    module, verdicts = load(path), []
    for task in about.TASKS:
        function = getattr(module, task.name, None)
        try:
            if function is None:
                raise NotImplementedError
            lines, good = check(task, function)
            state = "right" if good else "wrong"
        except NotImplementedError:
            lines, state = [], "still to be written"
        except (Exception, SystemExit) as error:
            lines, state = where(path, error).splitlines(), "wrong"
        verdicts.append((task.name, lines, state))
    return module, verdicts


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
    try:
        _, verdicts = judge(mine, there[lesson])
    except NotImplementedError:
        sys.exit(f"{shown} raises NotImplementedError outside of any function: take that line out")
    except (Exception, SystemExit) as error:  # sys.exit(0) in it would look as if all were well
        sys.exit(where(mine, error))
    for name, lines, state in verdicts:
        print(name, *("  " + line for line in lines or [state]), sep="\n")
    good = all(state == "right" for *_, state in verdicts)
    print("All is well." if good else f"Not yet. (python -m lessons.check {lesson} --hint helps)")
    sys.exit(not good)


if __name__ == "__main__":
    main()
