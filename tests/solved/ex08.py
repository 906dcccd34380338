import numpy as np

from ministem.optim import adamw


def adam_rows(table, m, v, ids, dout, t, lr, betas, eps):
    rows, slot = np.unique(ids, return_inverse=True)
    g = np.zeros((len(rows), dout.shape[-1]))
    np.add.at(g, slot.reshape(ids.shape), dout)
    p, mm, vv = table[rows], m[rows], v[rows]
    adamw(p, g, mm, vv, t, lr, betas, eps, 0)
    table[rows], m[rows], v[rows] = p, mm, vv


def rows_and_slots(ids):
    rows = np.array(sorted(set(ids.ravel().tolist())))
    return rows, np.searchsorted(rows, ids)
