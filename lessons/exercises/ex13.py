"""Exercise 13: tables from a trained model. Test it with: python -m lessons.check 13"""

import numpy as np  # noqa: F401

from ministem.backend import sum_rows  # noqa: F401
from ministem.model import trunk_forward  # noqa: F401


def outputs(params, config, batch, layers, kind):
    """What the matrices of these layers give at each position, those whose place tables of this kind take:
    x Wu ("stem"), or x Wg ("gate") -> a list of (B,T,F)

    trunk_forward(params, config, batch)[1] is a tuple of four; the third is a list with the caches of each
    layer: norm1, attn, norm2, ffn. The last but one of ffn is what glu_forward kept, and the first of ffn
    what linear_forward kept of the gate: x and w."""
    raise NotImplementedError("lesson 13")


def running_means(rows, seen, xw, slot):
    """Means with more positions in them; a row that is not met stays as it is.

    rows (U,F), the means so far; seen (U,), over how many positions; xw (B,T,F), at more positions; slot
    (B,T) int, whose row each of them belongs to -> rows (U,F)"""
    raise NotImplementedError("lesson 13")
