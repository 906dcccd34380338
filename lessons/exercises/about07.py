"""How exercise 07 is checked: one step of AdamW against the library, with an eps large enough to be seen."""

import numpy as np

from lessons.check import Task, mutant
from ministem.config import Config, init_params
from ministem.model import trunk_backward, trunk_forward
from ministem.optim import adamw


def args(rng):
    p, g, m = rng.standard_normal((3, 4, 5))
    v = rng.random((4, 5))
    hyper = dict(t=3, lr=0.1, betas=(0.8, 0.95), eps=0.01, decay=0.3, scale=0.4)
    return dict(p=p, g=g, m=m, v=v) | hyper


def trunk_args(rng):
    config = Config(7, dim=4, n_layers=2, n_heads=2, ffn_dim=6, context=5)
    params, tables = init_params(config, 0, "float64")
    for name, p in params.items():
        params[name] = rng.standard_normal(p.shape)
    x, cache = trunk_forward(params, config, tables.fetch(np.array([[0, 3, 3, 1, 5], [2, 4, 0, 0, 3]])))
    return dict(dx=rng.standard_normal(x.shape), config=config, cache=cache)


def look(given, grads):
    """The gradients of a few arrays, from the end of the model to its beginning."""
    return tuple(grads[name] for name in TRUNK)


TRUNK = ("norm", "layers.1.w_down", "layers.1.table", "layers.0.w_down", "layers.0.wqkv", "embed")
decay_line = "p *= 1 - lr * decay"
TASKS = [
    Task(
        solution=adamw,
        args=args,
        results=("p", "m", "v"),
        causes=("m", "v", "p"),
        small=dict(p=np.array([1.0, 2]), g=np.array([4.0, -1]), m=np.array([0.0, 0]), v=np.array([0.0, 0]))
        | dict(t=1, lr=0.1, betas=(0.9, 0.95), eps=0.0, decay=0.0),
        mutants={
            "the moments start at zero: without the division by 1 - beta^t early steps are wrong": mutant(
                adamw, "lr / (1 - beta1**t)", "lr", "v / (1 - beta2**t)", "v"
            ),
            "this is Adam with L2: decay went into the gradient, and so is divided by the root of v": mutant(
                adamw, "g = g * scale", "g = g * scale + decay * p", decay_line, "p *= 1"
            ),
            "eps belongs outside the root: sqrt(v) + eps, not sqrt(v + eps)": mutant(
                adamw, "(np.sqrt(v / (1 - beta2**t)) + eps)", "np.sqrt(v / (1 - beta2**t) + eps)"
            ),
            "decay is times the learning rate: p *= 1 - lr * decay": mutant(
                adamw, decay_line, "p *= 1 - decay"
            ),
            "scale is forgotten: the gradient is not clipped": mutant(adamw, "g = g * scale", "pass"),
            "v is a mean of squares: g * g": mutant(adamw, "g * g - v", "g - v"),
            "p = p * ... makes a new array; p *= ... changes the one that is there": mutant(
                adamw, decay_line, "p = p * (1 - lr * decay)"
            ),
            "decay pulls p towards zero: p shrinks": mutant(adamw, "1 - lr * decay", "1 + lr * decay"),
            "there is no decay: p *= 1 - lr * decay": mutant(adamw, decay_line, "pass"),
            "the step goes uphill: p -= ...": mutant(adamw, "p -= size", "p += size"),
            "1 - beta^t needs the t: the moments have run for t steps": mutant(
                adamw, "beta1**t", "beta1", "beta2**t", "beta2"
            ),
            "m needs 1 - beta1 to the power of t; v likewise, and v is right": mutant(
                adamw, "beta1**t", "beta1"
            ),
            "v needs 1 - beta2 to the power of t; m likewise, and m is right": mutant(
                adamw, "beta2**t", "beta2"
            ),
            "the root of v is missing: v is a mean of squares": mutant(adamw, "np.sqrt(v", "(v"),
            "g goes into m with the share 1 - beta1, not whole": mutant(
                adamw, "m += (1 - beta1) * (g - m)", "m *= beta1; m += g"
            ),
            "v is a mean of squares, g * g, not of sizes": mutant(adamw, "g * g - v", "abs(g) - v"),
            "beta1 is for m, beta2 for v": mutant(adamw, "beta1, beta2 = betas", "beta2, beta1 = betas"),
            "m stays by the share beta1; beta2 is for v": mutant(
                adamw, "m += (1 - beta1) * (g - m)", "m *= beta2; m += (1 - beta1) * g"
            ),
            "beta and 1 - beta have changed places: beta is the share that stays": mutant(
                adamw, "m += (1 - beta1)", "m += beta1", "v += (1 - beta2)", "v += beta2"
            ),
            "m and v have been corrected in place: only the step of p divides by 1 - beta^t": mutant(
                adamw, "p *= 1 - lr * decay", "p *= 1 - lr * decay; m /= 1 - beta1**t; v /= 1 - beta2**t",
                "size = lr / (1 - beta1**t)", "size = lr", "v / (1 - beta2**t)", "v",
            ),
            "nothing has changed: m = m + ... makes a new array, m += ... is in place": lambda *inputs: None,
        },
    ),
    Task(
        solution=trunk_backward,
        args=trunk_args,
        look=look,
        results=TRUNK,
        causes=TRUNK,
        mutants={
            "the layers come in the order of the forward pass; backward the last comes first": mutant(
                trunk_backward, "reversed(range(config.n_layers))", "range(config.n_layers)"
            ),
            "every layer got the dh that came out of the norm; each gets that of the layer after it": mutant(
                trunk_backward, "dh, layer_grads =", "_, layer_grads ="
            ),
            "the embedding gets the dh that comes out of layer 0, not dx": mutant(
                trunk_backward, "sum_rows(dh, slot, U)", "sum_rows(dx, slot, U)"
            ),
            "embed is one row for each position here: rows of one token have to be added up": mutant(
                trunk_backward, "sum_rows(dh, slot, U)", "dh"
            ),
            "the norm was skipped: dh starts as dx": mutant(
                trunk_backward, 'dh, grads["norm"] = rmsnorm_backward(dx, norm)',
                'dh, grads["norm"] = dx, rmsnorm_backward(dx, norm)[1]',
            ),
            "embed[slot] += dh keeps one of the repeated rows; rows 0 and 3 repeat here": mutant(
                trunk_backward, "sum_rows(dh, slot, U)", "np.zeros((U, 4)); grads['embed'][slot] += dh"
            ),
        },
    ),
]  # fmt: skip

HINTS = (
    "First g = g * scale. Then m moves towards g by the share 1 - beta1, and v towards g * g by 1 - beta2.",
    "Were m all zeros before step 1, it is (1 - beta1) * g after it. Divide it by what? And at step t?",
    "Divide m by 1 - beta1**t and v by 1 - beta2**t, but only in the step of p: m and v stay as they are. "
    "trunk_backward: the norm, then the layers from the last to the first, then sum_rows for the embedding.",
)
