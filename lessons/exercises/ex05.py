"""Exercise 05: the backward pass of SwiGLU, its heart first. Test it with: python -m lessons.check 05"""

import numpy as np  # noqa: F401

from ministem.model import linear_backward  # noqa: F401  lesson 03's: dx, dw = linear_backward(dout, (x, w))


def glu_backward(dh, cache):
    """dh (B,T,F) -> da (B,T,F), du (B,T,F)

    The forward pass was   s = sigmoid(a),   h = a * s * u."""
    a, s, u = cache  # (B,T,F) each
    raise NotImplementedError("lesson 05")


def dense_ffn_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dw_gate (C,F), dw_up (C,F), dw_down (F,C)

    The forward pass was   a = x Wg,   u = x Wu,   s = sigmoid(a),   h = a * s * u,   out = h Wd.
    In the cache, each step keeps what it was made of: gate is (x, w_gate), up (x, w_up), glu (a, s, u) and
    down (h, w_down). So linear_backward(dout, down) gives dh and dw_down."""
    gate, up, glu, down = cache
    raise NotImplementedError("lesson 05")
