"""Figures of lesson 07: train both and compare fairly."""

import json
from pathlib import Path

import numpy as np

from results.plot import color

RESULTS = Path(__file__).resolve().parents[2] / "results"


def better_per_what(fig):
    """On facts, the model with a table in every layer is ahead at equal steps, and further ahead at equal
    FLOPs; on text it is ahead, too."""
    fig.set_size_inches(6.4, 5.6)
    panels = fig.subplots(2, 2, sharey="row")
    for (per_token, per_flop), file, what, label in (
        (panels[0], "capacity_models", "recall", "random facts known"),
        (panels[1], "language_models", "val_nats_per_byte", "nats per byte of text\n(less is better)"),
    ):
        runs = json.loads((RESULTS / f"{file}.json").read_text("utf-8"))["runs"]
        for name in ("dense", "dense, FLOPs of stem all", "stem all"):
            mine = [run for run in runs if run["model"] == name]
            steps = np.array([point["step"] for point in mine[0]["curve"]])  # (N,)
            y = np.array([[point[what] for point in run["curve"]] for run in mine])  # (seeds,N)
            for ax, x in ((per_token, steps), (per_flop, steps * mine[0]["flops_per_step"] / 1e9)):
                ax.plot(x, y.mean(0), color=color(name), label=name)
                ax.fill_between(x, y.min(0), y.max(0), color=color(name), alpha=0.25, lw=0)
        per_token.set(xlabel="steps, of equally many tokens", ylabel=label)
        per_flop.set(xlabel="training GFLOPs")
        for ax in (per_token, per_flop):
            ax.locator_params(nbins=3)
    fig.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
