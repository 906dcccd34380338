"""How exercise 10 is checked: the angular spread of vectors of different length, some of them zero."""

import numpy as np

from lessons.check import Task, mutant
from results.measures import angular_spread


def args(rng):
    vectors = rng.standard_normal((25, 5)) * rng.uniform(0.2, 3, (25, 1))
    vectors[[4, 17]] = 0
    return dict(vectors=vectors, B=4)  # six blocks, and the last has three rows


def many(rng):
    return dict(vectors=rng.standard_normal((1000, 5)), B=8)


def look(given, spread):
    return tuple(np.asarray(spread[name]) for name in ("p95", "median", "counts"))


def directions(vectors):
    length = np.linalg.norm(vectors, axis=1, keepdims=True)  # (N,1)
    return vectors[length[:, 0] > 0] / length[length[:, 0] > 0]


NORMALISE = "n = vectors[length[:, 0] > 0] / length[length[:, 0] > 0]"
TASKS = [
    Task(
        solution=directions,
        args=lambda rng: dict(vectors=args(rng)["vectors"]),
        results=("directions",),
        small=dict(vectors=np.array([[3.0, 4], [0, 0], [0, 2]])),
        mutants={
            "divided by the sum of the numbers; a length is the root of the sum of squares": lambda vectors: (
                vectors[vectors.any(1)] / vectors[vectors.any(1)].sum(1, keepdims=True)
            ),
            "divided by the squared length: the root is missing": lambda vectors: (
                vectors[vectors.any(1)] / (vectors[vectors.any(1)] ** 2).sum(1, keepdims=True)
            ),
            "rows of zeros point nowhere, and were to be left out": lambda vectors: (
                vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
            ),
            "each row has a length of its own: axis=1, keepdims=True": lambda vectors: (
                vectors[vectors.any(1)] / np.linalg.norm(vectors)
            ),
        },
    ),
    Task(
        solution=angular_spread,
        args=args,
        look=look,
        results=("p95", "median", "counts"),
        mutants={
            "rows are not normalised: a product of long vectors is no cosine": mutant(
                angular_spread, NORMALISE, "n = vectors[length[:, 0] > 0]"
            ),
            "rows of zeros are counted: a cosine of 0 with everybody makes the spread look better": mutant(
                angular_spread, NORMALISE, "n = vectors / np.maximum(length, 1e-30)"
            ),
            "the diagonal is counted: every vector is at cosine 1 with itself": mutant(
                angular_spread, "np.triu_indices(len(cos), 1,", "np.triu_indices(len(cos), 0,"
            ),
            "a block is compared with itself alone: most pairs are in two different blocks": mutant(
                angular_spread, "@ n[i:].T", "@ n[i : i + B].T"
            ),
            "the block meets all rows, so what is right of *its own* diagonal is not each pair once": mutant(
                angular_spread, "@ n[i:].T", "@ n.T"
            ),
            "the last block is smaller than B, and was left out": mutant(
                angular_spread, "range(0, len(n), B)", "range(0, len(n) - B + 1, B)"
            ),
            "each pair is counted twice: p95 and median don't mind, but counts do": mutant(
                angular_spread, "cos[above].clip", "np.repeat(cos[above], 2).clip"
            ),
            "the sign is dropped too early: p95 is of |cos|, but median and counts are of cos": mutant(
                angular_spread, "cos[above].clip", "abs(cos[above]).clip"
            ),
        },
    ),
    Task(
        solution=angular_spread,
        args=many,
        look=look,
        results=("p95", "median", "counts"),
        limit=4e6,
    ),
]

HINTS = (
    "Leave out rows of length 0, and divide the others by their lengths. A cosine is then a dot product.",
    "Rows i .. i+B-1 against all rows from i on: whatever came before i has met these rows already.",
    "In that block each pair stands right of the diagonal: np.triu_indices(len(cos), 1, cos.shape[1]).",
)
