"""The scatter-add seven ways: which one sums the gradients of repeated tokens fastest?

    python benchmarks/scatter.py

Forward, every position fetches its token's row: `block[slot]`. Backward, each row gets the sum of the
gradients of all positions that fetched it. In text one token may stand at 300 of 2,000 positions and most
at one, so neither "one row at a time" nor "all first occurrences, then all second ones" is obviously good.
All ways take turns on one core, as in training, where each thread sums its own part of the batch; medians.
All are compared with the sum in float64. What matters is how many times the gather each one takes: the
backward pass of a lookup should not cost much more than the lookup.
"""

import statistics
import time

import numpy as np
from common import machine, options, parse, timed, write_json, zipf
from scipy.sparse import csr_array

from ministem import backend

SIZES = [  # rows, floats in each, vocabulary: half a batch of step.py's small size, a whole one, ...
    (1024, 384, 2048),
    (2048, 384, 2048),
    (2048, 1024, 8192),
    (8192, 768, 50257),
    (16384, 256, 50257),
]
ROUNDS = 4  # of rank_loop, before it goes row by row


def add_at(values, slot, U):
    """NumPy's own, and the shortest; it looks at one number at a time."""
    out = np.zeros_like(values, shape=(U, values.shape[1]))
    np.add.at(out, slot, values)
    return out


def sort_reduceat(values, slot, U):
    """Equal ids next to each other, then a sum over each stretch. Copies all values to sort them."""
    order = np.argsort(slot, kind="stable")
    starts = np.searchsorted(slot[order], np.arange(U))
    return np.add.reduceat(values[order], starts)


def python_loop(values, slot, U):
    """What one would write without NumPy. Better than its name: each turn adds a whole row."""
    out = np.zeros_like(values, shape=(U, values.shape[1]))
    for i, row in enumerate(slot.tolist()):
        out[row] += values[i]
    return out


def rank_loop(values, slot, U):
    """All first occurrences at once (they are distinct, so `+=` loses nothing), all second ones, ... After a
    few rounds only frequent tokens are left: few rows, many values each, and the loop goes over them."""
    order = np.argsort(slot, kind="stable")
    starts = np.searchsorted(slot[order], np.arange(U))
    counts = np.diff(np.append(starts, len(slot)))
    out = values[order[starts]]
    for rank in range(1, ROUNDS):
        rows = np.flatnonzero(counts > rank)
        out[rows] += values[order[starts[rows] + rank]]
    for row in np.flatnonzero(counts > ROUNDS):
        out[row] += values[order[starts[row] + ROUNDS : starts[row] + counts[row]]].sum(0)
    return out


def csr_sorted(values, slot, U):
    """onehot(slot).T @ values, as a sparse matrix with a row per token: which positions to add up."""
    order = np.argsort(slot, kind="stable")
    starts = np.searchsorted(slot[order], np.arange(U + 1))
    return csr_array((np.ones(len(slot), values.dtype), order, starts), shape=(U, len(slot))) @ values


def csc(values, slot, U):
    """The same matrix, with a column per position: no order needed. This is the library's own."""
    return backend.sum_rows(values[None], slot[None], U)


def onehot_matmul(values, slot, U):
    """The definition. Nearly all its multiplications are by zero."""
    onehot = (slot == np.arange(U)[:, None]).astype(values.dtype)
    return onehot @ values


WAYS = {
    "np.add.at": add_at,
    "sort + add.reduceat": sort_reduceat,
    "loop over positions": python_loop,
    "first, second, ... occurrences": rank_loop,
    "scipy CSR, sorted": csr_sorted,
    "scipy CSC, unsorted *": csc,
    "one-hot matmul": onehot_matmul,
}


def task(N, F, V):
    """-> values (N,F), slot (N,), block (U,F)"""
    rng = np.random.default_rng(1)
    rows, slot = np.unique(zipf(V, N, rng), return_inverse=True)
    return (rng.standard_normal((N, F), np.float32), slot, rng.standard_normal((len(rows), F), np.float32))


def check(values, slot, U):
    """All ways give the float64 sum, to the rounding that adding so many numbers may cost."""
    exact = add_at(values.astype("float64"), slot, U)
    size = add_at(abs(values).astype("float64"), slot, U)
    for name, way in WAYS.items():
        out = way(values, slot, U)
        assert out.dtype == "float32" and out.shape == exact.shape, f"{name}: {out.dtype} {out.shape}"
        worst = (abs(out - exact) / size).max()
        assert worst < 1e-6, f"{name} is wrong by {worst:.1e} of what it adds"


def measure(N, F, V, seconds):
    """-> {name: median ms}, everything in turns until the time is up (each at least three times)"""
    values, slot, block = task(N, F, V)
    U = len(block)
    check(values, slot, U)
    calls = {"gather, block[slot]": lambda: block[slot], "copy": values.copy}
    calls |= {name: lambda way=way: way(values, slot, U) for name, way in WAYS.items()}
    ms, until = {name: [] for name in calls}, time.perf_counter() + seconds
    while len(ms["copy"]) < 3 or time.perf_counter() < until:
        for name, call in calls.items():
            if len(ms[name]) >= 3 and sum(ms[name]) > 1e3 * seconds / len(calls):
                continue  # a slow one has had its share of the time
            ms[name].append(timed(call))
    often = np.bincount(slot).max()
    print(f"\n{N} rows of {F} floats into {U} distinct ones; the most frequent one occurs {often} times")
    print(f"{'':<32}{'ms':>9}{'x gather':>10}{'x copy':>8}")
    found = {name: statistics.median(times) for name, times in ms.items()}
    gather, copy = found["gather, block[slot]"], found["copy"]
    for name, t in found.items():
        print(f"{name:<32}{t:9.3f}{t / gather:10.2f}{t / copy:8.1f}", flush=True)
    return dict(N=N, F=F, V=V, U=U, ms=found)


def main():
    parser = options(__doc__)
    parser.add_argument("--seconds", type=float, default=10, help="for each size (default 10)")
    args = parse(parser)
    about = machine(1, "scipy")
    backend.keep_freed_memory()  # as training does: no time spent on getting fresh pages for every result
    with backend.blas_threads(1):
        found = [measure(*size, args.seconds) for size in ([(64, 8, 50)] if args.quick else SIZES)]
    print("\n* what ministem uses (backend.sum_rows); all ways agree with the sum in float64")
    write_json(args, about, found=found)


if __name__ == "__main__":
    main()
