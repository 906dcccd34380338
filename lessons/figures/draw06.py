"""Figures of lesson 06: STEM."""

from types import SimpleNamespace

import numpy as np

from lessons.figures.draw05 import _cells
from ministem import AdamW, Config, init_params, loss_and_grads
from ministem.knowledge.inside import gate
from results.plot import DENSE, GREY, PURPLE, STEM


def both_layers_side_by_side(fig):
    """STEM takes the up-projection out and puts a row of a table there; gate, product and down stay as they
    were."""
    fig.set_size_inches(6, 3.2)
    for ax, stem in zip(fig.subplots(1, 2), (False, True), strict=True):
        ax.set(xlim=(0, 10), ylim=(0, 10), title="STEM" if stem else "dense (SwiGLU)")
        ax.axis("off")
        _box(ax, 5, 9.1, "out", None)
        _box(ax, 5, 7.2, "W_down  (F,C)", DENSE)
        _box(ax, 5, 5.4, "×", None)
        _box(ax, 2.4, 3.5, "silu(x W_gate)\n(C,F)", DENSE)
        _arrow(ax, (5, 7.9), (5, 8.6))
        _arrow(ax, (5, 5.8), (5, 6.5))
        _arrow(ax, (2.4, 4.5), (4.6, 5.4))
        _arrow(ax, (2.4, 1.2), (2.4, 2.5))
        _box(ax, 2.4, 0.7, "x: the context", None)
        _box(ax, 7.6, 3.5, "x W_up\n(C,F)", GREY if stem else DENSE, gone=stem)
        if stem:
            _box(ax, 7.6, 0.7, "id → table  (V,F)", STEM)
            way = dict(arrowstyle="->", color=STEM, lw=1.5, connectionstyle="angle3,angleA=90,angleB=0")
            ax.annotate("", (5.4, 5.5), (9.6, 1.4), arrowprops=way)
        else:
            _arrow(ax, (7.6, 4.5), (5.4, 5.4))
            _arrow(ax, (3.4, 1.2), (7, 2.5))


def _box(ax, x, y, text, colour, gone=False):
    box = dict(boxstyle="round", fc=(colour + "22") if colour else "none", ec=colour or "none",
               ls=":" if gone else "-")  # fmt: skip
    ax.text(x, y, text, ha="center", va="center", bbox=box, color=GREY if gone else "black")


def _arrow(ax, start, end):
    ax.annotate("", end, start, arrowprops=dict(arrowstyle="->", lw=1))


def one_row_in_two_contexts(fig):
    """The row of "apple" is the same in both texts; what differs is which of its features the gate lets
    through."""
    fig.set_size_inches(7.2, 2.6)
    run, words = _fruits_and_firms()
    texts = ["they peel apple", "they sue apple"]
    ids = [[words.index(word) for word in text.split()] for text in texts]
    [one] = gate(run, ids[0], 2, ids[1], 2)
    row = run.tables["layers.0.table"][words.index("apple")]  # (F,)
    # trained anew for each drawing, and rounded: the last digits of a processor cannot be seen
    for ax, text, opened in zip(fig.subplots(1, 2, sharey=True), texts, (one.x, one.y), strict=True):
        rows = {"silu(gate)": (opened, DENSE, 4), "row of “apple”": (row, STEM, 0.7)}
        _cells(ax, rows | {"product": (opened * row, PURPLE, 4)}, digits=1)
        ax.set_xticks(range(len(row)))
        ax.set_title(f"“{text} …”")
    fig.supxlabel("feature (framed: below zero)", size=10)


def _fruits_and_firms(one_embedding=True):
    """Train one layer on 18 sentences in which three names are fruits or firms -> run, words"""
    after = {"apple": ("pie", "laptop"), "orange": ("juice", "network"), "blackberry": ("jam", "keyboard")}
    verbs = ("peel", "pick", "wash"), ("sue", "phone", "hire")
    senses = [(name, sense) for name in after for sense in (0, 1)]
    sentences = [("they", verb, name, after[name][sense]) for name, sense in senses for verb in verbs[sense]]
    words = sorted(set(sum(sentences, ())))
    ids = np.array([[words.index(word) for word in sentence] for sentence in sentences])  # (18,4)
    config = Config(len(words), dim=16, n_layers=1, n_heads=2, ffn_dim=8, context=4)
    params, tables = init_params(config, seed=1, dtype="float64")
    names = [words.index(name) for name in after]
    if one_embedding:
        tables["embed"][names] = tables["embed"][names[0]]  # the names now differ in their STEM rows alone
    optimizer = AdamW(lr=1e-2)
    for _ in range(200):
        _, grads = loss_and_grads(params, config, tables.fetch(ids[:, :-1]), ids[:, 1:])
        if one_embedding:
            grads["embed"].values[:] = 0  # and it stays like that
        optimizer.step(params, tables, grads)
    return SimpleNamespace(params=params, tables=tables, config=config), words
