"""Figures of lesson 09: why the up-projection?"""

import json
from pathlib import Path

import numpy as np

from results.plot import MODELS

RESULTS = Path(__file__).resolve().parents[2] / "results"
KINDS = "dense", "stem", "gate", "additive"


def where_the_table_goes(fig):
    """On facts, a table instead of a matrix helps, in either place, and a table beside the matrix hardly
    does; on text, what half of the layers have instead or beside makes little difference."""
    panels = (
        ("capacity_models", "steps_to_nine_tenths", "1/3", "steps to 90 % of the facts\n(less is better)"),
        ("language_models", "val_nats_per_byte", "1/2", "nats per byte of text\n(less is better)"),
    )
    for ax, (file, what, share, title) in zip(fig.subplots(1, 2), panels, strict=True):
        runs = json.loads((RESULTS / f"{file}.json").read_text("utf-8"))["runs"]
        for i, kind in enumerate(KINDS):
            name = kind if kind == "dense" else f"{kind} {share}"
            values = [run[what] for run in runs if run["model"] == name]  # a seed each
            ax.hlines(np.mean(values), i - 0.3, i + 0.3, color=MODELS[kind], lw=3)
            ax.plot([i] * len(values), values, "o", color=MODELS[kind])
        ax.set_xticks(range(4), KINDS)
        ax.set_title(title, fontsize=10)
        ax.grid(axis="x", visible=False)
    ax.set_ylim(1.6, 1.75)
