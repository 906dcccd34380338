"""How exercise 06 is checked: STEM's backward pass against the slopes of its forward pass."""

import numpy as np

from lessons.check import Task, mutant
from ministem.config import Config, init_params
from ministem.model import (  # fmt: skip
    block_backward,
    block_forward,
    causal_mask,
    dense_ffn_backward,
    dense_ffn_forward,
    glu_backward,
    linear_backward,
    rope_rotations,
    stem_ffn_backward,
    stem_ffn_forward,
)


def args(rng):
    B, T, C, F, U = 2, 5, 3, 4, 7
    slot = np.array([[0, 3, 3, 1, 5], [2, 4, 0, 0, 3]])  # rows 0 and 3 are read three times; row 6 is not
    shapes = dict(w_gate=(C, F), block=(U, F), w_down=(F, C))
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return dict(x=rng.standard_normal((B, T, C)), slot=slot, **arrays)


ARRAYS = ("norm1", "wqkv", "wo", "norm2", "w_gate", "table", "w_down")


def block_args(rng):
    """Layer 1 of a small model, with a random dh and the cache of its forward pass."""
    config = Config(7, dim=4, n_layers=2, n_heads=2, ffn_dim=6, context=5)
    params, tables = init_params(config, 0, "float64")
    for name, p in params.items():
        params[name] = rng.standard_normal(p.shape)
    tables["layers.1.table"][...] = rng.standard_normal((7, 6))
    batch = tables.fetch(np.array([[0, 3, 3, 1, 5], [2, 4, 0, 0, 3]]))
    h = rng.standard_normal((2, 5, 4))
    rot, mask = rope_rotations(0, 5, 2, 100.0, like=h), causal_mask(5, like=h)
    _, cache = block_forward(h, 1, params, config, batch, rot, mask)
    return dict(dh=rng.standard_normal(h.shape), i=1, config=config, cache=cache)


def look(given, returned):
    dh, grads = returned
    return dh, *(grads[f"layers.1.{name}"] for name in ARRAYS)


def lost_dx(dout, cache):
    """dh * silu(a), which is du, on through w_up: what x got through the matrix and gets from no table."""
    gate, (x, w_up), glu, down = cache
    dh, _ = linear_backward(dout, down)
    return linear_backward(glu_backward(dh, glu)[1], (x, w_up))[0]


def one_hot(rng):
    """dout, and a dense cache of one-hot x."""
    C, F = 5, 4
    x = np.eye(C)[np.array([[0, 3, 3, 1, 4], [2, 4, 0, 0, 3]])]  # (B,T,C)
    out, cache = dense_ffn_forward(x, *(rng.standard_normal(s) for s in ((C, F), (C, F), (F, C))))
    return dict(dout=rng.standard_normal(out.shape), cache=cache)


def scatter(new):
    """The backward pass with another way to get dblock."""
    return mutant(stem_ffn_backward, "sum_rows(du, slot, U)", new)


def gate(da):
    """The backward pass with another da."""
    line = "da, du = glu_backward(dh, glu)"
    return mutant(stem_ffn_backward, line, f"{line}; a, s, u = glu; da = {da}")


SMALL = dict(x=np.array([[[1.0], [2]]]), slot=np.array([[1, 1]]), w_gate=np.array([[1.0]]),
             block=np.array([[3.0], [4]]), w_down=np.array([[5.0]]))  # fmt: skip
TASKS = [
    Task(
        solution=stem_ffn_backward,
        forward=stem_ffn_forward,
        args=args,
        results=("dx", "dw_gate", "dblock", "dw_down"),
        steps=("dh", "du", "da"),
        small=SMALL,
        mutants={
            "dblock[slot] += du keeps one of the repeated rows; rows 0 and 3 repeat here": scatter(
                "np.zeros((U, du.shape[-1])); dblock[slot] += du"
            ),
            "dblock is the mean over a token's positions; every position adds its part": scatter(
                "sum_rows(du, slot, U) / np.bincount(slot.flat, minlength=U).clip(1)[:, None]"
            ),
            "dblock adds up dh; forward multiplied the row by silu(a)": scatter("sum_rows(dh, slot, U)"),
            "dblock adds up dh * s; the gate is silu(a) = a s, not the sigmoid s": scatter(
                "sum_rows(dh * glu[1], slot, U)"
            ),
            "dblock is the gradient at each position, before the rows are added up": scatter("du"),
            "U says how many rows the block has; the last ones may go unread": scatter(
                "sum_rows(du, slot, slot.max() + 1)"
            ),
            "dx is zero; u gives x nothing, but the gate has seen x": mutant(
                stem_ffn_backward, "return dx,", "return 0 * dx,"
            ),
            "dblock adds up da; the row stood in u's place, and gets du": scatter("sum_rows(da, slot, U)"),
            "da is not multiplied by u: forward multiplied the gate by the row": gate("da / u"),
            "the slope of silu is not the sigmoid s: a moves s too": gate("dh * u * s"),
            "s (1 - s) is the slope of the sigmoid, not of silu, which is a times the sigmoid": gate(
                "dh * u * s * (1 - s)"
            ),
        },
    ),
    Task(
        solution=block_backward,
        args=block_args,
        look=look,
        results=("dh", *ARRAYS),
        mutants={
            "h went straight on past the FFN as well: the residual's dh is missing there": mutant(
                block_backward, "dh = dh + dn  #", "dh = dn  #"
            ),
            "h went straight on past attention as well: dh is missing in what is returned": mutant(
                block_backward, "return dh + dn", "return dn"
            ),
            "the norm before attention was skipped: a block has two, and two rmsnorm_backward": mutant(
                block_backward, "dn, grads[at + \"norm1\"] = rmsnorm_backward(dn, norm1)",
                "grads[at + \"norm1\"] = rmsnorm_backward(dn, norm1)[1]",
            ),
            "after the FFN dh is not yet the sum dh + dn, for attention and for what is returned": mutant(
                block_backward, "dh = dh + dn  #", "dh = dh  #"
            ),
            "norm2 belongs to the FFN and norm1 to attention: the cache of the other norm was used": mutant(
                block_backward, "rmsnorm_backward(dn, norm2)", "rmsnorm_backward(dn, norm1)"
            ),
            "norm1 gets what comes back from attention, dn, not dh": mutant(
                block_backward, "rmsnorm_backward(dn, norm1)", "rmsnorm_backward(dh, norm1)"
            ),
            "attention got dn of the FFN alone: it gets the sum, dh + dn": mutant(
                block_backward, "attention_backward(dh, attn)", "attention_backward(dn, attn)"
            ),
            "attention got the dh that came into the block: the FFN's share has to be added before": mutant(
                block_backward, "dn, *dweights", "first = dh; dn, *dweights",
                "attention_backward(dh, attn)", "attention_backward(first, attn)",
            ),
        },
    ),
    Task(
        solution=lost_dx,
        args=one_hot,
        results=("dx lost",),
        mutants={
            "up's factor is silu(a) = a s, not the sigmoid s": mutant(
                lost_dx, "glu_backward(dh, glu)[1]", "dh * glu[1]"
            ),
            "the way through w_up has du, which has no u in it": mutant(
                lost_dx, "glu_backward(dh, glu)[1]", "glu_backward(dh, glu)[1] * glu[2]"
            ),
            "that is what comes back through the gate; that one STEM has, too": (
                lambda dout, cache: dense_ffn_backward(dout, cache)[0] - lost_dx(dout, cache)
            ),
            "that is the whole dx of the dense layer: STEM keeps the part that came through the gate": (
                lambda dout, cache: dense_ffn_backward(dout, cache)[0]
            ),
            "no difference? x has chosen the row of w_up; the ids choose that of a table": (
                lambda dout, cache: 0 * dense_ffn_backward(dout, cache)[0]
            ),
        },
    ),
]  # fmt: skip


HINTS = (
    "stem: it is lesson 05's backward pass without w_up: no du @ w_up.T, since u came from ids and not from "
    "x. block: read the forward pass from the end. Where h went both into a norm and straight on, add.",
    "stem: du = dh * a * s, as there. Where two positions read the same row, their du belong to that row "
    "together: add them, as in lesson 02. block: dn through norm2, then dh = dh + dn; attention gets that "
    "dh; its dn goes through norm1, and again there is a sum.",
    "dblock = np.zeros((U, F)), then np.add.at(dblock, slot, du), which counts repeats (or sum_rows). "
    "lost_dx: what would du be sent through, were there a w_up?",
)
