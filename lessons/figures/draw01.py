"""Figures of lesson 01: change one fact in five minutes."""

import json
from pathlib import Path

from results.plot import GREY, PURPLE, STEM

RESULTS = Path(__file__).resolve().parent.parent.parent / "results"


def spain_reads_germany(fig):
    """The text still says Spain; only the table rows read at that one place are those of Germany."""
    record = json.loads((RESULTS / "first_edit.json").read_text("utf-8"))["seeds"][0]
    left, right = fig.subplots(1, 2, width_ratios=(3, 2))
    for x, token in enumerate(record["tokens"]):
        edited = token == " Spain"
        for layer in range(4):
            row, colour = ("Germany", PURPLE) if edited else (token.strip(), STEM)
            box = dict(boxstyle="square", facecolor="white", edgecolor=colour, lw=2 if edited else 1)
            left.text(x, layer + 1, row, ha="center", va="center", fontsize=8, color=colour, bbox=box)
        left.text(x, 0, token.strip(), ha="center", va="center", weight="bold" if edited else "normal")
    for layer in range(4):
        left.text(-0.75, layer + 1, f"layer {layer}", ha="right", va="center", fontsize=8, color=GREY)
    left.text(-0.75, 0, "text", ha="right", va="center", fontsize=8, color=GREY)
    left.set(xlim=(-1.7, 4.6), ylim=(-0.6, 4.7), title="whose row is read")
    left.axis("off")

    before, after = record["odds"]["no override"], record["odds"]["the country, all four layers"]
    names = [name for name in (before | after) if max(before.get(name, 0), after.get(name, 0)) > 0.01][::-1]
    sides = (0.2, before, STEM, "as it is"), (-0.2, after, PURPLE, "Germany's rows")
    for shift, odds, colour, label in sides:
        at, p = [i + shift for i in range(len(names))], [odds.get(name, 0) for name in names]
        bars = right.barh(at, p, 0.38, color=colour, label=label)
        right.bar_label(bars, [f"{share:.0%}" for share in p], padding=2, fontsize=8)
    right.set_yticks(range(len(names)), [name.strip() for name in names])
    right.set(title="what comes next", xlabel="probability", xlim=(0, 1.15), xticks=(0, 0.5, 1))
    right.grid(axis="y", visible=False)
    right.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, fontsize=8)
