"""Exercise 10: directions (easy), and angular spread, a block of cosines at a time.

Test it with: python -m lessons.check 10"""

import numpy as np


def directions(vectors):
    """vectors (N,F) -> (M,F): each divided by its length; the M of them that are not zero"""
    raise NotImplementedError("lesson 10")


def angular_spread(vectors, B=256):
    """How far apart do vectors (N,·) point? Over all pairs -> dict(p95 of |cos|, median of cos, counts: a
    histogram of cos, 200 bins from -1 to 1). Rows of zeros point nowhere and are left out.

    Each pair counts once, none with itself. Never more than B rows of cosines (B,N) are in memory."""
    fine = np.zeros(20_000, int)  # how many pairs have their cosine in which bin: yours to fill
    # for one block of cosines: np.histogram(some_cosines.clip(-1, 1), len(fine), (-1, 1))[0]
    raise NotImplementedError("lesson 10")

    # what follows is done: it reads p95 and the median off the counts
    one_sided = fine[10_000:] + fine[9_999::-1]  # of |cos|

    def quantile(counts, q):
        return (np.searchsorted(counts.cumsum(), q * counts.sum()) + 0.5) / 10_000

    return dict(p95=quantile(one_sided, 0.95), median=quantile(fine, 0.5) - 1,
                counts=fine.reshape(200, -1).sum(1).tolist())  # fmt: skip
