"""Measures that only experiments and lessons use: how well edits work, how far apart vectors point, how often
a cache is hit, which products a model makes. (What commands need is in ministem/knowledge/measure.py.)

They are imported, not run:  from results.measures import hit_rate
"""

import random
from collections import OrderedDict
from dataclasses import replace

import numpy as np

from ministem.knowledge import edit, naming
from ministem.knowledge.measure import go_on, recites, sentence

# --------------------------------------------------------------------------------------------- editing


def edit_rates(run, pairs, questions, how="auto", layers=None, write=False, others=8, seed=0):
    """How often does an edit do what it should, and nothing else?

    pairs: [("Spain", "Germany"), ...]; the first is made into the second. questions: atlas questions, some
    for each country. write: False overrides one prompt at a time (naming.plan), True writes into the tables
    (edit.edit_rows) and takes that back. -> a dict of shares, each with the number of questions behind it:
      success      by relation, where the two countries differ: the answer is the second one's
      by_length    success where the second name has as many tokens as the first, more, or fewer
      kept         where the two agree: the answer is still right
      others       write only: of questions on other countries that were answered right, the share that still
                   is (`others` of them for each pair). An override cannot touch them: they are other prompts
      well_formed  the answer is some country's answer to that relation, and then a full stop"""
    pairs, tokenizer, answers, possible = list(dict.fromkeys(pairs)), run.tokenizer, {}, {}
    for q in questions:
        answers[q.country, q.relation] = q.answer
        possible.setdefault(q.relation, set()).add(q.answer)
    cases = [(old, new, q) for old, new in pairs for q in questions if q.country == old]
    edited = [sentence(tokenizer, q.prompt, answers[new, q.relation]) for _, new, q in cases]
    prompts = [ids[:n] for ids, n in edited]
    if not write:
        changes = [naming.plan(tokenizer, q.prompt, [(old, new)], how) for old, new, q in cases]
        right, others_right = recites(run, edited, changes, layers), []
        wrong = [j for j, ok in enumerate(right) if not ok]
        wrong_answers = go_on(run, [prompts[j] for j in wrong], [changes[j] for j in wrong], layers)
    else:
        rng, right, wrong_answers, others_right = random.Random(seed), [], [], []
        true = [sentence(tokenizer, q.prompt, q.answer) for q in questions]
        known = [j for j, ok in enumerate(recites(run, true)) if ok]
        for pair in pairs:
            group = [j for j in range(len(cases)) if cases[j][:2] == pair]
            elsewhere = [j for j in known if questions[j].country != pair[0]]
            elsewhere = rng.sample(elsewhere, min(len(elsewhere), others))
            patch = edit.edit_rows(run.tables, tokenizer, *pair, how, layers)
            with edit.applied([patch], run.tables):
                oks = recites(run, [edited[j] for j in group] + [true[j] for j in elsewhere])
                right, others_right = right + oks[: len(group)], others_right + oks[len(group) :]
                wrong_answers += go_on(run, [prompts[j] for j in group if not right[j]])

    wrong_answers, success, by_length, kept, well_formed = iter(wrong_answers), {}, {}, [], []
    for (old, new, q), ok in zip(cases, right, strict=True):
        if q.answer == answers[new, q.relation]:
            kept.append(ok)
        else:
            n, m = (len(naming.spelling(tokenizer, name)) for name in (old, new))
            length = "equal" if n == m else "longer" if m > n else "shorter"
            success.setdefault(q.relation, []).append(ok)
            by_length.setdefault(length, []).append(ok)
        # a right answer is well-formed; a wrong one has been written out above
        text = "" if ok else next(wrong_answers)
        well_formed.append(ok or ("." in text and text.split(".")[0].strip() in possible[q.relation]))

    def share(oks):
        return {"share": sum(oks) / len(oks), "of": len(oks)} if oks else {"share": None, "of": 0}

    success["all"] = sum(success.values(), [])
    return dict(
        success={relation: share(oks) for relation, oks in success.items()},
        by_length={length: share(oks) for length, oks in sorted(by_length.items())},
        kept=share(kept), others=share(others_right), well_formed=share(well_formed),
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- angles


def angular_spread(vectors, B=256):
    """How far apart do vectors (N,·) point? Over all pairs -> dict(p95 of |cos|, median of cos, counts: a
    histogram of cos, 200 bins from -1 to 1). Rows of zeros have no direction and are left out.

    Compare it with random vectors of the same width, whose cosines are not zero either: p95 is about
    1.96 / sqrt(width). The (N,N) matrix of cosines is never whole: B of its rows at a time are counted."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    n = vectors[length[:, 0] > 0] / length[length[:, 0] > 0]
    if len(n) < 2:
        raise ValueError(f"an angle takes two vectors that are not zero, and {len(vectors)} have {len(n)}")
    fine = np.zeros(20_000, int)  # bins of 0.0001: what quantiles are read from
    for i in range(0, len(n), B):
        cos = n[i : i + B] @ n[i:].T
        above = np.triu_indices(len(cos), 1, cos.shape[1])  # each pair once, and none with itself
        fine += np.histogram(cos[above].clip(-1, 1), len(fine), (-1, 1))[0]
    one_sided = fine[10_000:] + fine[9_999::-1]  # of |cos|

    def quantile(counts, q):
        return (np.searchsorted(counts.cumsum(), q * counts.sum()) + 0.5) / 10_000

    return dict(p95=quantile(one_sided, 0.95), median=quantile(fine, 0.5) - 1,
                counts=fine.reshape(200, -1).sum(1).tolist())  # fmt: skip


# --------------------------------------------------------------------------------------------- caching


def hit_rate(ids, size, policy):
    """The hit rate of a cache of `size` rows, empty at first -> a share of ids.

    ids: the rows requested, in order. On a miss the row is fetched and evicts
      lru  the least recently used row
      lfu  the least frequently used row (of several, the least recently used); counts of evicted rows are
           forgotten
    Exact, and a few dictionary operations per id whatever the size. Raises ValueError."""
    if policy not in ("lru", "lfu") or size < 1 or size % 1:
        raise ValueError(f"a cache is lru or lfu and holds 1, 2, 3, ... rows, got {policy!r}, {size}")
    count = {}  # of each cached row, how often it was requested; lru: always 0
    rows = {0: OrderedDict()}  # of each count the rows that have it, the least recently used first
    fewest = hits = 0  # fewest: the smallest count of a cached row
    for id in ids:
        n = count.get(id)
        if n is not None:
            hits += 1
            del rows[n][id]
            if policy == "lfu":
                if n == fewest and not rows[n]:
                    fewest = n + 1
                n += 1
        else:
            if len(count) == size:
                del count[rows[fewest].popitem(last=False)[0]]
            n = fewest = 0
        count[id] = n
        rows.setdefault(n, OrderedDict())[id] = None
    return hits / max(1, len(ids))


# ------------------------------------------------------------------------------------------- counting


def watch(params, batch, dry=False):
    """-> params and batch, unchanged but recording every product and lookup that is made of them, and the
    list of those records: (kind, name, multiply-adds, numbers read). It counts what the real code does, to
    compare with the formulas of measure.count.

    name: of the parameter or table that was read, None for a product of activations (attention).
    dry: products are counted, not computed, and give zeros: a model of any size can be counted then."""
    notes = []

    class Watched(np.ndarray):
        name = None

        def __array_finalize__(self, of):
            self.name = getattr(of, "name", None)  # a view of a parameter is that parameter

        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **more):
            plain = [np.asarray(a) if isinstance(a, np.ndarray) else a for a in inputs]
            out = tuple(np.asarray(o) for o in out) if out else None
            if ufunc is not np.matmul or plain[1].shape[-1] == 1:  # with one column it is a row sum
                result = getattr(ufunc, method)(*plain, **more | (dict(out=out) if out else {}))
            else:
                a, w = plain
                shape = (*np.broadcast_shapes(a.shape[:-2], w.shape[:-2]), a.shape[-2], w.shape[-1])
                result = np.zeros(shape, a.dtype) if dry else a @ w
                names = [b.name for b in inputs if getattr(b, "name", None)]
                read = sum(b.size for b in inputs if getattr(b, "name", None))
                notes.append(("product", names[0] if names else None, result.size * a.shape[-1], read))
            return result.view(Watched) if isinstance(result, np.ndarray) else result

        def __getitem__(self, key):
            result = super().__getitem__(key)
            if self.name and isinstance(key, np.ndarray):  # block[slot]
                notes.append(("lookup", self.name, 0, result.size))
                result.name = None
            return result

    def watched(arrays):
        views = {name: a.view(Watched) for name, a in arrays.items()}
        for name, a in views.items():
            a.name = name
        return views

    return watched(params), replace(batch, blocks=watched(batch.blocks)), notes
