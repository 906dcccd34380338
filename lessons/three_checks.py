"""How much three ways of checking a gradient catch: page 03 shows the table that this makes."""

import numpy as np

from lessons.check import mutant, slopes
from lessons.exercises import about03
from ministem.model import rmsnorm_backward, rmsnorm_forward, stem_ffn_backward, stem_ffn_forward


def softmax_forward(x):
    e = np.exp(x - x.max(-1, keepdims=True))  # (B,T,C)
    p = e / e.sum(-1, keepdims=True)  # (B,T,C)
    return p, p


def softmax_backward(dout, p):
    return p * (dout - (dout * p).sum(-1, keepdims=True))  # (B,T,C)


def stem(new, old="sum_rows(du, slot, U)"):
    return mutant(stem_ffn_backward, old, new)


[rmsnorm] = [task for task in about03.TASKS if task.solution is rmsnorm_backward]
MISTAKES = {  # forward -> the right backward, then wrong ones
    rmsnorm_forward: [rmsnorm_backward, *rmsnorm.mutants.values()],
    softmax_forward: [
        softmax_backward,
        lambda dout, p: p * dout,  # its second half forgotten
        lambda dout, p: p * (1 - p) * dout,  # only the diagonal of the Jacobian
        lambda dout, p: p * (dout - dout.mean(-1, keepdims=True)),  # mean, not weighted by p
        lambda dout, p: p * (dout - (dout * p).sum()),  # summed over all positions
        lambda dout, p: 0 * dout,  # nothing
    ],
    stem_ffn_forward: [
        stem_ffn_backward,
        stem("np.zeros((U, du.shape[-1])); dblock[slot] += du"),  # repeats are lost
        stem("sum_rows(du, slot, U) / np.bincount(slot.flat, minlength=U)[:, None]"),  # a mean
        stem("sum_rows(dh, slot, U)"),  # not multiplied by the gate
        stem("np.zeros((U, du.shape[-1]))"),  # nothing
        stem("return 0 * dx", "return dx"),  # nothing for x
    ],
}


def inputs(rng, forward, B, T, C, F, U, slot, g):
    x = rng.standard_normal((B, T, C))
    if forward is not stem_ffn_forward:
        return dict(x=x, g=g) if forward is rmsnorm_forward else dict(x=x)
    w_gate, block, w_down = (rng.standard_normal(shape) for shape in ((C, F), (U, F), (F, C)))
    return dict(x=x, slot=slot, w_gate=w_gate, block=block, w_down=w_down)


def passes(rng, check, forward, backward, upstream, sizes):
    args = inputs(rng, forward, **sizes)
    out, cache = forward(**args)
    dout = upstream(out.shape)
    grads = backward(dout, cache)
    grads = grads if isinstance(grads, tuple) else (grads,)
    floats = [name for name, a in args.items() if a.dtype.kind == "f"]
    return all(
        check(grad, slopes(lambda a, name=name: np.sum(dout * forward(**{**args, name: a})[0]), args[name]))
        for name, grad in zip(floats, grads, strict=True)
    )


def caught():
    """-> for each way to check: its name, how many mistakes it catches, of how many"""
    rng = np.random.default_rng(0)
    easy = dict(B=4, T=4, C=4, F=4, U=16, slot=np.arange(16).reshape(4, 4), g=np.ones(4))
    hard = dict(B=2, T=5, C=3, F=4, U=6, slot=np.array([[0, 3, 3, 1, 5], [2, 4, 0, 0, 3]]))
    hard |= dict(g=rng.standard_normal(3))
    ways = {
        "not zero": (lambda g, s: g.any(), rng.standard_normal, easy),
        "convenient input, 1 %": (lambda g, s: np.allclose(g, s, rtol=1e-2, atol=1e-2), np.ones, easy),
        "random, unequal, repeats, 1e-6": (
            lambda g, s: abs(g - s).max() < 1e-6 * abs(s).max(), rng.standard_normal, hard
        ),
    }  # fmt: skip
    for name, (check, upstream, sizes) in ways.items():
        verdicts = []
        for forward, (backward, *wrong) in MISTAKES.items():
            assert passes(rng, check, forward, backward, upstream, sizes)
            verdicts += [not passes(rng, check, forward, w, upstream, sizes) for w in wrong]
        yield name, sum(verdicts), len(verdicts)
