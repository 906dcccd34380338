"""How exercise 02 is checked: the scatter-add against the library's. Rows repeat; one is never read."""

import numpy as np

from lessons.check import Task, mutant
from ministem.backend import sum_rows


def args(rng):
    slot = np.array([[0, 3, 3, 1, 5], [2, 3, 0, 0, 5]])  # repeats in and across texts; no 4, and no 6
    return dict(values=rng.standard_normal((2, 5, 3)), slot=slot, n_rows=7)


def number(words):
    """words: a list of strings -> vocab, ids"""
    vocab = sorted(set(words))
    return vocab, np.array([vocab.index(word) for word in words])


def words(rng):
    return dict(words="the sea and the hill and the end".split())


def look(given, found):
    """The ids, and each word of the vocabulary by the place where it is met first."""
    vocab, ids = found
    return np.asarray(ids), np.array([given[0].index(word) for word in vocab])


def bigram_step(table, x, y, rate):
    """One step of training the table of scores, in place."""
    scores = table[x]  # (B,T,V)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    dscores = (p - np.eye(len(table))[y]) / y.size  # (B,T,V)
    table -= rate * sum_rows(dscores, x, len(table))


def step_args(rng):
    x = np.array([[0, 3, 3, 1, 5], [2, 3, 0, 0, 5]])
    return dict(table=rng.standard_normal((7, 7)), x=x, y=rng.integers(0, 7, x.shape), rate=3.0)


def keeps_one(values, slot, n_rows):
    out = np.zeros((n_rows, values.shape[-1]))
    out[slot] += values
    return out


def mean(values, slot, n_rows):
    return sum_rows(values, slot, n_rows) / np.maximum(1, np.bincount(slot.flat, minlength=n_rows))[:, None]


def only_rows_that_occur(values, slot, n_rows):
    return sum_rows(values, slot, n_rows)[np.unique(slot)]


def last_text_only(values, slot, n_rows):
    return sum_rows(values[-1:], slot[-1:], n_rows)


def column_by_column(values, slot, n_rows):
    out = np.zeros((n_rows, values.shape[-1]))
    for t in range(slot.shape[1]):
        out[slot[:, t]] += values[:, t]
    return out


def as_many_as_occur(values, slot, n_rows):
    return sum_rows(values, slot, slot.max() + 1)


SMALL = dict(values=np.array([[[1.0], [10]], [[100], [1000]]]), slot=np.array([[0, 1], [0, 0]]), n_rows=3)
TASKS = [
    Task(
        solution=number,
        args=words,
        look=look,
        results=("ids", "vocab"),
        mutants={
            "the words stand as they are first met, and are to be sorted": lambda words: (
                list(dict.fromkeys(words)),
                [list(dict.fromkeys(words)).index(word) for word in words],
            ),
            "ids count from 0": lambda words: (number(words)[0], number(words)[1] + 1),
            "every word stands in the vocabulary once": lambda words: (
                sorted(words),
                [sorted(words).index(word) for word in words],
            ),
        },
    ),
    Task(
        solution=sum_rows,
        args=args,
        results=("out",),
        small=SMALL,
        mutants={
            "out[slot] += values (or =) keeps one of a slot's rows, and 0, 3 and 5 repeat here": keeps_one,
            "this is the mean, and what is due is the sum: each use of a row adds its pull": mean,
            "a row that nobody reads has a gradient too: zero. Return n_rows rows": only_rows_that_occur,
            "out[slot[:, t]] += takes all texts at once: two have the same slot at one t": column_by_column,
            "n_rows says how many rows there are; the last ones may go unread": as_many_as_occur,
            "the first position of each text is left out: range(T) begins at 0": (
                lambda values, slot, n_rows: sum_rows(values[:, 1:], slot[:, 1:], n_rows)
            ),
            "the last position of each text is left out: range(T) ends before T by itself": (
                lambda values, slot, n_rows: sum_rows(values[:, :-1], slot[:, :-1], n_rows)
            ),
            "the numbers of a value stay apart: all F of them are added, each to its own": (
                lambda values, slot, n_rows: sum_rows(
                    np.repeat(values.sum(-1, keepdims=True), values.shape[-1], -1), slot, n_rows
                )
            ),
            "row t of the result is not position t: it is slot[b, t] that says which row": (
                lambda values, slot, n_rows: sum_rows(values, 0 * slot + np.arange(slot.shape[1]), n_rows)
            ),
            "row r has to stay row r, those that are never read too: nothing is cut off": (
                lambda values, slot, n_rows: sum_rows(values, slot, n_rows)[1:]
            ),
            "only the last text has arrived: go over all B of them": last_text_only,
        },
    ),
    Task(
        solution=bigram_step,
        args=step_args,
        results=("table",),
        small=dict(table=np.zeros((2, 2)), x=np.array([[0, 0, 1]]), y=np.array([[1, 1, 0]]), rate=1.0),
        mutants={
            "the step goes uphill: against the gradient is minus": mutant(
                bigram_step, "table -= ", "table += "
            ),
            "the 1/N of the mean is missing: N = B * T": mutant(bigram_step, " / y.size", ""),
            "table[x] -= ... keeps one of the repeated rows; 0, 3 and 5 repeat here": mutant(
                bigram_step, "table -= rate * sum_rows(dscores, x, len(table))", "table[x] -= rate * dscores"
            ),
            "the right token is not pushed up: dscores is p less 1 at y": mutant(
                bigram_step, "p - np.eye(len(table))[y]", "p"
            ),
            "nothing has changed: table = table - ... makes a new array": lambda *inputs: None,
        },
    ),
]

HINTS = (
    "sum_rows: make an array of zeros, then add position after position: a loop over B and T is right.",
    "values.reshape(-1, F) and slot.reshape(-1) make one list of positions, so one loop is enough.",
    "Without a loop: np.add.at(out, slot, values). Or, both made one list as in hint 2, onehot.T @ values "
    "with onehot = np.eye(n_rows)[slot]. bigram_step: the page's loss_and_dlogits, then your sum_rows.",
)
