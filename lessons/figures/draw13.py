"""Figures of lesson 13: ask a trained model what its up-projection knows."""

import json
from pathlib import Path

from results.plot import DENSE, GATE, GREY, STEM

RESULTS = Path(__file__).resolve().parents[2] / "results"
PARTS = {"stem": ("x Wu", STEM), "gate": ("x Wg", GATE), "product": ("both", GREY)}


def one_may_go_not_both(fig):
    """Either factor of a trained feed-forward layer can become a table of its means; of text little is lost
    even with both, of facts nearly everything."""
    models = json.loads((RESULTS / "dense_to_stem_knife.json").read_text("utf-8"))["models"]
    panels = ("shakespeare", 1, "nats per byte of text\n(less is better)"), ("facts", 100, "% of facts known")
    for ax, (text, times, title) in zip(fig.subplots(1, 2), panels, strict=True):
        seeds = [model for model in models if model["text"] == text]
        ax.plot([0] * len(seeds), [times * model["dense"] for model in seeds], "o", color=DENSE)
        for i, (kind, (_, colour)) in enumerate(PARTS.items(), 1):
            ax.plot([i] * len(seeds), [times * m["replaced"][kind]["all"] for m in seeds], "o", color=colour)
        ax.set_xticks(range(4), ["none", *(name for name, _ in PARTS.values())])
        ax.set_xlabel("what is a table, in all layers")
        ax.set_title(title, fontsize=10)
        ax.grid(axis="x", visible=False)
