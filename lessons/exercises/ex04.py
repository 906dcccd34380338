"""Exercise 04: attention in one head of one text, both ways; and how a rotation is undone.

Test it with: python -m lessons.check 04"""

import numpy as np  # noqa: F401


def rope_backward(dout, rot):
    """dout (B,T,N,D), rot (T,D/2) complex -> dx (B,T,N,D)

    The forward pass took features 2j and 2j+1 as one complex number, and multiplied it by rot[t, j]:
    (x.view("complex128") * rot[:, None]).view("float64"). Take x.view(rot.dtype), for floats of any size."""
    raise NotImplementedError("lesson 04")


def attend(q, k, v, mask):
    """softmax(q k' / sqrt(D) + mask) v          q (T,D), k (S,D), v (S,D), mask (T,S) -> y (T,D), cache

    mask: 0 where a query may look, -inf elsewhere. (S = T while training. While a text is written, S keys
    are there and T = 1 query is new.) The cache is what the backward pass unpacks: q, k, v and p (T,S)."""
    raise NotImplementedError("lesson 04")


def attend_backward(dy, cache):
    """dy (T,D) -> dq (T,D), dk (S,D), dv (S,D)"""
    q, k, v, p = cache  # (T,D), (S,D), (S,D), (T,S)
    raise NotImplementedError("lesson 04")
