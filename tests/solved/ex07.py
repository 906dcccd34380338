import numpy as np

from ministem.backend import sum_rows
from ministem.model import block_backward, rmsnorm_backward


def adamw(p, g, m, v, t, lr, betas, eps, decay, scale=1.0):
    b1, b2 = betas
    g = g * scale
    m[...] = b1 * m + (1 - b1) * g
    v[...] = b2 * v + (1 - b2) * g**2
    p -= lr * decay * p
    p -= lr * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)


def trunk_backward(dx, config, cache):
    slot, U, layers, norm = cache
    grads = {}
    dh, grads["norm"] = rmsnorm_backward(dx, norm)
    for i in range(config.n_layers - 1, -1, -1):
        dh, more = block_backward(dh, i, config, layers[i])
        grads.update(more)
    grads["embed"] = sum_rows(dh, slot, U)
    return grads
