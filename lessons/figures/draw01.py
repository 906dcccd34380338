"""Figures of lesson 01: change one fact in five minutes."""

import json
from pathlib import Path

from lessons.figures.__main__ import DENSE, GREY, STEM

RESULTS = Path(__file__).resolve().parent.parent.parent / "results"


def spain_reads_germany(fig):
    """The text still says Spain; only the table rows read at that one place are those of Germany."""
    found = json.loads((RESULTS / "first_edit.json").read_text("utf-8"))["seeds"][0]
    left, right = fig.subplots(1, 2, width_ratios=(3, 2))
    for x, token in enumerate(found["tokens"]):
        edited = token == " Spain"
        for layer in range(4):
            row, colour = ("Germany", DENSE) if edited else (token.strip(), STEM)
            box = dict(boxstyle="square", facecolor="white", edgecolor=colour, lw=2 if edited else 1)
            left.text(x, layer + 1, row, ha="center", va="center", fontsize=8, color=colour, bbox=box)
        left.text(x, 0, token.strip(), ha="center", va="center", weight="bold" if edited else "normal")
    for layer in range(4):
        left.text(-0.75, layer + 1, f"layer {layer}", ha="right", va="center", fontsize=8, color=GREY)
    left.text(-0.75, 0, "text", ha="right", va="center", fontsize=8, color=GREY)
    left.set(xlim=(-1.7, 4.6), ylim=(-0.6, 4.7), title="whose row is read")
    left.axis("off")

    before, after = found["odds"]["no override"], found["odds"]["the country, all four layers"]
    names = list(dict.fromkeys([*list(before)[:3], *list(after)[:3]]))[::-1]
    for i, name in enumerate(names):
        right.barh(i + 0.2, before.get(name, 0), 0.38, color=STEM, label="as it is" if not i else None)
        right.barh(i - 0.2, after.get(name, 0), 0.38, color=DENSE, label="Germany's rows" if not i else None)
    right.set_yticks(range(len(names)), [name.strip() for name in names])
    right.set(title="what comes next", xlabel="probability", xlim=(0, 1))
    right.grid(axis="y", visible=False)
    right.legend(loc="center right", fontsize=8)
    return fig
