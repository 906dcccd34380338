"""Exercise 06: the backward pass of the STEM layer. Test it with: python -m lessons.check 06"""

import numpy as np  # noqa: F401


def stem_ffn_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dw_gate (C,F), dblock (U,F), dw_down (F,C)

    The forward pass was   a = x Wg,   u = block[slot],   s = sigmoid(a),   h = a * s * u,   out = h Wd."""
    slot, U, (x, w_gate), (a, s, u), (h, w_down) = cache  # slot (B,T) int; U rows; a, s, u, h (B,T,F)
    raise NotImplementedError("lesson 06")
