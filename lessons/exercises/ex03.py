"""Exercise 03: the backward pass of RMSNorm. Test it with: python -m lessons.check 03"""

import numpy as np  # noqa: F401


def rmsnorm_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dg (C,)

    The forward pass was   n = x * r,   out = n * g,   with one r for each position."""
    n, r, g = cache  # (B,T,C), (B,T,1), (C,)
    raise NotImplementedError("lesson 03")
