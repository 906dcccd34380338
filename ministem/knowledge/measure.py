"""Counting and judging: parameters, FLOPs and memory of a configuration; loss and recall of a model."""

import random
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np

from ..backend import download
from ..config import shapes
from ..data import windows_in_order
from ..generate import generate
from ..model import forward, head_loss_forward, trunk_forward
from . import edit


@dataclass(frozen=True)
class Count:
    total: int  # all parameters, every table row included
    active: int  # parameters that one token's forward pass uses: of each table a single row
    flops: int  # forward FLOPs per token at a full context, 2 per multiply-add, matrix products only
    train_bytes: int  # float32: parameters, two moments, gradients of what is dense
    table_bytes: int  # of these, the tables and their moments: what --tables disk leaves on disk


def count(config):
    """-> Count. A lookup costs no FLOPs; attention at T keys costs 4 T H D per token."""
    dense, tables = shapes(config)
    n_dense = sum(int(np.prod(s)) for s in dense.values())
    n_tables = sum(int(np.prod(s)) for s in tables.values())
    active = n_dense + sum(row for _, row in tables.values())
    products = sum(int(np.prod(s)) for s in dense.values() if len(s) == 2)
    attention = 2 * config.n_layers * config.context * config.dim
    flops = 2 * (products + attention)
    return Count(n_dense + n_tables, active, flops, 16 * n_dense + 12 * n_tables, 12 * n_tables)


def watch(params, batch, dry=False):
    """-> params and batch as they are, but telling of every product and lookup they go through, and the
    list where that is noted: (kind, name, multiply-adds, numbers read). This counts what the real code does,
    to compare with `count`.

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


def angular_spread(vectors, B=256):
    """How far apart do vectors (N,·) point? Over all pairs -> dict(p95 of |cos|, median of cos, counts: a
    histogram of cos, 200 bins from -1 to 1). Rows of zeros point nowhere and are left out.

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


def evaluate(run, ids, B, limit=None):
    """Mean loss over windows of ids (N,), in nats per token."""
    total, n = 0.0, 0
    for inputs, targets in windows_in_order(ids, B, run.config.context, limit):
        batch = run.tables.fetch(inputs, targets)
        x, _ = trunk_forward(run.params, run.config, batch)
        loss, _ = head_loss_forward(x, run.params["head"], batch.targets, grads=False)
        total, n = total + float(loss) * targets.size, n + targets.size
    return total / n


def hit_rate(ids, size, policy):
    """How often would a cache of `size` rows have the row that is asked for? -> share of ids, from empty on.

    ids: the rows asked for, in order. A row that is not there is fetched, and takes the place of
      lru  the one that has not been asked for for the longest time
      lfu  the one asked for least often since it came (of several, as lru). What leaves is forgotten
    Exact, and a few dictionary operations per id whatever the size."""
    if policy not in ("lru", "lfu") or size < 1 or size % 1:
        raise ValueError(f"a cache is lru or lfu and holds 1, 2, 3, ... rows, got {policy!r}, {size}")
    count = {}  # of each row in the cache, how often it was asked for; lru: always 0
    rows = {0: OrderedDict()}  # of each count the rows that have it, the one longest not asked for first
    fewest = hits = 0  # fewest: the smallest count that a row in the cache has
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


def answer(run, prompt, max_new_tokens=24):
    """What the model says after `prompt`, up to the end of the sentence (greedy)."""
    text = ""
    ids = run.tokenizer.encode(prompt)
    for token in generate(run.params, run.tables, run.config, ids, max_new_tokens, temperature=0):
        text += run.tokenizer.decode([token])
        if "." in text or "\n" in text:
            break
    return text.split(".")[0].split("\n")[0].strip()


def recall(run, questions, B=64):
    """Ask every question -> {relation: share answered right}, and a list of True/False, one per question.

    Right means the whole answer and its full stop, greedily. That is the case exactly if each of its
    tokens is the likeliest one after the right ones before it, so one pass over the sentence tells."""
    sentences = [sentence(run.tokenizer, q.prompt, q.answer) for q in questions]
    right = recites(run, sentences, B=B)
    answers = {q.relation: [] for q in questions}
    for q, ok in zip(questions, right, strict=True):
        answers[q.relation].append(ok)
    return {relation: sum(oks) / len(oks) for relation, oks in answers.items()}, right


def sentence(tokenizer, prompt, answer):
    """-> the ids of prompt, answer and full stop, and how many of them are the prompt's."""
    before, ids = tokenizer.encode(prompt), tokenizer.encode(f"{prompt} {answer}.")
    assert ids[: len(before)] == before, f"{prompt!r} and its answer share a token"
    return ids, len(before)


def batches(run, texts, changes=None, layers=None, B=64):
    """Lists of ids, in groups of about one length -> yields which ones they are, and logits (B,T,V).

    changes: for each text what it reads instead of its own rows, [(t, ids)] as from edit.plan."""
    by_length = sorted(range(len(texts)), key=lambda j: len(texts[j]))
    for i in range(0, len(by_length), B):
        group = by_length[i : i + B]
        inputs = np.zeros((len(group), len(texts[group[-1]])), int)  # short ones end in padding,
        for row, j in zip(inputs, group, strict=True):  # which no earlier position can see
            row[: len(texts[j])] = texts[j]
        batch = run.tables.fetch(inputs)
        if changes:
            edits = [(b, t, ids) for b, j in enumerate(group) for t, ids in changes[j]]
            batch = edit.override(batch, run.tables, edits, layers)
        yield group, forward(run.params, run.config, batch)


def recites(run, sentences, changes=None, layers=None, B=64):
    """sentences: [(ids, how many are the prompt)] -> for each, whether the rest is what the model says."""
    right = [False] * len(sentences)
    for group, logits in batches(run, [ids for ids, _ in sentences], changes, layers, B):
        for row, j in zip(download(logits.argmax(-1)), group, strict=True):
            ids, n = sentences[j]
            right[j] = row[n - 1 : len(ids) - 1].tolist() == ids[n:]
    return right


def go_on(run, prompts, changes=None, layers=None, max_new_tokens=16):
    """prompts: lists of ids -> what the model says after each, up to the full stop (greedy, all at once)."""
    texts, said = [list(ids) for ids in prompts], [""] * len(prompts)
    for _ in range(max_new_tokens):
        speaking = [j for j, text in enumerate(said) if "." not in text]
        now = [changes[j] for j in speaking] if changes else None
        for group, logits in batches(run, [texts[j] for j in speaking], now, layers):
            for row, j in zip(download(logits.argmax(-1)), group, strict=True):
                j = speaking[j]
                texts[j].append(int(row[len(texts[j]) - 1]))
                said[j] = run.tokenizer.decode(texts[j][len(prompts[j]) :])
    return said


def edit_rates(run, pairs, questions, how="auto", layers=None, write=False, others=8, seed=0):
    """How often does an edit do what it should, and nothing else?

    pairs: [("Spain", "Germany"), ...]; the first is made into the second. questions: atlas
    questions, some for each country. write: False edits a prompt at a time (edit.plan), True writes into the
    tables (edit.edit_rows) and puts them back. -> a dict of shares, each with how many were asked:
      success      by relation, where the two countries differ: the answer is the second one's
      by_length    success where the second name has as many tokens as the first, more of them, fewer
      kept         where the two agree: the answer is still the right one
      others       write only: of questions on other countries that were answered right, the share that still
                   is (`others` of them for each pair). An override cannot touch them: they are other prompts
      well_formed  what is said is some country's answer to that relation, and then a full stop"""
    pairs, tokenizer, answers, known = list(dict.fromkeys(pairs)), run.tokenizer, {}, {}
    for q in questions:
        answers[q.country, q.relation] = q.answer
        known.setdefault(q.relation, set()).add(q.answer)
    asked = [(old, new, q) for old, new in pairs for q in questions if q.country == old]
    due = [sentence(tokenizer, q.prompt, answers[new, q.relation]) for _, new, q in asked]
    prompts = [ids[:n] for ids, n in due]
    if not write:
        changes = [edit.plan(tokenizer, q.prompt, [(old, new)], how) for old, new, q in asked]
        right, stay = recites(run, due, changes, layers), []
        wrong = [j for j, ok in enumerate(right) if not ok]
        said = go_on(run, [prompts[j] for j in wrong], [changes[j] for j in wrong], layers)
    else:
        rng, right, said, stay = random.Random(seed), [], [], []
        truth = [sentence(tokenizer, q.prompt, q.answer) for q in questions]
        able = [j for j, ok in enumerate(recites(run, truth)) if ok]
        for pair in pairs:
            group = [j for j in range(len(asked)) if asked[j][:2] == pair]
            elsewhere = [j for j in able if questions[j].country != pair[0]]
            elsewhere = rng.sample(elsewhere, min(len(elsewhere), others))
            patch = edit.edit_rows(run.tables, tokenizer, *pair, how, layers)
            with edit.applied([patch], run.tables):
                oks = recites(run, [due[j] for j in group] + [truth[j] for j in elsewhere])
                right, stay = right + oks[: len(group)], stay + oks[len(group) :]
                said += go_on(run, [prompts[j] for j in group if not right[j]])

    said, success, lengths, kept, formed = iter(said), {}, {}, [], []
    for (old, new, q), ok in zip(asked, right, strict=True):
        if q.answer == answers[new, q.relation]:
            kept.append(ok)
        else:
            n, m = (len(edit.spelling(tokenizer, name)) for name in (old, new))
            case = "equal" if n == m else "longer" if m > n else "shorter"
            success.setdefault(q.relation, []).append(ok)
            lengths.setdefault(case, []).append(ok)
        # what was right is well-formed; of the rest we have heard what was said
        text = "" if ok else next(said)
        formed.append(ok or ("." in text and text.split(".")[0].strip() in known[q.relation]))

    def share(oks):
        return {"share": sum(oks) / len(oks), "of": len(oks)} if oks else {"share": None, "of": 0}

    success["all"] = sum(success.values(), [])
    return dict(
        success={relation: share(oks) for relation, oks in success.items()},
        by_length={case: share(oks) for case, oks in sorted(lengths.items())},
        kept=share(kept), others=share(stay), well_formed=share(formed),
    )  # fmt: skip
