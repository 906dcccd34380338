"""How exercise 09 is checked: the forward pass against the library, the backward pass against its slopes."""

from lessons.check import Task, mutant
from ministem.model import gate_ffn_backward, gate_ffn_forward

glu_line, gate_line = "h, glu = glu_forward(block[slot], u)", "da, du = glu_backward(dh, glu)"


def args(rng):
    B, T, C, F, U = 2, 5, 3, 4, 6
    slot = rng.permutation([0, 1, 2, 3, 4, 5, 2, 2, 4, 0]).reshape(B, T)  # 0, 2 and 4 are read repeatedly
    x, block, w_up, w_down = (rng.standard_normal(shape) for shape in ((B, T, C), (U, F), (C, F), (F, C)))
    return dict(x=x, slot=slot, block=block, w_up=w_up, w_down=w_down)


TASKS = [
    Task(
        solution=gate_ffn_forward,
        args=args,
        results=("out",),
        mutants={
            "silu is on x Wu, which makes x the gate: this is STEM itself": mutant(
                gate_ffn_forward, "glu_forward(block[slot], u)", "glu_forward(u, block[slot])"
            ),
            "silu is missing: the row multiplies x Wu as it is": mutant(
                gate_ffn_forward, glu_line, "h, glu = block[slot] * u, None"
            ),
            "silu(a) is a * sigmoid(a), not sigmoid(a)": mutant(
                gate_ffn_forward, glu_line, "h, glu = u / (1 + np.exp(-block[slot])), None"
            ),
        },
    ),
    Task(
        solution=gate_ffn_backward,
        forward=gate_ffn_forward,
        args=args,
        results=("dx", "dblock", "dw_up", "dw_down"),
        steps=("dh", "du", "da"),
        mutants={
            "da and du are swapped: the gate's comes first, and here the gate is the table": mutant(
                gate_ffn_backward, "da, du =", "du, da ="
            ),
            "dblock[slot] += da keeps one of the repeated rows; rows 0, 2 and 4 repeat here": mutant(
                gate_ffn_backward, "return dx, sum_rows(da, slot, U)",
                "dblock = np.zeros((U, da.shape[-1])); dblock[slot] += da; return dx, dblock",
            ),
            "dblock is the gradient of silu(block): its slope silu' is missing": mutant(
                gate_ffn_backward, gate_line, gate_line + "; da = dh * glu[2]"
            ),
            "silu' is not the sigmoid alone: a is in silu(a) = a * sigmoid(a) twice": mutant(
                gate_ffn_backward, gate_line, gate_line + "; da = dh * glu[2] * glu[1]"
            ),
        },
    ),
]  # fmt: skip

HINTS = (
    "Forward: three of the imported functions, one after the other. glu_forward(a, u) is silu(a) * u.",
    "Backward: the same three in reverse order, each with its own part of the cache.",
    "x is only in u, so dx comes with dw_up from linear_backward(du, up); da goes to the rows by sum_rows.",
)
