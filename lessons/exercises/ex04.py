"""Exercise 04: the heart of attention, both ways. Test it with: python -m lessons.check 04

Each function has a gap, marked "yours". What stands before and after it is right: leave it."""

import numpy as np

from ministem.model import (  # fmt: skip
    join_heads,
    linear_backward,
    linear_forward,
    rope_backward,
    rope_forward,
    split_heads,
)


def attention_forward(x, wqkv, wo, rot, mask, n_kv_heads, extend=None):
    """x (B,T,C), wqkv (C,(H+2K)*D), wo (H*D,C), rot (T,D/2), mask (T,T) -> out (B,T,C), cache"""
    (B, T, _), K, D = x.shape, n_kv_heads, 2 * rot.shape[1]
    H = len(wo) // D
    qkv, proj = linear_forward(x, wqkv)
    qkv = qkv.reshape(B, T, H + 2 * K, D)
    qk, _ = rope_forward(qkv[:, :, : H + K], rot)
    q = split_heads(qk[:, :, :H], K)  # (B,K,T*G,D)  the G queries of position 0, then of 1, ...
    k = split_heads(qk[:, :, H:], K)  # (B,K,T,D)
    v = split_heads(qkv[:, :, H + K :], K)  # (B,K,T,D)
    # yours, 1 of 2: scores of every query with every key, scaled, masked; a softmax; an average
    raise NotImplementedError("lesson 04")
    p = ...  # (B,K,T*G,T)  weights: each row adds up to 1
    y = ...  # (B,K,T*G,D)  averages of v
    out, merge = linear_forward(join_heads(y, T).reshape(B, T, H * D), wo)
    return out, (q, k, v, p, y, rot, proj, merge)


def attention_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dwqkv (C,(H+2K)*D), dwo (H*D,C)

    The cache is the library's, and there q has been multiplied by 1/sqrt(D) already: the scores are q k'."""
    q, k, v, y, e, z, mask, rot, proj, merge = cache  # shapes as above
    B, K, T, D = k.shape
    p = e / z  # (B,K,T*G,T)  all of the weights, since here a single block has all queries  # noqa: F841
    djoined, dwo = linear_backward(dout, merge)
    dy = split_heads(djoined.reshape(B, T, -1, D), K)  # (B,K,T*G,D)  # noqa: F841
    # yours, 2 of 2: back through the average, the softmax and the product of q and k
    raise NotImplementedError("lesson 04")
    dv = ...  # (B,K,T,D)
    dq = ...  # (B,K,T*G,D)  of the q before it was multiplied
    dk = ...  # (B,K,T,D)
    dq, dk, dv = (join_heads(d, T) for d in (dq, dk, dv))  # (B,T,H,D), (B,T,K,D) twice
    dqk = rope_backward(np.concatenate([dq, dk], axis=2), rot)
    dx, dwqkv = linear_backward(np.concatenate([dqk, dv], axis=2).reshape(B, T, -1), proj)
    return dx, dwqkv, dwo
