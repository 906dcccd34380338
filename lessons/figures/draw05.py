"""Figures of lesson 05: SwiGLU."""

import numpy as np

from results.plot import DENSE, PURPLE


def gate_and_up_agree_on_one_feature(fig):
    """The gate knows the question, the up-projection knows the country, and a feature fires only where both
    say yes."""
    a = np.array([4.0, -4, 4, -4])  # (F,)  asked for a capital
    gate = a / (1 + np.exp(-a))  # (F,)
    up = {"Spain, capital?": np.array([1.0, 1, 0, 0]), "Japan, capital?": np.array([0.0, 0, 1, 1])}
    for ax, (title, u) in zip(fig.subplots(1, 2, sharey=True), up.items(), strict=True):
        rows = {"silu(gate)": (gate, DENSE, 4), "up": (u, DENSE, 1), "product": (gate * u, PURPLE, 4)}
        _cells(ax, rows, digits=2)
        ax.set_xticks(range(4), ["Madrid", "euro", "Tokyo", "yen"])
        ax.set_title(title)


def _cells(ax, rows, digits):
    """Numbers in coloured squares, framed below zero. rows: label -> numbers (F,), colour, the number that
    has the full colour"""
    from matplotlib.patches import Rectangle

    for y, (values, colour, full) in enumerate(rows.values()):
        for x, value in enumerate(values.round(digits)):
            strength = min(1, abs(value) / full)
            shade = dict(fc=colour, alpha=round(0.06 + 0.9 * strength, 2), lw=0)
            if value < 0:
                shade |= dict(lw=1.2, ec="black")
            ax.add_patch(Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, **shade))
            text = "white" if strength > 0.5 else "black"
            size = 10 if len(values) < 6 else 8
            ax.text(x, y, f"{value + 0:g}", ha="center", va="center", color=text, fontsize=size)
    ax.set(xlim=(-0.6, len(values) - 0.4), ylim=(len(rows) - 0.4, -0.6))
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
