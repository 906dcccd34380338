"""How exercise 05 is checked: the backward pass of SwiGLU against the slopes of its forward pass."""

import numpy as np

from lessons.check import Task, mutant
from ministem.model import dense_ffn_backward, dense_ffn_forward, glu_backward, glu_forward


def args(rng):
    B, T, C, F = 2, 5, 3, 4
    shapes = dict(x=(B, T, C), w_gate=(C, F), w_up=(C, F), w_down=(F, C))
    return {name: rng.standard_normal(shape) for name, shape in shapes.items()}


def gate_args(rng):
    return dict(a=rng.standard_normal((2, 5, 4)), u=rng.standard_normal((2, 5, 4)))


def glu(da, du="dh * a * s"):
    """The backward pass with these two lines in the place of glu_backward."""
    return mutant(dense_ffn_backward, "da, du = glu_backward(dh, glu)", f"a, s, u = glu; da, du = {da}, {du}")


DGATE = "dx_gate, dw_gate = linear_backward(da, gate)"
TURNED = DGATE + "; dw_gate = dw_gate.T"

SMALL = dict(
    x=np.array([[[1.0], [2]]]), w_gate=np.array([[1.0]]), w_up=np.array([[3.0]]), w_down=np.array([[5.0]])
)
SLOPE = "(s + g * (1 - s))"  # silu'
TASKS = [
    Task(
        solution=glu_backward,
        forward=glu_forward,
        args=gate_args,
        results=("da", "du"),
        small=dict(a=np.array([[[0.0, 2]]]), u=np.array([[[3.0, 5]]])),
        mutants={
            "the slope of silu is not the sigmoid s: a moves s too": mutant(glu_backward, SLOPE, "s"),
            "s (1 - s) is the slope of the sigmoid, not of silu, which is a times the sigmoid": mutant(
                glu_backward, SLOPE, "s * (1 - s)"
            ),
            "the slope of silu has only its second half: by the product rule it is s + a s (1 - s)": mutant(
                glu_backward, SLOPE, "g * (1 - s)"
            ),
            "in the slope of silu the second half is a s (1 - s), with a minus": mutant(
                glu_backward, "g * (1 - s)", "g * (1 + s)"
            ),
            "in the slope of silu the second half is a s (1 - s): an s is missing": mutant(
                glu_backward, "g * (1 - s)", "a * (1 - s)"
            ),
            "du goes through silu(a) as a factor, not through its slope: du = dh * a * s": mutant(
                glu_backward, "dh * g", "dh * s * (1 - s)"
            ),
            "u is forgotten in da: forward multiplied silu(a) by u": mutant(glu_backward, "dh * u *", "dh *"),
            "du = dh: forward multiplied u by silu(a)": mutant(glu_backward, "dh * g", "dh"),
            "u is multiplied by silu(a) = a s on the way, not by the sigmoid s alone": mutant(
                glu_backward, "dh * g", "dh * s"
            ),
            "da and du have changed places": lambda dh, cache: glu_backward(dh, cache)[::-1],
        },
    ),
    Task(
        solution=dense_ffn_backward,
        forward=dense_ffn_forward,
        args=args,
        results=("dx", "dw_gate", "dw_up", "dw_down"),
        steps=("dh", "du", "da"),
        small=SMALL,
        mutants={
            "the slope of silu is not the sigmoid s: a moves s too": glu("dh * u * s"),
            "s (1 - s) is the slope of the sigmoid, not of silu, which is a times the sigmoid": glu(
                "dh * u * s * (1 - s)"
            ),
            "dw_gate is transposed: it is da' x, and x' da was needed": mutant(
                dense_ffn_backward, DGATE, TURNED
            ),
            "dw_gate is transposed and then reshaped to fit: the right shape, other numbers": mutant(
                dense_ffn_backward, DGATE, TURNED + ".reshape(dw_gate.shape)"
            ),
            "the gradients of the two ways that x went add; one is taken off here": mutant(
                dense_ffn_backward, "dx_gate + dx_up", "dx_gate - dx_up"
            ),
            "x went both ways, into gate and up, and only up's gradient came back": mutant(
                dense_ffn_backward, "dx_gate + dx_up", "dx_up"
            ),
            "x went both ways, into gate and up, and only the gate's gradient came back": mutant(
                dense_ffn_backward, "dx_gate + dx_up", "dx_gate"
            ),
            "u is multiplied by silu(a) = a s on the way, not by the sigmoid s alone": glu(
                "dh * u * (s + a * s * (1 - s))", "dh * s"
            ),
            "silu is on the wrong side: it stands on the gate a, not on u": glu(
                "dh * u / (1 + np.exp(-u))",
                "dh * a * (1 + u * (1 - 1 / (1 + np.exp(-u)))) / (1 + np.exp(-u))",
            ),
        },
    ),
]

HINTS = (
    "Go from the end: out = h Wd gives dh and dw_down. flat(x) = x.reshape(-1, C) makes each weight gradient "
    "one product, as in flat(h).T @ flat(dout).",
    "h = silu(a) * u, so du = dh * a * s, and da = dh * u * silu'(a). The page has silu'.",
    "dx = da @ w_gate.T + du @ w_up.T, and dw_gate = flat(x).T @ flat(da); dw_up the same with du.",
)
