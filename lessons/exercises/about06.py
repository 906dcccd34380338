"""How exercise 06 is checked: STEM's backward pass against the slopes of its forward pass."""

import numpy as np

from lessons.check import Task, mutant
from ministem.model import stem_ffn_backward, stem_ffn_forward


def args(rng):
    B, T, C, F, U = 2, 5, 3, 4, 6
    slot = np.array([[0, 3, 3, 1, 5], [2, 4, 0, 0, 3]])  # every row is read, rows 0 and 3 three times
    shapes = dict(w_gate=(C, F), block=(U, F), w_down=(F, C))
    arrays = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    return dict(x=rng.standard_normal((B, T, C)), slot=slot, **arrays)


def scatter(new):
    """The backward pass with another way to get dblock."""
    return mutant(stem_ffn_backward, "sum_rows(du, slot, U)", new)


def gate(da):
    """The backward pass with another da."""
    line = "da, du = glu_backward(dh, glu)"
    return mutant(stem_ffn_backward, line, f"{line}; a, s, u = glu; da = {da}")


TASKS = [
    Task(
        solution=stem_ffn_backward,
        forward=stem_ffn_forward,
        args=args,
        results=("dx", "dw_gate", "dblock", "dw_down"),
        mutants={
            "dblock[slot] += du keeps one of the repeated rows; rows 0 and 3 repeat here": scatter(
                "np.zeros((U, du.shape[-1])); dblock[slot] += du"
            ),
            "dblock is the mean over a token's positions; every position adds its part": scatter(
                "sum_rows(du, slot, U) / np.bincount(slot.flat)[:, None]"
            ),
            "dblock adds up dh; forward multiplied the row by silu(a)": scatter("sum_rows(dh, slot, U)"),
            "dblock adds up dh * s; the gate is silu(a) = a s, not the sigmoid s": scatter(
                "sum_rows(dh * glu[1], slot, U)"
            ),
            "dblock is the gradient at each position, before the rows are added up": scatter("du"),
            "dx is zero; u gives x nothing, but the gate has seen x": mutant(
                stem_ffn_backward, "return dx,", "return 0 * dx,"
            ),
            "da is not multiplied by u: forward multiplied the gate by the row": gate("da / u"),
            "the slope of silu is not the sigmoid s: a moves s too": gate("dh * u * s"),
            "s (1 - s) is the slope of the sigmoid, not of silu, which is a times the sigmoid": gate(
                "dh * u * s * (1 - s)"
            ),
        },
    )
]

HINTS = (
    "It is lesson 05's backward pass without w_up: no du @ w_up.T, since u came from ids and not from x.",
    "du = dh * a * s, as there. Where two positions read the same row, their du belong to that row together: "
    "add them, as in lesson 02.",
    "dblock = np.zeros((U, F)), then np.add.at(dblock, slot, du), which counts repeats (or sum_rows of "
    "ministem.backend).",
)
