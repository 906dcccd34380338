import numpy as np


def rope_backward(dout, rot):
    return (dout.view(rot.dtype) * rot.conj()[:, None]).view(dout.dtype)


def attend(q, k, v, mask):
    s = q @ k.T / np.sqrt(q.shape[1]) + mask
    e = np.exp(s - s.max(1, keepdims=True))
    p = e / e.sum(1, keepdims=True)
    return p @ v, (q, k, v, p)


def attend_backward(dy, cache):
    q, k, v, p = cache
    dp = dy @ v.T
    ds = p * (dp - (dp * p).sum(1, keepdims=True)) / np.sqrt(q.shape[1])
    return ds @ k, ds.T @ q, p.T @ dy
