"""Figures of lesson 08: pay only for the rows you touch."""

import json
from pathlib import Path

from results.plot import GREY, PURPLE, STEM

RESULTS = Path(__file__).resolve().parents[2] / "results"

FLOATS, U = 128 + 4 * 384, 512  # of a token in all tables of the default model; distinct tokens in a batch


def cost_against_vocabulary(fig):
    """What a step costs depends on the rows that it touches: with all rows it grows with the vocabulary, with
    those of the batch it does not."""
    left, right = fig.subplots(1, 2)
    ms = json.loads((RESULTS / "vocab.json").read_text("utf-8"))["median_ms"]  # {side: {V: ms}}
    sizes = [int(V) for V in ms["rows"]]
    row = 4 * FLOATS / 1e6  # megabytes of one token's rows; as large are both moments
    rows = [row * U + 6 * row * U for V in sizes]  # fetched, then three of a kind read and written
    dense = [row * U + 6 * row * V for V in sizes]
    left.loglog(sizes, dense, "s-", color=PURPLE, label="all rows")
    left.loglog(sizes, rows, "o-", color=STEM, label="rows of the batch")
    left.set(xlabel="vocabulary", ylabel="megabytes touched in a step")
    left.set_title("counted: the default model,\n1,664 numbers a token")
    left.legend()
    right.loglog(sizes, list(ms["torch"].values()), "s-", color=PURPLE, label="PyTorch, dense")
    right.loglog(sizes, list(ms["torch-sparse"].values()), "^:", color=GREY, label="PyTorch, sparse")
    right.loglog(sizes, list(ms["rows"].values()), "o-", color=STEM, label="ministem")
    right.set(xlabel="vocabulary", ylabel="ms, row work of a step", ylim=(5, 5000))
    right.set_title("measured: the same\nnumbers")
    right.legend()
    for ax in (left, right):
        ax.set_xticks(sizes[::2], [f"{V:,}" for V in sizes[::2]])
        ax.set_xticks([], minor=True)
