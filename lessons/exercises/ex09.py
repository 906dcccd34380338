"""Exercise 09: the FFN with the table in the gate's place. Test it with: python -m lessons.check 09"""

from ministem.backend import sum_rows  # noqa: F401
from ministem.model import glu_backward, glu_forward, linear_backward, linear_forward  # noqa: F401


def gate_ffn(x, slot, block, w_up, w_down):
    """out = (silu(block[slot]) * (x Wu)) Wd

    x (B,T,C), slot (B,T) int, block (U,F), w_up (C,F), w_down (F,C) -> out (B,T,C)"""
    raise NotImplementedError("lesson 09")


def gate_ffn_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dblock (U,F), dw_up (C,F), dw_down (F,C)"""
    slot, U, up, glu, down = cache  # (B,T), the number of rows, and what three forward calls kept:
    # u, up = linear_forward(x, w_up);   h, glu = glu_forward(...);   out, down = linear_forward(h, w_down)
    raise NotImplementedError("lesson 09")
