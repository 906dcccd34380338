import numpy as np


def linear_backward(dout, cache):
    x, w = cache
    dw = x.reshape(-1, x.shape[-1]).T @ dout.reshape(-1, dout.shape[-1])
    return dout @ w.T, dw


def rmsnorm_backward(dout, cache):
    n, r, g = cache
    dn = dout * g
    dx = r * (dn - n * (dn * n).mean(-1, keepdims=True))
    return dx, (dout * n).sum((0, 1))


def head_loss(x, head, targets):
    logits = x @ head
    e = np.exp(logits - logits.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    right = np.arange(head.shape[1]) == targets[..., None]
    loss = -np.log(p[right]).mean()
    dx, dhead = linear_backward((p - right) / targets.size, (x, head))
    return loss, dx, dhead
