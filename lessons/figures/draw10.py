"""Figures of lesson 10: how far apart are the addresses?"""

import json
from pathlib import Path

import numpy as np

from results.plot import DENSE, GREY, STEM

RESULTS = Path(__file__).resolve().parents[2] / "results"


def cosines_of_rows(fig):
    """The rows of a table start where random vectors are, and training brings them closer together; the
    outputs of an up-projection are closer from the start, and stay closer."""
    record = json.loads((RESULTS / "language_models.json").read_text("utf-8"))
    random, axes = record["random_vectors"], fig.subplots(1, 2, sharey=True)
    middles = np.arange(100) / 50 - 0.99  # (100,) of bins from -1 to 1

    def histogram(ax, spread, colour, label, width=1.2):
        counts = np.array(spread["counts"]).reshape(100, 2).sum(1)  # (100,)
        density = counts / counts.sum() / 0.02
        ax.plot(middles[25:], density[25:], lw=width, color=colour, label=f"{label}, P95 {spread['p95']:.3f}")

    for ax, when, title in zip(axes, ("before", "after"), ("before training", "after"), strict=True):
        histogram(ax, random["random"], GREY, "random", width=3)
        for model, colour, label in (("stem all", STEM, "rows of U"), ("dense", DENSE, "outputs of x Wu")):
            run = next(run for run in record["runs"] if run["model"] == model and run["seed"] == 0)
            histogram(ax, run["spread"][when][1]["up"], colour, label)
        for floor, colour in ((1 / 192, STEM), (1 / 64 + 1 / 192, DENSE)):  # of random rows, of random x Wu
            ax.axvline(1.96 * floor**0.5, color=colour, ls=":", lw=1)
        ax.set(title=title, xlabel="cosine (dotted: P95 of random\nrows, and of random x Wu)")
        ax.legend(loc="upper right", fontsize=8)
    axes[0].set(ylabel="density", ylim=(0, 9))
