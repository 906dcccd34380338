"""Layers that are a few percent faster than those of ministem/model.py, and worse to read.

    python benchmarks/step.py --sides ministem ministem-fast torch

Attention goes in blocks of queries, each of which only meets the keys that it may look at (the plain one
computes all scores and masks the half that lies in the future); two backward passes reuse their own
arrays. Same arguments, same results up to rounding (tests/test_benchmarks.py); training only, no KV cache.
"""

import numpy as np

from ministem import model
from ministem.backend import row_dot, row_sum
from ministem.model import (
    causal_mask,
    flat,
    join_heads,
    linear_backward,
    linear_forward,
    rope_backward,
    rope_forward,
    split_heads,
)

BLOCK = 64  # queries; with T = 128 a quarter of the scores is left out, with T = 256 three eighths


def install():
    """Put these in the place of the model's own, in this process."""
    for function in (attention_forward, attention_backward, glu_backward, rmsnorm_backward):
        setattr(model, function.__name__, function)


def attention_forward(x, wqkv, wo, rot, mask, n_kv_heads, extend=None):
    """As model.attention_forward, `mask` being the causal one.  x (B,T,C) -> out (B,T,C)"""
    assert extend is None, "for training: there is no cache of keys to put these behind"
    (B, T, _), K, D = x.shape, n_kv_heads, 2 * rot.shape[1]
    H = len(wo) // D
    qkv, proj = linear_forward(x, wqkv)
    qkv = qkv.reshape(B, T, H + 2 * K, D)
    qk, _ = rope_forward(qkv[:, :, : H + K], rot)
    qk[:, :, :H] *= D**-0.5
    k, v = split_heads(qk[:, :, H:], K), split_heads(qkv[:, :, H + K :], K)  # (B,K,T,D)
    blocks, joined = [], np.empty_like(x, shape=(B, T, H, D))
    for i in range(0, T, BLOCK):
        j = min(i + BLOCK, T)  # queries i .. j-1 look at keys 0 .. j-1
        q = split_heads(qk[:, i:j, :H], K)  # (B,K,G*Q,D)
        p = q @ k[:, :, :j].swapaxes(2, 3)  # (B,K,G*Q,j)
        p.reshape(B, K, -1, j - i, j)[..., i:] += causal_mask(j - i, j - i, like=x)
        p -= p.max(-1, keepdims=True)
        np.exp(p, out=p)
        p /= row_sum(p)
        y = p @ v[:, :, :j]  # (B,K,G*Q,D)
        joined[:, i:j] = join_heads(y, j - i)
        blocks.append((i, j, q, p, y))
    out, merge = linear_forward(joined.reshape(B, T, H * D), wo)
    return out, (blocks, k, v, rot, proj, merge)


def attention_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dwqkv (C,(H+2K)*D), dwo (H*D,C)"""
    blocks, k, v, rot, proj, merge = cache
    B, K, T, D = k.shape
    djoined, dwo = linear_backward(dout, merge)
    djoined = djoined.reshape(B, T, -1, D)
    H = djoined.shape[2]
    dqk = np.empty_like(dout, shape=(B, T, H + K, D))
    dk, dv = np.zeros_like(k), np.zeros_like(v)
    for i, j, q, p, y in blocks:
        dy = split_heads(djoined[:, i:j], K)  # (B,K,G*Q,D)
        dv[:, :, :j] += p.swapaxes(2, 3) @ dy
        ds = dy @ v[:, :, :j].swapaxes(2, 3)  # (B,K,G*Q,j)
        ds -= row_dot(dy, y)
        ds *= p
        dqk[:, i:j, :H] = join_heads(ds @ k[:, :, :j] * D**-0.5, j - i)
        dk[:, :, :j] += ds.swapaxes(2, 3) @ q
    dqk[:, :, H:] = join_heads(dk, T)
    dqkv = np.concatenate([rope_backward(dqk, rot), join_heads(dv, T)], axis=2).reshape(B, T, -1)
    dx, dwqkv = linear_backward(dqkv, proj)
    return dx, dwqkv, dwo


def glu_backward(dh, cache):
    """dh (B,T,F) -> da (B,T,F), du (B,T,F)"""
    a, s, u = cache
    g = a * s
    da = 1 - s
    da *= g
    da += s
    da *= u
    da *= dh
    g *= dh
    return da, g


def rmsnorm_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dg (C,)"""
    n, r, g = cache
    dg = flat(dout * n).sum(0)
    dn = dout * g
    dn -= n * (row_dot(dn, n) / n.shape[-1])
    dn *= r
    return dn, dg
