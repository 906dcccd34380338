"""Figures of lesson 12: edit with care."""

import json
from pathlib import Path

from results.plot import GREY, STEM

RESULTS = Path(__file__).resolve().parents[2] / "results"


def _shares(kind, seeds):
    """What is recorded of one kind of edit, one entry per seed -> {row of the figure: [(share, of)]}"""
    relations = ("capital", "language", "currency", "continent")
    rows = {f"{r} changes": [f[kind]["success"][r]["share"] for f in seeds] for r in relations}
    rows["what both share stays"] = [f[kind]["kept"]["share"] for f in seeds]
    rows["other countries stay"] = [f[kind]["others"]["share"] for f in seeds]
    rows["says a possible answer"] = [f[kind]["well_formed"]["share"] for f in seeds]
    return rows


def edited_kept_broken(fig):
    """With one token per name an edit changes what it should and hardly anything else; with several, many
    facts stay as they were, and a row edit breaks facts of other countries."""
    one = json.loads((RESULTS / "edit_rates.json").read_text("utf-8"))["seeds"]
    several = json.loads((RESULTS / "edit_names.json").read_text("utf-8"))["seeds"]
    several = [seed["how"]["subset"] for seed in several]
    columns = [
        ("one token,\noverride", _shares("override", one)),
        ("one token,\nrow edit", _shares("row_edit", one)),
        ("several,\noverride", _shares("override", several)),
        ("several,\nrow edit", _shares("row_edit", several)),
    ]
    ax = fig.subplots()
    names = list(columns[0][1])
    for x, (_, rows) in enumerate(columns):
        for y, name in enumerate(names):
            if None in rows[name]:  # an override is another prompt's business
                ax.text(x + 0.45, y, "not touched", ha="center", va="center", color=GREY)
                continue
            share = sum(rows[name]) / len(rows[name])
            ax.barh(y, 0.9, left=x, height=0.8, color=GREY, alpha=0.3)
            ax.barh(y, 0.9 * share, left=x, height=0.8, color=STEM, alpha=0.55)
            ax.text(x + 0.45, y, f"{share:.1%}", ha="center", va="center")
    ax.set_yticks(range(len(names)), names)
    ax.set_xticks([x + 0.45 for x in range(len(columns))], [title for title, _ in columns])
    ax.invert_yaxis()
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.grid(False)
    ax.spines[:].set_visible(False)
