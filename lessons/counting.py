"""What a layer costs, counted while its code runs: for page 06."""

import numpy as np

from ministem.model import FFN, attention_forward, causal_mask, rope_rotations


class Counting(np.ndarray):
    """An array that counts the multiply-adds of matrix products, and the weights read for them."""

    work, weights = 0, 0

    def __array_ufunc__(self, ufunc, method, *args, out=None, **kwargs):
        args = [np.asarray(a) for a in args]
        out = out and tuple(np.asarray(a) for a in out)
        result = getattr(ufunc, method)(*args, out=out, **kwargs)
        if ufunc is np.matmul and result.shape[-1] > 1:  # one column only: a sum, written as a product
            Counting.work += result.size * args[0].shape[-1]
            Counting.weights += args[1].size if args[1].ndim == 2 else 0
        return result.view(Counting)


def layer(d, d_ff, L, heads, kind):
    """-> multiply-adds of the FFN, weights that it reads, multiply-adds of attention; for L tokens"""
    x = np.zeros((1, L, d), "float32").view(Counting)  # numbers don't matter: only sizes are counted
    arrays = dict(w_gate=(d, d_ff), w_up=(d, d_ff), w_down=(d_ff, d), table=(1, d_ff))
    forward, _, names = FFN[kind]
    slot = [np.zeros((1, L), int)] if kind == "stem" else []
    Counting.work = Counting.weights = 0
    forward(x, *slot, *(np.zeros(arrays[name], "float32") for name in names))
    ffn, weights, Counting.work = Counting.work, Counting.weights, 0
    wqkv, wo, plain = np.zeros((d, 3 * d), "float32"), np.zeros((d, d), "float32"), np.zeros(1, "float32")
    rot, mask = rope_rotations(0, L, d // heads, 10000.0, like=plain), causal_mask(L, like=plain)
    attention_forward(x, wqkv, wo, rot, mask, heads)
    return ffn, weights, Counting.work
