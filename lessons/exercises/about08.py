"""How exercise 08 is checked: against dense Adam if every row occurs, else against the library."""

import numpy as np

from lessons.check import Task, mutant
from ministem.backend import sum_rows
from ministem.optim import AdamW, adamw
from ministem.tables import RowSparse, Tables


def adam_rows(table, m, v, ids, dout, t, lr, betas, eps):
    """The library's own steps: fetch, scatter-add, optimizer."""
    tables = Tables({"embed": table})
    batch = tables.fetch(ids)
    rows, values = batch.rows, sum_rows(dout, batch.slots["embed"], len(batch.rows))
    optimizer = AdamW(lr, betas, eps, clip=None)
    optimizer.table_m, optimizer.table_v, optimizer.t = Tables({"embed": m}), Tables({"embed": v}), t - 1
    optimizer.step({}, tables, {"embed": RowSparse(rows, values, table.shape)})


def dense_adam(table, m, v, ids, dout, t, lr, betas, eps):
    """All V rows take part. Where each has occurred this has to come out as adam_rows."""
    gradient = np.zeros_like(table)
    np.add.at(gradient, ids, dout)
    adamw(table, gradient, m, v, t, lr, betas, eps, decay=0.0)


def args(rng, distinct):
    """V = 7 rows, some of the batch's 2 x 6 positions share one; only the first `distinct` rows may occur."""
    V, F, ids = 7, 4, np.array([[0, 6, 3, 3, 5, 1], [2, 3, 4, 0, 3, 6]])
    ids = ids if distinct == 7 else np.array([1, 2, 4, 6])[ids % distinct]  # neither the first rows nor all
    table, m = rng.standard_normal((V, F)), rng.standard_normal((V, F))
    v, dout = rng.random((V, F)) + 0.5, rng.standard_normal((*ids.shape, F))
    return dict(table=table, m=m, v=v, ids=ids, dout=dout, t=3, lr=0.1, betas=(0.9, 0.95), eps=1e-8)


def one_by_one(table, m, v, ids, dout, t, lr, betas, eps):
    for token, g in zip(ids.flat, dout.reshape(-1, dout.shape[-1]), strict=True):
        adamw(table[token], g, m[token], v[token], t, lr, betas, eps, decay=0.0)


def moments_decay(table, m, v, ids, dout, t, lr, betas, eps):
    absent = np.setdiff1d(np.arange(len(table)), ids)
    m[absent] *= betas[0]
    v[absent] *= betas[1]
    adam_rows(table, m, v, ids, dout, t, lr, betas, eps)


def rows_and_slots(ids):
    rows, slot = np.unique(ids, return_inverse=True)
    return rows, slot.reshape(ids.shape)


summed = 'sum_rows(dout, batch.slots["embed"], len(batch.rows))'
SMALL = dict(table=np.array([[1.0], [2]]), m=np.zeros((2, 1)), v=np.zeros((2, 1)), ids=np.array([[0, 0, 1]]),
             dout=np.array([[[1.0], [2], [3]]]), t=1, lr=0.1, betas=(0.9, 0.95), eps=1e-8)  # fmt: skip
TASKS = [
    Task(
        solution=rows_and_slots,
        args=lambda rng: dict(ids=np.array([[7, 3, 7, 7], [900, 3, 5, 7]])),
        results=("rows", "slot"),
        causes=("rows", "slot"),
        small=dict(ids=np.array([[7, 3, 7]])),
        mutants={
            "slot is a list of all positions, and was to have the shape of ids, (B,T)": (
                lambda ids: (np.unique(ids), np.unique(ids, return_inverse=True)[1].reshape(-1))
            ),
            "these are the ids; a slot is a place in rows": lambda ids: (np.unique(ids), ids),
            "rows are to be sorted, and these stand in the order in which they are met": (
                lambda ids: (
                    np.array(list(dict.fromkeys(ids.flat))),
                    np.array([list(dict.fromkeys(ids.flat)).index(id) for id in ids.flat]).reshape(ids.shape),
                )
            ),
            "every position has a row of its own: repeats were to share one": (
                lambda ids: (
                    np.sort(ids.reshape(-1)),
                    np.argsort(np.argsort(ids.reshape(-1))).reshape(ids.shape),
                )
            ),
        },
    ),
    Task(
        name="adam_rows",
        solution=dense_adam,
        args=lambda rng: args(rng, distinct=7),
        small=SMALL,
        results=("table", "m", "v"),
        causes=("m", "v", "table"),
        mutants={
            "values[slot] += dout keeps one of the repeated rows; tokens 0, 3 and 6 repeat here": mutant(
                adam_rows, summed, 'np.zeros((len(batch.rows), 4)); values[batch.slots["embed"]] += dout'
            ),
            "a row's gradient is the sum over its token's positions, not the mean": mutant(
                adam_rows, summed, summed + " / np.bincount(ids.flat)[:, None]"
            ),
            "a token that occurs four times was updated four times: add its gradients up first": one_by_one,
            "nothing has changed: table[rows] is a copy, and has to be written back": lambda *inputs: None,
            "the rows were written back, but their moments m and v were not": mutant(
                adam_rows, '{"embed": m}', '{"embed": m.copy()}', '{"embed": v}', '{"embed": v.copy()}'
            ),
        },
    ),
    Task(
        name="adam_rows",
        solution=adam_rows,
        args=lambda rng: args(rng, distinct=4),
        results=("table", "m", "v"),
        causes=("m", "v", "table"),
        mutants={
            "this is dense Adam: rows that are absent move too, by what is left in m": dense_adam,
            "the moments of absent rows have decayed; lazy Adam leaves them alone": moments_decay,
        },
    ),
]

HINTS = (
    "np.unique(ids, return_inverse=True) gives the distinct rows and which of them each position reads.",
    "values = zeros (U,F); np.add.at(values, slot, dout) adds repeats up. slot has the shape of ids.",
    "p = table[rows] is a copy. Copy m and v likewise, call adamw on the three, write all three back.",
)
