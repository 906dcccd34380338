"""Figures of lesson 09: why the up-projection?"""

import json

import numpy as np

from lessons.figures.__main__ import DENSE, GREEN, HERE, PINK, STEM

COLOURS = {"dense": DENSE, "stem": STEM, "gate": GREEN, "additive": PINK}


def where_the_table_goes(fig):
    """On facts, a table instead of a matrix helps, in either place, and a table beside the matrix hardly
    does; on text, what half of the layers have instead or beside makes little difference."""
    panels = (
        ("capacity_models", "steps_to_nine_tenths", "1/3", "steps until 90 % of facts known"),
        ("language_models", "val_nats_per_byte", "1/2", "nats per byte of text"),
    )
    for ax, (file, what, share, title) in zip(fig.subplots(1, 2), panels, strict=True):
        runs = json.loads((HERE.parent.parent / f"results/{file}.json").read_text("utf-8"))["runs"]
        for i, (kind, colour) in enumerate(COLOURS.items()):
            name = kind if kind == "dense" else f"{kind} {share}"
            found = [run[what] for run in runs if run["model"] == name]  # a seed each
            ax.hlines(np.mean(found), i - 0.3, i + 0.3, color=colour, lw=3)
            ax.plot([i] * len(found), found, "o", color=colour)
        ax.set_xticks(range(4), COLOURS)
        ax.set_title(title, fontsize=10)
        ax.grid(axis="x", visible=False)
    return fig
