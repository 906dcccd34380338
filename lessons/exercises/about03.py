"""How exercise 03 is checked: two backward passes against slopes, the loss against the library's."""

import numpy as np

from lessons.check import Task, mutant
from ministem.model import (  # fmt: skip
    linear_backward,
    linear_forward,
    rmsnorm_backward,
    rmsnorm_forward,
)


def linear_args(rng):
    return dict(x=rng.standard_normal((2, 5, 3)), w=rng.standard_normal((3, 4)))


def args(rng):
    B, T, C = 2, 5, 3
    return dict(x=rng.standard_normal((B, T, C)), g=rng.standard_normal(C))


def loss_args(rng):
    B, T, C, V = 2, 5, 3, 7
    return dict(
        x=rng.standard_normal((B, T, C)), head=rng.standard_normal((C, V)), targets=rng.integers(0, V, (B, T))
    )


def head_loss(x, head, targets):
    """What ministem.model.head_loss_forward does, without its chunks of positions."""
    logits = x @ head  # (B,T,V)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    p = e / e.sum(-1, keepdims=True)
    right = np.arange(head.shape[1]) == targets[..., None]  # (B,T,V)
    loss = -np.log(p[right]).mean()
    dlogits = (p - right) / targets.size
    dx, dhead = linear_backward(dlogits, (x, head))
    return loss, dx, dhead


TASKS = [
    Task(
        solution=linear_backward,
        forward=linear_forward,
        args=linear_args,
        results=("dx", "dw"),
        small=dict(x=np.array([[[1.0, 2]], [[3, 4]]]), w=np.array([[1.0], [10]])),
        mutants={
            "reshape is not transposing: it keeps the order of the numbers in memory": mutant(
                linear_backward, "flat(x).T", "x.reshape(x.shape[-1], -1)"
            ),
            "dw of the first text only: all B texts used the same w, so their parts add": mutant(
                linear_backward, "flat(x).T @ flat(dout)", "x[0].T @ dout[0]"
            ),
        },
    ),
    Task(
        solution=rmsnorm_backward,
        forward=rmsnorm_forward,
        args=args,
        results=("dx", "dg"),
        steps=("dn",),
        small=dict(x=np.array([[[3.0, 4]], [[1, 0]]]), g=np.array([1.0, 2])),
        mutants={
            "the weight g is forgotten on the way back: dn = dout * g": mutant(
                rmsnorm_backward, "dn = dout * g", "dn = dout"
            ),
            "r is treated as a constant, but every entry of x moves it": mutant(
                rmsnorm_backward, " - n * (row_dot(dn, n) / n.shape[-1])", ""
            ),
            "the sum over C stands where the mean should": mutant(rmsnorm_backward, " / n.shape[-1]", ""),
            "the mean is taken over everything, and each position has a mean of its own": mutant(
                rmsnorm_backward, "row_dot(dn, n) / n.shape[-1]", "(dn * n).mean()"
            ),
            "this is LayerNorm's formula: RMSNorm takes no mean off x, so none comes off dn": mutant(
                rmsnorm_backward, "dn - n", "dn - dn.mean(-1, keepdims=True) - n"
            ),
            "the part of dn along n is taken away, not added": mutant(rmsnorm_backward, "(dn - n", "(dn + n"),
            "the mean is that of dn * n; here g is missing in it": mutant(
                rmsnorm_backward, "row_dot(dn, n)", "row_dot(dout, n)"
            ),
            "the mean is that of dn * n, not of dn alone": mutant(
                rmsnorm_backward, "row_dot(dn, n) / n.shape[-1]", "dn.mean(-1, keepdims=True)"
            ),
            "what is taken away points along n: the mean has to be multiplied by n": mutant(
                rmsnorm_backward, "- n * (row_dot", "- (row_dot"
            ),
            "dg sums dout alone; forward multiplied g by n": mutant(rmsnorm_backward, "dout * n", "dout"),
        },
    ),
    Task(
        solution=head_loss,
        args=loss_args,
        results=("loss", "dx", "dhead"),
        causes=("loss", "dhead", "dx"),
        steps=("logits", "p", "dlogits"),
        small=dict(x=np.array([[[1.0], [2]]]), head=np.array([[0.0, 1]]), targets=np.array([[1, 0]])),
        mutants={
            "the gradients lack the 1/N of the mean: dlogits = (p - right) / N": mutant(
                head_loss, " / targets.size", ""
            ),
            "the 1 at the target is forgotten: dlogits is p there, not p - 1": mutant(
                head_loss, "p - right", "p"
            ),
            "these are the gradients of the likelihood; the loss has a minus": mutant(
                head_loss, "p - right", "right - p"
            ),
            "the loss is a sum, and the mean over the positions was needed": mutant(
                head_loss, "[right]).mean()", "[right]).sum()"
            ),
            "the loss looks at the probability of the target alone, not of all tokens": mutant(
                head_loss, "np.log(p[right])", "np.log(p)"
            ),
            "the logarithm is the natural one, np.log": mutant(head_loss, "np.log(", "np.log2("),
            "the loss is -log of the target's probability, not the probability": mutant(
                head_loss, "-np.log(p[right])", "-p[right]"
            ),
            "N is the number of positions B*T, not of texts": mutant(
                head_loss, "targets.size", "len(targets)"
            ),
        },
    ),
]

HINTS = (
    "linear: dx goes back through the same w, transposed. For dw make one list of all positions first. "
    "rmsnorm: start with dg, the easy one: out = n * g, and one g serves all B*T positions. "
    "head_loss: lesson 02 has the formula of dlogits.",
    "linear: flat = x.reshape(-1, x.shape[-1]) is (B*T,I); what product of it and dout has the shape of w? "
    "rmsnorm: let dn = dout * g. Were r constant, dx would be r * dn. Now take away the part of dn along n. "
    "head_loss: dlogits is (p - onehot) / (B*T). The rest is linear_backward.",
    "linear: dx = dout @ w.T, dw = flat_x.T @ flat_dout. rmsnorm: dx = r * (dn - n * m), where m (B,T,1) is "
    "the mean of dn * n over the last axis. head_loss: linear_backward(dlogits, (x, head)).",
)
