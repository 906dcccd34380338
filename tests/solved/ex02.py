"""The exercises, solved as a reader might: only with what the pages teach. Used by test_mine.py."""

import numpy as np


def sum_rows(values, slot, n_rows):
    B, T, F = values.shape
    out = np.zeros((n_rows, F))
    for b in range(B):
        for t in range(T):
            out[slot[b, t]] += values[b, t]
    return out
