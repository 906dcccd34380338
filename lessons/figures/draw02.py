"""Figures of lesson 02: the smallest language model is a table."""

from results.plot import GREY, PURPLE, STEM


def gather_and_scatter(fig):
    """Each position copies its row; on the way back each adds to it: rows a and n get two gradients each."""
    text = "banana"
    tokens = sorted(set(text))  # a b n
    left, right = fig.subplots(1, 2)
    for ax, title, colour in ((left, "forward: gather", STEM), (right, "backward: scatter-add", PURPLE)):
        for row, token in enumerate(tokens):
            used = text[:-1].count(token)
            thick = used if ax is right else 1
            box = dict(boxstyle="square,pad=0.5", facecolor="white", edgecolor=colour, linewidth=thick)
            sums = f"row {token}" if ax is left else f"row {token}: sum of {used}"
            ax.text(0, -2 * row, sums, ha="center", va="center", bbox=box)
        for t, token in enumerate(text[:-1]):
            box = dict(boxstyle="round,pad=0.4", facecolor="white", edgecolor=GREY)
            ax.text(3, 0.5 - 1.25 * t, token, ha="center", va="center", bbox=box)
            table, position = (0.5 if ax is left else 0.95, -2 * tokens.index(token)), (2.8, 0.5 - 1.25 * t)
            ends = dict(xytext=table, xy=position) if ax is left else dict(xytext=position, xy=table)
            ax.annotate("", **ends, arrowprops=dict(arrowstyle="->", color=colour))
        ax.text(0, 1.4, "table", ha="center", color=GREY)
        ax.text(3, 1.4, "positions", ha="center", color=GREY)
        ax.set(title=title, xlim=(-1.2, 3.6), ylim=(-5.2, 2))
        ax.axis("off")
