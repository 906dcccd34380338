"""From dense to STEM: what a trained matrix says about each token becomes a table.

A STEM layer reads a row U[t] where a dense one computes x Wu. That x has seen the context, and a row knows
its token alone: so the row that comes nearest to x Wu, at all positions of a text whose token is t, is its
mean over them. Nothing is trained for it: one pass through the model as it is, all layers at once. Left out:
the way back. A mean forgets what the context did, so no table becomes a matrix again.
"""

from dataclasses import replace

import numpy as np

from ..backend import sum_rows, upload
from ..config import shapes
from ..data import windows_in_order
from ..model import trunk_forward
from ..tables import CHUNK

TAKES = {"stem": "w_up", "gate": "w_gate"}  # the matrix whose place the table takes


def with_tables(config, layers, kind):
    """-> config with tables of this kind in these layers, and a list of the layers that are to get one.

    Raises ValueError for what means cannot make."""
    wanted = replace(config, stem_layers=layers, ffn=kind)
    before, after = (
        {i for i in range(c.n_layers) if f"layers.{i}.table" in shapes(c)[1]} for c in (config, wanted)
    )
    if before and (before - after or kind != config.ffn):
        have = f"layers {','.join(map(str, sorted(before)))} have {config.ffn} tables"
        raise ValueError(f"{have}: they stay, since a table cannot become a matrix, and all are of one kind")
    if after - before and kind not in TAKES:
        raise ValueError(f"{kind} tables take no matrix's place: there is nothing to make them of")
    return wanted, sorted(after - before)


def make_tables(run, config, ids, layers, B=16):
    """Fill the tables of these layers with means, and take their matrices out of run.params.

        U[t] = sum of x W over the n positions of ids where the token is t / n;  n = 0: x W of the text "t"

    W is w_up, or w_gate if the table is for the gate (before its silu). run: parameters of the model as
    `config` has it, tables as run.config has them; ids (N,) its text. These are running means in the tables
    themselves, which may be on disk: nothing else of size V is kept but n. -> n (V,) int"""
    V, kind = config.vocab_size, run.config.ffn
    seen = np.zeros(V, int)

    def read(inputs):  # (B,T)
        batch = run.tables.fetch(inputs)
        (rows, n), slot = np.unique(inputs, return_counts=True), batch.slots["embed"]
        for i, xw in zip(layers, outputs(run.params, config, batch, layers, kind), strict=True):
            name = f"layers.{i}.table"
            before = upload(seen[rows].astype(xw.dtype), like=xw)
            run.tables.write(name, rows, running_means(run.tables.read(name, rows), before, xw, slot))
        seen[rows] += n

    for i in range(0, V, CHUNK):
        read(np.arange(i, min(V, i + CHUNK))[:, None])  # a text of one token each
    seen[:] = 0  # which the text does better, where it has the token
    for inputs, _ in windows_in_order(np.append(ids, 0), B, config.context):  # 0: the last one counts, too
        read(inputs)
    for i in layers:
        del run.params[f"layers.{i}.{TAKES[kind]}"]
    return seen


def outputs(params, config, batch, layers, kind):
    """What the matrices of these layers give at each position, those whose place tables of this kind take:
    x Wu ("stem"), or x Wg ("gate") -> a list of (B,T,F)"""
    _, (_, _, caches, _) = trunk_forward(params, config, batch)
    found = []
    for i in layers:
        norm1, attn, norm2, ffn = caches[i]
        a, s, u = ffn[-2]  # glu_forward's cache: x Wg, its sigmoid, x Wu
        found.append({"stem": u, "gate": a}[kind])
    return found


def running_means(rows, seen, xw, slot):
    """Means with more positions in them; a row that is not met stays as it is.

    rows (U,F), the means so far; seen (U,), over how many positions; xw (B,T,F), at more positions; slot
    (B,T) int, whose row each of them belongs to -> rows (U,F)"""
    n = sum_rows(np.ones_like(xw[..., :1]), slot, len(rows))  # (U,1)
    before, after = seen[:, None], seen[:, None] + n
    total = before * rows + sum_rows(xw, slot, len(rows))
    return total / np.maximum(after, 1) + (after == 0) * rows
