"""Figures of lesson 11: longer text, more parameters."""

import json
from pathlib import Path

from results.plot import GREY, INK, PURPLE, STEM

RESULTS = Path(__file__).resolve().parents[2] / "results"


def rows_against_length(fig):
    """A longer text activates more table rows, and ever fewer for each new token, while the FFN's work per
    token stays the same; a cache must be large to have most rows ready."""
    play = json.loads((RESULTS / "language_context.json").read_text("utf-8"))
    [play] = [v for v in play["vocabularies"] if v["vocabulary"] == 2048]
    rates = json.loads((RESULTS / "cache.json").read_text("utf-8"))["rates"]
    rates = [r for r in rates if r["vocab_size"] == 2048 and r["stream"] == "tokens"]

    fig.set_size_inches(7, 3.4)
    left, right = fig.subplots(1, 2)
    flops = [play["ffn_flops_per_token"] / 1e6] * len(play["lengths"])
    active = [a / 1e6 for a in play["active_table_parameters"]]
    left.loglog(play["lengths"], active, ".-", color=STEM)
    left.set(xlabel="tokens of text", ylim=(0.005, 20))
    left.set_ylabel("active table parameters, millions", color=STEM)
    work = left.twinx()
    work.loglog(play["lengths"], flops, "--", color=INK)
    work.set(ylabel="FFN FLOPs per token, millions (dashed)", ylim=(0.005, 20))
    work.grid(False)
    for ax in (left, work):
        ax.minorticks_off()

    shares = [r["share_of_rows"] for r in rates]
    for kind, colour in (("fixed", GREY), ("lru", PURPLE), ("lfu", STEM)):
        right.plot(shares, [r[kind] for r in rates], ".-", color=colour, label=kind)
    right.axhline(0.8, color=INK, ls=":")
    right.text(0.0, 0.81, "reported: above 80 %", color=INK, ha="left", va="bottom", fontsize=8)
    right.set(xlabel="share of the rows in the cache", ylabel="hit rate", ylim=(0, 1))
    right.legend(loc="lower right")
