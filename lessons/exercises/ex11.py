"""Exercise 11: bring only the rows that a batch needs. Test it with: python -m lessons.check 11"""

import numpy as np  # noqa: F401

from ministem.tables import Batch  # noqa: F401


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
