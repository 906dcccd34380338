"""Exercise 06: the backward pass of the STEM layer; of a whole block; and what the table keeps from x.

Test it with: python -m lessons.check 06"""

import numpy as np  # noqa: F401

from ministem.backend import sum_rows  # noqa: F401  lesson 02's
from ministem.model import (  # noqa: F401  lessons 03 to 05
    FFN,
    attention_backward,
    glu_backward,
    linear_backward,
    rmsnorm_backward,
)


def stem_ffn_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dw_gate (C,F), dblock (U,F), dw_down (F,C)

    The forward pass was   a = x Wg,   u = block[slot],   s = sigmoid(a),   h = a * s * u,   out = h Wd."""
    slot, U, gate, glu, down = cache  # slot (B,T) int; U rows; the caches (x, w_gate), (a, s, u), (h, w_down)
    raise NotImplementedError("lesson 06")


def block_backward(dh, i, config, cache):
    """dh (B,T,C) -> dh (B,T,C), and a dict with the gradient of each of the layer's arrays

    The forward pass of layer i was   h = h + attention(rmsnorm(h)),   then   h = h + ffn(rmsnorm(h)).
    The dict's names are layers.{i}.norm1, wqkv, wo, norm2, and those of the FFN's arrays."""
    norm1, attn, norm2, ffn = cache
    at, (_, backward, names) = f"layers.{i}.", FFN[config.ffn_kind(i)]  # backward: stem_ffn_backward, if stem
    dn, *dweights = backward(dh, ffn)  # the FFN, which came last, comes first
    grads = {at + name: dw for name, dw in zip(names, dweights, strict=True)}  # noqa: F841
    raise NotImplementedError("lesson 06")


def lost_dx(dout, cache):
    """What dense_ffn_backward returns as dx, less what stem_ffn_backward would: (B,T,C). A stretch.

    Let each x be one-hot and the table be w_up: then both layers have the same out, and not the same dx.
    dout (B,T,C); the cache is that of dense_ffn_forward. Find the difference as one formula."""
    gate, up, glu, down = cache  # (x, w_gate), (x, w_up), (a, s, u), (h, w_down)
    raise NotImplementedError("lesson 06")
