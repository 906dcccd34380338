"""How exercise 04 is checked: attention against the library, its backward pass against slopes too."""

from lessons.check import Task, mutant
from ministem.model import attention_backward, attention_forward, causal_mask, rope_rotations


def args(rng):
    B, T, C, H, K, D = 2, 5, 3, 4, 2, 6  # two query heads share each key head
    x, wqkv, wo = (rng.standard_normal(s) for s in ((B, T, C), (C, (H + 2 * K) * D), (H * D, C)))
    rot, mask = rope_rotations(0, T, D, 100.0, like=x), causal_mask(T, T, like=x)
    return dict(x=x, wqkv=wqkv, wo=wo, rot=rot, mask=mask, n_kv_heads=K)


def forward(*changes):
    return mutant(attention_forward, *changes)


def backward(*changes):
    return mutant(attention_backward, *changes)


MASK = "scores += mask"
SCALED = "qk[:, :, :H] * D**-0.5"
AFTER = "p /= row_sum(p); p.reshape(B, K, -1, T, T)[...] *= mask == 0"

TASKS = [
    Task(
        solution=attention_forward,
        args=args,
        results=("out",),
        mutants={
            "the mask is put on after the softmax: the rows no longer add up to 1": forward(
                MASK, "pass", "p /= row_sum(p)", AFTER
            ),
            "there is no mask: each position sees those that come after it": forward(MASK, "pass"),
            "scores are divided by D, not by its square root": forward(SCALED, "qk[:, :, :H] / D"),
            "scores are not divided by the square root of D": forward(SCALED, "qk[:, :, :H]"),
            "the columns add up to 1, not the rows: a softmax over queries": forward(
                "p.max(-1, keepdims=True)", "0", "row_sum(p)", "p.sum(2, keepdims=True)"
            ),
        },
    ),
    Task(
        solution=attention_backward,
        forward=attention_forward,
        args=args,
        results=("dx", "dwqkv", "dwo"),
        mutants={
            "only the diagonal of the softmax's Jacobian, p (1 - p): a score moves its whole row": backward(
                "ds -= row_dot(dy, y)", "ds -= ds * p"
            ),
            "the sum that is taken off dp is not weighted by p": backward(
                "row_dot(dy, y)", "ds.sum(-1, keepdims=True)"
            ),
            "ds is not multiplied by p: keys behind the mask get a gradient": backward("ds *= p", "pass"),
            "dq is divided by D, not by its square root": backward("ds @ k * D**-0.5", "ds @ k / D"),
            "dq is not scaled, but forward scaled q": backward("ds @ k * D**-0.5", "ds @ k"),
            "dk is scaled a second time: the q in the cache has the scale in it": backward(
                "ds.swapaxes(2, 3) @ q", "ds.swapaxes(2, 3) @ q * D**-0.5"
            ),
        },
    ),
]

HINTS = (
    "Forward: the queries of G heads lie one behind the other; p.reshape(B, K, -1, T, T) ends in the mask's "
    "shape. Backward: two products (y = p v, s = q k') with a softmax between them; begin with dv and dp.",
    "Backward of y = p @ v: dv = p' dy, dp = dy v' (swapaxes(2, 3) transposes). Then dp becomes ds.",
    "ds = p * (dp - m), where m (B,K,G*T,1) is the sum of dp * p over the last axis. Then dq = ds k / "
    "sqrt(D), and dk = ds' q, since this q is scaled already.",
)
