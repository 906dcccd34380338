"""Exercise 03: your first backward passes, an easy, a middling and a harder one.

Test them with: python -m lessons.check 03"""

import numpy as np  # noqa: F401


def linear_backward(dout, cache):
    """dout (B,T,O) -> dx (B,T,I), dw (I,O)

    The forward pass was   out = x w.   All B*T positions used the same w."""
    x, w = cache  # (B,T,I), (I,O)
    raise NotImplementedError("lesson 03")


def rmsnorm_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dg (C,)

    The forward pass was   n = x * r,   out = n * g,   with one r for each position."""
    n, r, g = cache  # (B,T,C), (B,T,1), (C,)
    raise NotImplementedError("lesson 03")


def head_loss(x, head, targets):
    """x (B,T,C), head (C,V), targets (B,T) int -> loss (), dx (B,T,C), dhead (C,V)

    The end of a language model, both ways: logits = x head, and the loss is the mean over all positions of
    -log softmax(logits)[target], as in lesson 02. dx and dhead are its gradients."""
    raise NotImplementedError("lesson 03")
