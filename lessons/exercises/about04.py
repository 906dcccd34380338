"""How exercise 04 is checked: attention against the library, its backward pass against slopes too."""

from lessons.check import Task, mutant
from ministem.model import attention_backward, attention_forward, causal_mask, rope_rotations


def args(rng):
    B, T, C, H, K, D = 2, 5, 3, 4, 2, 6  # two query heads share each key head
    x, wqkv, wo = (rng.standard_normal(s) for s in ((B, T, C), (C, (H + 2 * K) * D), (H * D, C)))
    rot, mask = rope_rotations(0, T, D, 100.0, like=x), causal_mask(T, like=x)  # all T in one block
    return dict(x=x, wqkv=wqkv, wo=wo, rot=rot, mask=mask, n_kv_heads=K)


def forward(*changes):
    return mutant(attention_forward, *changes)


def backward(*changes):
    return mutant(attention_backward, *changes)


SCORES = "e, z = exp_scores(q[:, :, rows], k[:, :, :seen], own)"
SCALED = "qk[:, :, :H] * D**-0.5"
UNMASKED = SCORES.replace("own)", "np.zeros_like(own))")
AFTER = UNMASKED + "; e.reshape(B, K, T, -1, T)[...] *= (mask == 0)[:, None]"
COLUMNS = "e, z = np.exp(q @ k.swapaxes(2, 3)), 1; e.reshape(B, K, T, -1, T)[...] *= (mask == 0)[:, None]; "
COLUMNS += "e /= e.sum(2, keepdims=True)"

TASKS = [
    Task(
        solution=attention_forward,
        args=args,
        results=("out",),
        mutants={
            "the mask is put on after the softmax: the rows no longer add up to 1": forward(SCORES, AFTER),
            "there is no mask: each position sees those that come after it": forward(SCORES, UNMASKED),
            "scores are divided by D, not by its square root": forward(SCALED, "qk[:, :, :H] / D"),
            "scores are not divided by the square root of D": forward(SCALED, "qk[:, :, :H]"),
            "the columns add up to 1, not the rows: a softmax over queries": forward(SCORES, COLUMNS),
        },
    ),
    Task(
        solution=attention_backward,
        forward=attention_forward,
        args=args,
        results=("dx", "dwqkv", "dwo"),
        mutants={
            "only the diagonal of the softmax's Jacobian, p (1 - p): a score moves its whole row": backward(
                "ds -= row_dot(dyb, yb)", "ds -= ds * e / z"
            ),
            "the sum that is taken off dp is not weighted by p": backward(
                "row_dot(dyb, yb)", "ds.sum(-1, keepdims=True)"
            ),
            "ds is not multiplied by p: keys behind the mask get a gradient": backward("ds *= e", "ds *= z"),
            "dq is divided by D, not by its square root": backward("ds @ kb, D**-0.5", "ds @ kb, 1 / D"),
            "dq is not scaled, but forward scaled q": backward("ds @ kb, D**-0.5", "ds @ kb, 1.0"),
            "dk is scaled a second time: the q in the cache has the scale in it": backward(
                "ds.swapaxes(2, 3) @ qb", "ds.swapaxes(2, 3) @ qb * D**-0.5"
            ),
        },
    ),
]

HINTS = (
    "Forward: the G queries of one position stand together: p.reshape(B, K, T, -1, T) fits mask[:, None]. "
    "Backward: two products (y = p v, s = q k') with a softmax between them; begin with dv and dp.",
    "Backward of y = p @ v: dv = p' dy, dp = dy v' (swapaxes(2, 3) transposes). Then dp becomes ds.",
    "ds = p * (dp - m), where m (B,K,T*G,1) is the sum of dp * p over the last axis. Then dq = ds k / "
    "sqrt(D), and dk = ds' q, since this q is scaled already.",
)
