import numpy as np  # noqa: F401

from ministem.backend import sum_rows
from ministem.model import FFN, attention_backward, glu_backward, linear_backward, rmsnorm_backward


def stem_ffn_backward(dout, cache):
    slot, U, gate, glu, down = cache
    dh, dw_down = linear_backward(dout, down)
    da, du = glu_backward(dh, glu)
    dx, dw_gate = linear_backward(da, gate)
    return dx, dw_gate, sum_rows(du, slot, U), dw_down


def block_backward(dh, i, config, cache):
    norm1, attn, norm2, ffn = cache
    at, (_, backward, names) = f"layers.{i}.", FFN[config.ffn_kind(i)]
    dn, *dweights = backward(dh, ffn)
    grads = {at + name: dw for name, dw in zip(names, dweights, strict=True)}
    dn, grads[at + "norm2"] = rmsnorm_backward(dn, norm2)
    dh = dh + dn
    dn, grads[at + "wqkv"], grads[at + "wo"] = attention_backward(dh, attn)
    dn, grads[at + "norm1"] = rmsnorm_backward(dn, norm1)
    return dh + dn, grads


def lost_dx(dout, cache):
    gate, (x, w_up), (a, s, u), (h, w_down) = cache
    return (dout @ w_down.T * a * s) @ w_up.T
