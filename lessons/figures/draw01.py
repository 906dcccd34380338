"""Figures of lesson 01: change one fact in five minutes."""

import json
from pathlib import Path

from results.plot import DENSE, GREY, INK, PURPLE, STEM

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


def the_whole_transformer(fig):
    """The whole model: what all layers add to is one stream, and in each layer the token's id chooses a row
    of that layer's table."""
    fig.set_size_inches(6.4, 5.2)
    ax = fig.subplots()
    ax.set(xlim=(0, 10), ylim=(0, 11.4))
    ax.axis("off")

    def box(x, y, text, colour):
        ax.text(x, y, text, ha="center", va="center", fontsize=9,
                bbox=dict(boxstyle="round", fc=colour + "22", ec=colour))  # fmt: skip

    def arrow(start, end, colour=INK, **more):
        ax.annotate("", end, start, arrowprops=dict(arrowstyle="->", color=colour, **more))

    ax.plot([0.3, 9.6, 9.6, 0.3, 0.3], [2.5, 2.5, 8.0, 8.0, 2.5], ":", color=GREY)
    ax.text(0.5, 7.75, "one of L layers", fontsize=9, color=GREY, va="center")
    arrow((3, 1.9), (3, 9.1), lw=2)  # the residual stream
    box(3, 0.4, "token ids  (B,T)", INK)
    arrow((3, 0.8), (3, 1.2))
    box(3, 1.6, "embedding: a row each  (V,C)", STEM)
    box(6.4, 3.2, "norm → attention", DENSE)
    box(6.4, 5.2, "norm → x: silu(x W_gate)", DENSE)
    box(6.4, 6.35, "×  →  W_down", DENSE)
    box(8.6, 4.25, "row of the table\n(V,F)", STEM)
    for y, top in ((2.8, 3.95), (4.8, 7.15)):
        arrow((3, y), (5.1, y + 0.35), lw=1)
        ax.text(3, top, "+", ha="center", va="center", fontsize=11,
                bbox=dict(boxstyle="circle", fc="white", ec=INK))  # fmt: skip
    arrow((5.4, 3.5), (3.3, 3.9), lw=1)
    arrow((6.4, 5.55), (6.4, 6.0), lw=1)
    arrow((8.8, 4.8), (7.6, 6.2), STEM, lw=1.5)
    arrow((5.6, 6.5), (3.3, 7.1), lw=1)
    arrow((4.0, 0.4), (8.9, 3.7), STEM, lw=1.5, connectionstyle="arc3,rad=0.25")
    ax.text(8.7, 1.7, "the id is\nthe address", color=STEM, fontsize=9, ha="center")
    ax.text(2.8, 8.45, "the residual stream\n(B,T,C)", fontsize=9, color=GREY, va="center", ha="right")
    box(3, 9.5, "norm → head  (C,V)", DENSE)
    arrow((3, 9.9), (3, 10.5))
    ax.text(3, 10.9, "logits (B,T,V) → softmax: odds of the next token", ha="center", va="center", fontsize=9)
