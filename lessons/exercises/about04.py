"""How exercise 04 is checked: one head of attention against slopes. The library does all heads at once."""

import numpy as np

from lessons.check import Task, mutant
from ministem.model import rope_backward, rope_forward, rope_rotations


def attend(q, k, v, mask):
    """softmax(q k' / sqrt(D) + mask) v          q (T,D), k (S,D), v (S,D), mask (T,S) -> y (T,D), cache"""
    s = q @ k.T / q.shape[1] ** 0.5 + mask  # (T,S)
    e = np.exp(s - s.max(-1, keepdims=True))  # (T,S)
    p = e / e.sum(-1, keepdims=True)  # (T,S)  each row adds up to 1
    return p @ v, (q, k, v, p)


def attend_backward(dy, cache):
    """dy (T,D) -> dq (T,D), dk (S,D), dv (S,D)"""
    q, k, v, p = cache
    dv = p.T @ dy  # forward: y = p @ v
    dp = dy @ v.T  # (T,S)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True))  # (T,S)
    ds = ds / q.shape[1] ** 0.5  # forward: the scores were divided by this
    return ds @ k, ds.T @ q, dv


def args(rng):
    T, S, D = 4, 5, 6
    q, k, v = (rng.standard_normal((n, D)) for n in (T, S, S))
    return dict(q=q, k=k, v=v, mask=np.triu(np.full((T, S), -np.inf), S - T + 1))  # the last T of S


def turned(rng):
    x = rng.standard_normal((2, 5, 3, 4))
    return dict(x=x, rot=rope_rotations(0, 5, 4, 100.0, like=x))


def forward(*changes):
    return mutant(attend, *changes)


def backward(*changes):
    return mutant(attend_backward, *changes)


ROOT = " / q.shape[1] ** 0.5"
ADDED, SOFT = ROOT + " + mask", "p * (dp - (dp * p).sum(-1, keepdims=True))"
SMALL = dict(
    q=np.array([[1.0], [2]]),
    k=np.array([[1.0], [0]]),
    v=np.array([[10.0], [20]]),
    mask=np.array([[0, -np.inf], [0, 0]]),
)
TASKS = [
    Task(
        solution=rope_backward,
        forward=rope_forward,
        args=turned,
        results=("dx",),
        small=dict(x=np.array([[[[1.0, 2]], [[3, 4]]]]), rot=np.array([[1.0], [1j]])),
        mutants={
            "this turns on by the same angle; the way back turns back: rot.conj()": mutant(
                rope_backward, "rot.conj()", "rot"
            ),
            "the angle turns round, not the point: -rot adds half a turn": mutant(
                rope_backward, "rot.conj()", "-rot"
            ),
            "dividing by rot turns back once; twice is too far": mutant(
                rope_backward, "* rot.conj()[:, None]", "/ rot[:, None] ** 2"
            ),
            "the real part alone squeezes; a turn needs both parts": mutant(
                rope_backward, "rot.conj()", "rot.real"
            ),
            "rot[t] belongs to position t, and here to head n: it needs an axis for heads: rot[:, None]": (
                lambda dout, rot: (dout.view(rot.dtype) * rot.conj()[: dout.shape[2]]).view(dout.dtype)
            ),
        },
    ),
    Task(
        solution=attend,
        args=args,
        results=("out",),
        steps=("e", "p"),
        small=SMALL,
        mutants={
            "the mask is put on after the softmax: the rows no longer add up to 1": forward(
                ADDED, ROOT, "# (T,S)  each", "* (mask == 0)  # each"
            ),
            "these are the weights; what is due is the average of the values, p @ v": (
                lambda *inputs: (attend(*inputs)[1][3], None)
            ),
            "there is no mask: each position sees those that come after it": forward(ADDED, ROOT),
            "scores are divided by D, not by its square root": forward(ROOT, " / q.shape[1]"),
            "scores are not divided by the square root of D": forward(ROOT, ""),
            "the columns add up to 1, not the rows: a softmax over queries": forward("e.sum(-1", "e.sum(0"),
        },
    ),
    Task(
        solution=attend_backward,
        forward=attend,
        args=args,
        results=("dq", "dk", "dv"),
        steps=("dp", "ds"),
        small=SMALL,
        mutants={
            "only the diagonal of the softmax's Jacobian, p (1 - p): a score moves its whole row": backward(
                SOFT, "p * (1 - p) * dp"
            ),
            "the second half of softmax's backward is missing: ds is not p * dp alone": backward(
                SOFT, "p * dp"
            ),
            "the sum that is taken off dp is not weighted by p": backward("(dp * p).sum", "dp.sum"),
            "ds is not multiplied by p: keys behind the mask get a gradient": backward(
                "p * (dp - ", "(dp - "
            ),
            "the sum is over queries; each query has a softmax of its own, over keys": backward(
                ".sum(-1, keepdims=True))", ".sum(0, keepdims=True))"
            ),
            "the mean over the row is taken off, and was to be a minus": backward("(dp - (dp", "(dp + (dp"),
            "what is taken off dp is a sum, weighted by p; no mean over the keys": backward(
                "(dp * p).sum(", "(dp * p).mean("
            ),
            "each query has a sum of its own: over its keys, axis -1": backward(
                "(dp * p).sum(-1, keepdims=True)", "(dp * p).sum()"
            ),
            "the softmax was skipped on the way back: dp is not yet ds": backward(SOFT, "dp"),
            "dq and dk are divided by D, not by its square root": backward(ROOT, " / q.shape[1]"),
            "dq and dk are not divided by the square root of D, but the scores were": backward(ROOT, ""),
            "dk lacks the square root of D: q is not scaled in this cache": backward(
                "ds.T @ q", "ds.T @ q * q.shape[1] ** 0.5"
            ),
            "dq lacks the square root of D": backward("return ds @ k", "return ds @ k * q.shape[1] ** 0.5"),
        },
    ),
]

HINTS = (
    "rope_backward: multiplying by exp(i phi) turns; what turns back? attend: five lines, the page has them "
    "for numbers. attend_backward: two products (s = q k', y = p v) with a softmax between them; begin with "
    "dv and dp.",
    "Turning back is the complex conjugate. Backward of y = p @ v: dv = p' dy, dp = dy v' (' transposes). "
    "Then dp becomes ds: each row by itself.",
    "ds = p * (dp - m), where m (T,1) is the sum of dp * p over the last axis, then divided by sqrt(D) as "
    "the scores were. dq = ds k, and dk = ds' q.",
)
