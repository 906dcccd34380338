"""Figures of lesson 05: SwiGLU."""

import numpy as np

from lessons.figures.__main__ import DENSE, GREEN, STEM


def gate_and_up_agree_on_one_feature(fig):
    """The gate knows the question, the up-projection knows the country, and a feature fires only where both
    say yes."""
    a = np.array([4.0, -4, 4, -4])  # (F,)  asked for a capital
    gate = a / (1 + np.exp(-a))  # (F,)
    up = {"Spain, capital?": np.array([1.0, 1, 0, 0]), "Japan, capital?": np.array([0.0, 0, 1, 1])}
    for ax, (title, u) in zip(fig.subplots(1, 2, sharey=True), up.items(), strict=True):
        for row, (h, colour) in enumerate(((gate, DENSE), (u, GREEN), (gate * u, STEM))):
            for f, value in enumerate(h.round(2)):
                ax.add_patch(_square(f, row, colour, min(1, abs(value) / (1 if row == 1 else 4))))
                text = "white" if abs(value) > 0.5 else "black"
                ax.text(f, row, f"{value + 0:g}", ha="center", va="center", color=text)
        ax.set(xlim=(-0.6, 3.6), ylim=(2.6, -0.6), title=title)
        ax.set_xticks(range(4), ["Madrid", "euro", "Tokyo", "yen"])
        ax.set_yticks(range(3), ["silu(gate)", "up", "product"])
        ax.tick_params(length=0)
        ax.grid(False)
        ax.spines[:].set_visible(False)
    return fig


def _square(x, y, colour, strength):
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, facecolor=colour, alpha=0.06 + 0.9 * strength)
