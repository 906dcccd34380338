"""What a wrong result has to do with the right one: the words in which check.py names a cause.

A learner's function is a black box, but for its variables. So what it made is compared with all that the
right function has at hand: is it the negative, a multiple, a sum that is short of one part, another product?
"""

import itertools
import math

import numpy as np

TOLERANCE = 1e-6  # of the largest entry


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


def multiple(got, want):
    """The number that want is multiplied by to be got, or None"""
    factor = np.vdot(want, got) / (np.vdot(want, want) or 1)
    return factor if factor and not worst("", got / factor, want) else None


def broadcasts(shape, to):
    """Whether an array of this shape can be a factor of one of the other, which keeps its shape."""
    return 0 < len(shape) <= len(to) and all(n in (1, m) for n, m in zip(shape[::-1], to[::-1], strict=False))


def relation(name, got, want, others, pool):
    """What a wrong array has to do with the right one -> a sentence, or None.

    others: {name: right array} of results or steps; pool: of all that the right function has at hand."""
    if not np.isfinite(got).all():
        return f"{name} has numbers that are not finite: a division by zero, or inf - inf"
    if not got.any():
        return f"{name} is all zeros"
    for other, array in others.items():
        if other != name and array.shape == got.shape and not worst("", got, array):
            return f"{name} is what {other} should be: have the two changed places?"
    if got.ndim == 2 and got.shape == want.shape[::-1] and not worst("", got.T, want):
        return f"{name} is transposed"
    if got.size == want.size and got.ndim == 2 and not worst("", got.reshape(want.T.shape).T, want):
        return f"{name} is transposed and then reshaped: the right shape, other numbers"
    for n in range(1, got.ndim):
        total = got.sum(tuple(range(n)))
        if total.shape == want.shape and not worst("", total, want):
            return f"{name} is not yet added up: its parts {got.shape[:n]} belong together"
    if got.shape != want.shape:
        return None
    factor = multiple(got, want) if got.size > 1 else None
    if got.size == 1 and not worst("", -got, want) or factor and abs(factor + 1) < 1e-6:
        return f"{name} is the negative of what is due"
    for n, says, guess in (
        (1 / (factor or 1), "exactly 1/{} of", "a mean where a sum belongs"),
        (factor or 1, "exactly {} times", "a sum where a mean belongs, or added twice"),
    ):
        if n > 1.5 and abs(n / round(n) - 1) < 1e-6:
            return f"{name} is {says.format(round(n))} what is due: {guess}?"
    if factor:
        return f"{name} is {factor:.6g} times what is due, everywhere"
    fits = {n: a for n, a in pool.items() if broadcasts(a.shape, got.shape)}
    for n, a in fits.items():
        for what, off in (
            ("is", got),
            ("is short of", want - got),
            ("has too much: there is one more", got - want),
        ):
            if n != name and a.shape == got.shape and not worst("", off, a):
                return f"{name} {what} {n}"
    for n, a in fits.items():
        for power in (1, 2):
            if not worst("", got, want * a**power):
                return f"{name} has {' '.join([n] * power)} as a factor, which does not belong there"
            if not worst("", got * a**power, want):
                return f"{name} lacks the factor {' '.join([n] * power)}"
    for (n, a), (m, b) in itertools.permutations(fits.items(), 2):
        if not worst("", got * b, want * a):
            return f"{name} has {n} where {m} belongs"
    per_position = {n: a for n, a in pool.items() if a.ndim > 1 and got.ndim == 1}
    for size in (1, 2, 3) if got.ndim == 1 else ():
        for some in itertools.combinations(per_position.items(), size):
            try:
                total = math.prod(a for _, a in some)
            except ValueError:  # of shapes that do not fit
                continue
            if total.shape[-1:] == got.shape and not worst("", total.reshape(-1, len(got)).sum(0), got):
                return f"{name} is the sum of {' * '.join(n for n, _ in some)}, and another one is due"
    flat = {n: a.reshape(-1, a.shape[-1]) for n, a in pool.items() if a.ndim > 1}
    for (n, a), (m, b) in itertools.product(flat.items(), repeat=2):
        for text, left, right in ((f"{n}' {m}", a.T, b), (f"{n} {m}", a, b), (f"{n} {m}'", a, b.T)):
            if left.shape[1] == right.shape[0] and left.shape[0] * right.shape[1] == got.size:
                if not worst("", (left @ right).reshape(got.shape), got):
                    return f"{name} is the product {text}, and another one is due"
    if got.ndim > 1:
        rows, due = (a.reshape(-1, a.shape[-1]) for a in (got, want))
        share = (rows * due).sum(1, keepdims=True) / np.maximum((due * due).sum(1, keepdims=True), 1e-30)
        off = [i for i in range(len(got)) if worst("", got[i], want[i])]
        if len(off) <= len(got) / 2:
            return f"{name} is off in [{', '.join(map(str, off))}] along its first axis only"
        if rows.shape[1] > 1 and not worst("", rows, share * due):
            return f"each row of {name} is a multiple of what is due: a factor of the row is wrong"
        if not worst("", rows[np.lexsort(rows.T)], due[np.lexsort(due.T)]):
            return f"{name} has the right rows in another order"
    if got.size > 1 and not worst("", got - want, np.full_like(want, (got - want).flat[0])):
        return f"{name} is too large by the same number everywhere"
    return None


def at_hand(variables, *more):
    """All float arrays among the variables of a function, and among more dicts of such, by their names"""
    named = {n: a for named in (*more, variables) for n, a in named.items()}
    floats = {n: a for n, a in named.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"}
    return {n: a for n, a in floats.items() if a.size > 1 and np.isfinite(a).all()}
