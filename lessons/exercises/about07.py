"""How exercise 07 is checked: one step of AdamW against the library, with an eps large enough to be seen."""

from lessons.check import Task, mutant
from ministem.optim import adamw


def args(rng):
    p, g, m = rng.standard_normal((3, 4, 5))
    v = rng.random((4, 5))
    hyper = dict(t=3, lr=0.1, betas=(0.8, 0.95), eps=0.01, decay=0.3, scale=0.4)
    return dict(p=p, g=g, m=m, v=v) | hyper


decay_line = "p *= 1 - lr * decay"
TASKS = [
    Task(
        solution=adamw,
        args=args,
        results=("p", "m", "v"),
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
            "nothing has changed: m = m + ... makes a new array, m += ... is in place": lambda *inputs: None,
        },
    )
]

HINTS = (
    "First g = g * scale. Then m moves towards g by the share 1 - beta1, and v towards g * g by 1 - beta2.",
    "Were m all zeros before step 1, it is (1 - beta1) * g after it. Divide it by what? And at step t?",
    "Divide m by 1 - beta1**t and v by 1 - beta2**t, but only in the step of p: m and v stay as they are.",
)
