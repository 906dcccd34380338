"""How exercise 03 is checked: RMSNorm's backward pass against the slopes of its forward pass."""

from lessons.check import Task, mutant
from ministem.model import rmsnorm_backward, rmsnorm_forward


def args(rng):
    B, T, C = 2, 5, 3
    return dict(x=rng.standard_normal((B, T, C)), g=rng.standard_normal(C))


TASKS = [
    Task(
        solution=rmsnorm_backward,
        forward=rmsnorm_forward,
        args=args,
        results=("dx", "dg"),
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
            "dg sums dout alone; forward multiplied g by n": mutant(rmsnorm_backward, "dout * n", "dout"),
        },
    )
]

HINTS = (
    "Start with dg, the easy one: out = n * g, and one g serves all B*T positions. So what is added up?",
    "Let dn = dout * g. Were r constant, dx would be r * dn. Now take away the part of dn along n.",
    "dx = r * (dn - n * m), where m (B,T,1) is the mean of dn * n over the last axis.",
)
