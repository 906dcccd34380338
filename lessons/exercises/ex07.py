"""Exercise 07: one step of AdamW. Test it with: python -m lessons.check 07"""

import numpy as np  # noqa: F401


def adamw(p, g, m, v, t, lr, betas, eps, decay, scale=1.0):
    """One AdamW update, in place, of p and its two moments m and v. Returns nothing.

    p, g, m, v: arrays of one shape. t: the step, from 1. betas: the shares of m and v that stay.
    eps: keeps the division finite. decay: pulls p towards 0 by lr * decay, apart from the gradient.
    scale: multiplies g first (clipping)."""
    raise NotImplementedError("lesson 07")
