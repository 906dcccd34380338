"""Exercise 07: one step of AdamW; and the last backward pass, that of everything below the head.

Test it with: python -m lessons.check 07"""

import numpy as np  # noqa: F401

from ministem.backend import sum_rows  # noqa: F401  lesson 02's
from ministem.model import block_backward, rmsnorm_backward  # noqa: F401  lessons 06 and 03


def adamw(p, g, m, v, t, lr, betas, eps, decay, scale=1.0):
    """One AdamW update, in place, of p and its two moments m and v. Returns nothing.

    p, g, m, v: arrays of one shape. t: the step, from 1. betas: the shares of m and v that stay.
    eps: keeps the division finite. decay: pulls p towards 0 by lr * decay, apart from the gradient.
    scale: multiplies g first (clipping)."""
    raise NotImplementedError("lesson 07")


def trunk_backward(dx, config, cache):
    """dx (B,T,C) -> a dict with the gradient of every parameter and table block below the head

    The forward pass was   h = block[slot], the token embedding;   h = block_forward(h, i, ...) for i = 0, 1,
    ... config.n_layers - 1;   x = rmsnorm(h).   The dict's names are "norm", "embed" and those of
    block_backward(dh, i, config, layers[i]) -> dh, dict."""
    slot, U, layers, norm = cache  # slot (B,T) int; the embedding's U rows; caches of the blocks and the norm
    raise NotImplementedError("lesson 07")
