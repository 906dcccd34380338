"""Figures of lesson 04: attention."""

import numpy as np

from ministem.model import causal_mask, rope_forward, rope_rotations
from results.plot import GREY, PURPLE


def a_head_that_looks_one_back(fig):
    """With RoPE a score depends on the distance alone, so a head can look one back everywhere; with added
    vectors it depends on the place too."""
    from matplotlib.patches import Rectangle

    T, D, shown = 120, 16, 8
    k = np.repeat([2.0, 2, 1, 1, 0, 0, 0, 0], 2)  # (D,)  every position has this key, mostly in fast pairs,
    rot = rope_rotations(0, T, D, 10000.0, like=k)  # (T,D/2)
    q = (k.view("complex128") * rot[1].conj()).view("float64")  # (D,)  and asks for it, turned one step back
    turned_q, turned_k = (rope_forward(np.tile(x, (1, T, 1, 1)), rot)[0][0, :, 0] for x in (q, k))  # (T,D)
    turned = turned_q @ turned_k.T / D**0.5  # (T,T)
    waves = rot.view("float64")  # (T,D)
    added = (q + waves) @ (k + waves).T / D**0.5  # (T,T)

    left, right = fig.subplots(1, 2, width_ratios=[1, 1.5])
    p = np.exp(turned[:shown, :shown] + causal_mask(shown, like=turned))
    p /= p.sum(-1, keepdims=True)
    for m, n in np.ndindex(shown, shown):
        if n <= m:
            left.add_patch(Rectangle((n - 0.5, m - 0.5), 1, 1, color=PURPLE, alpha=round(p[m, n], 2), lw=0))
    left.plot([-0.5, shown - 0.5], [-0.5, shown - 0.5], color="black", lw=0.8, drawstyle="steps-pre")
    left.set(xlim=(-0.5, shown - 0.5), ylim=(shown - 0.5, -0.5), aspect="equal", xlabel="key position n",
             ylabel="query position m", title="weights")  # fmt: skip
    left.set(xticks=range(0, shown, 2), yticks=range(0, shown, 2))
    left.grid(False)

    distance = np.arange(30)
    for i, m in enumerate((30, 60, 90, 119)):
        label = "vector added, four places" if i == 0 else None
        right.plot(distance, added[m, m - distance].round(4), color=GREY, lw=1, label=label)
        label = "RoPE, the same four places" if i == 0 else None
        right.plot(distance, turned[m, m - distance].round(4), color=PURPLE, lw=1.5, label=label)
    right.set(ylim=(-4, 10), xlabel="distance m - n", ylabel="score", title="score against distance")
    right.legend(loc="upper right")
