"""Exercise 11: count distinct rows (easy); bring only the rows that a batch needs; a cache (harder).

Test it with: python -m lessons.check 11"""

import numpy as np  # noqa: F401

from ministem.tables import Batch  # noqa: F401


def distinct_so_far(ids):
    """ids (N,) int -> (N,) int: entry L-1 is how many different ids the first L tokens have"""
    raise NotImplementedError("lesson 11")


def fetch(self, ids, targets=None):
    """ids (B,T) int -> Batch(rows, slots, blocks): each distinct token's row once per table

    It is a method of Tables: self.arrays has the names of the tables as keys, and self.read(name, rows)
    brings those rows of one table, (U,) int -> (U,·). The test counts every byte that read brings. (targets
    are None here, and nothing is to be done with them.)

    rows    (U,) the distinct ids of the batch, sorted
    slots   {name: (B,T) int}: position (b,t) reads row slots[name][b,t] of blocks[name]
    blocks  {name: (U,·)}: row j is that of token rows[j]

    Targets go along to a GPU, in the library; here they are None, and you may forget them."""
    raise NotImplementedError("lesson 11")


def lru_hits(ids, size):
    """ids: a list of rows, asked for one by one -> the share that is in the cache when it is asked for

    The cache has room for `size` rows and is empty at first. A row that is missing comes in; if there is no
    room, the one goes out that was asked for longest ago (least recently used)."""
    raise NotImplementedError("lesson 11")
