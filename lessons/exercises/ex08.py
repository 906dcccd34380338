"""Exercise 08: which rows a batch needs (easy), and Adam for them.

Test it with: python -m lessons.check 08"""

import numpy as np  # noqa: F401

from ministem.optim import adamw  # noqa: F401  lesson 07's: changes p, m and v in place


def rows_and_slots(ids):
    """ids (B,T) int -> rows (U,) int, the distinct ids, sorted; slot (B,T) int, so that rows[slot] is ids"""
    raise NotImplementedError("lesson 08")


def adam_rows(table, m, v, ids, dout, t, lr, betas, eps):
    """Step t of lazy Adam, in place: table, m and v change in the rows that occur in ids, and nowhere else.

    table, m, v (V,F), ids (B,T) int, dout (B,T,F): the gradient of what was read, table[ids]
    There is no weight decay and no clipping. Each row is updated once, however often its token occurs."""
    raise NotImplementedError("lesson 08")
