"""STEM on real text. Needs a text file: input.txt, Tiny Shakespeare (see README).

    python results/language.py rates       the best learning rate of each kind of model
    python results/language.py models      validation loss against tokens and FLOPs; angular spread
    python results/language.py overfit     a tenth of the text, many times over; and what helps
    python results/language.py python      a larger text: the source of Python's standard library
    python results/language.py tables      how large tables start
    python results/language.py stability   too high a learning rate: loss spikes, gradient norms
    python results/language.py context     distinct rows against length, Heaps' exponent, FLOPs
"""

import hashlib
import os
import platform
import tokenize
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import common
import numpy as np
from common import best_rates, fit, least_mean_most, of, recorded, sig, summed_up, training_flops
from measures import angular_spread

from ministem.config import Config
from ministem.data import draw_batch, load_corpus
from ministem.knowledge import measure
from ministem.model import head_loss_forward, trunk_forward
from ministem.tokenizer import train_bpe

SHAPE = dict(dim=64, n_layers=4, n_heads=2, ffn_dim=192, context=64)
VOCABULARY, BATCH, STEPS = 1024, 8, 1000
EQUAL_FLOPS = 128  # the FFN width at which three matrices cost as much as two of width 192
ALL, HALF, THIRD = (0, 1, 2, 3), (1, 3), (1,)  # the layers with a table
MODELS = {
    "dense": dict(stem_layers=()),
    "stem 1/3": dict(stem_layers=THIRD),
    "stem 1/2": dict(stem_layers=HALF),
    "stem all": dict(stem_layers=ALL),
    "gate 1/2": dict(stem_layers=HALF, ffn="gate"),
    "additive 1/2": dict(stem_layers=HALF, ffn="additive"),
    "dense, FLOPs of stem all": dict(stem_layers=(), ffn_dim=EQUAL_FLOPS),
}
RATES = (2e-3, 4e-3, 8e-3)  # and on, where the best is the first or the last
LIKE = {"stem 1/3": "stem 1/2", "dense, FLOPs of stem all": "dense"}  # has the rate that is best for that one

STDS = (0.004, 0.02, 0.1, 1.0)  # of new tables; ours is 0.02, the official default gives 0.004 at 1B
TIMES = (1, 16, 64)  # how many times as high as the best rate
SPIKE = 0.5  # nats above the mean of the ten steps before

NOT_LIBRARY = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
NOT_LIBRARY |= {"encodings"}  # tables of characters, by the hundred


def standard_library():
    """-> the source of Python's own standard library, files in the order of their paths, and what it is"""
    root = Path(os.__file__).parent
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    names = [name for name in names if not NOT_LIBRARY & set(name.split("/"))]
    parts = []
    for name in names:
        with tokenize.open(root / name) as file:  # as Python reads it, whatever its encoding
            parts.append(file.read())
    data = "".join(parts).encode()
    return data.decode(), dict(python=platform.python_version(), files=len(names), bytes=len(data),
                               sha256=hashlib.sha256(data).hexdigest())  # fmt: skip


@cache  # each tokenizer is trained once
def text(source, vocabulary=VOCABULARY, share=1.0):
    """source: a text file, or "python" -> ids to train on and ids to validate on (the last tenth), and how
    many bytes a token of each has.

    share: how much of the training text there is, from its beginning; the tokenizer sees no more of it."""
    if source == "python":
        whole, _ = standard_library()
        cut = len(whole) * 9 // 10
        train, val = whole[:cut], whole[cut:]
    else:
        corpus = load_corpus(source, 0)
        train, val = corpus.train, corpus.val
    train = train[: round(share * len(train))]
    tokenizer = train_bpe(train, vocabulary)
    ids, val_ids = (np.array(tokenizer.encode(t), dtype="int32") for t in (train, val))
    return SimpleNamespace(train=ids, val=val_ids, train_bytes=len(train.encode()) / len(ids),
                           val_bytes=len(val.encode()) / len(val_ids))  # fmt: skip


def best_rate(kind):
    return recorded("language_rates")["best"][LIKE.get(kind, kind)]


def validation_loss(model, val, batches=48):
    """Nats per token in windows of the validation text, at the same places for every model."""
    losses = []
    for i in range(batches):
        ids, targets = draw_batch(val, BATCH, model.config.context, 0, i)
        batch = model.tables.fetch(ids, targets)
        x, _ = trunk_forward(model.params, model.config, batch)
        losses.append(float(head_loss_forward(x, model.params["head"], batch.targets, grads=False)[0]))
    return np.mean(losses)


def one(args, kind, seed, label=None, lr=None, steps=STEPS, epochs=None, points=10, spread=False,
        vocabulary=VOCABULARY, source=None, share=1.0, decay=0.1, table_lr=2.0, table_std=0.02):  # fmt: skip
    """Train one of MODELS, at its best rate unless lr says another -> what is recorded of it, under `label`;
    losses in nats per byte."""
    lr = lr or best_rate(kind)
    words = text(source or args.text, vocabulary, share)
    config = Config(vocabulary, **SHAPE | MODELS[kind])
    n, tokens = measure.count(config), BATCH * config.context
    if epochs:
        steps = round(epochs * len(words.train) / tokens)

    def evaluate(model):
        return dict(val_nats_per_byte=sig(validation_loss(model, words.val) / words.val_bytes))

    untrained = fit(config, None, 0, seed, lr)[0]
    model, curve, _, _ = fit(config, draws(words, config, seed), steps, seed, lr, table_lr, table_std, decay,
                             evaluate=evaluate, every=steps // points, threads=args.threads)  # fmt: skip
    for point in curve:
        point["train_nats_per_byte"] = sig(point.pop("loss") / words.train_bytes)
    end = curve[-1] if curve else {}  # one that blew up has none
    run = dict(
        model=label or kind, seed=seed, lr=lr, active=n.active, total=n.total, tokens_per_step=tokens,
        steps=steps, epochs=sig(steps * tokens / len(words.train), 3),
        flops_per_step=training_flops(config, tokens),
        **{k: v for k, v in end.items() if k != "step"}, curve=curve,
    )  # fmt: skip
    print({k: v for k, v in run.items() if k != "curve"}, flush=True)
    if spread:
        run["spread"] = dict(before=angles(untrained, words), after=angles(model, words))
    return run


def draws(words, config, seed):
    """-> a function: step -> ids, targets (B,T)"""
    return lambda step: draw_batch(words.train, BATCH, config.context, seed, step)


def angles(model, words, n=64):
    """Angular spread of what stands beside the gate in every layer -> [dict]: of a STEM layer's rows of the
    trained tokens, or of x @ w_up where tokens first occur in the validation text."""
    config, layers = model.config, []
    inputs = words.val[: n * config.context].reshape(n, config.context)
    first = np.unique(inputs, return_index=True)[1]
    _, (_, _, caches, _) = trunk_forward(model.params, config, model.tables.fetch(inputs))
    for i, (*_, ffn) in enumerate(caches):
        *_, u = ffn[-2]
        kind = config.ffn_kind(i)
        up = u.reshape(-1, u.shape[-1])[first]
        if kind == "stem":
            up = model.tables[f"layers.{i}.table"][np.unique(words.train)]
        layers.append(dict(layer=i, kind=kind, up=angular_spread(up)))
    return layers


LOSSES = "val_nats_per_byte", "train_nats_per_byte"


def rates(args):
    """One seed that is used nowhere else; half the steps."""
    runs = []

    def loss(kind, lr):
        runs.append(one(args, kind, 100, steps=STEPS // 2, lr=lr, points=1))
        return runs[-1].get("val_nats_per_byte", np.inf)

    best = best_rates([kind for kind in MODELS if kind not in LIKE], RATES, loss)
    return dict(shape=SHAPE, vocabulary=VOCABULARY, batch=BATCH, best=best, runs=runs)


def models(args):
    runs = [one(args, kind, seed, spread=True) for seed in range(args.seeds) for kind in MODELS]
    width = SHAPE["ffn_dim"]
    vectors = np.random.default_rng(0).standard_normal((VOCABULARY, width))
    spread = dict(width=width, random=angular_spread(vectors), theory_p95=sig(1.96 / width**0.5))
    for run in runs:  # histograms of one seed are enough to draw
        drawn = run["seed"] == 0 and run["model"] in ("dense", "stem all")
        for layer in run["spread"]["before"] + run["spread"]["after"]:
            layer["up"] = {k: v if k == "counts" else sig(v) for k, v in layer["up"].items()
                           if drawn or k != "counts"}  # fmt: skip
    return dict(shape=SHAPE, vocabulary=VOCABULARY, batch=BATCH, seeds=list(range(args.seeds)),
                summary={kind: summed_up(of(runs, kind), *LOSSES) for kind in MODELS},
                random_vectors=spread, runs=runs)  # fmt: skip


OVERFIT = {
    "dense": ("dense", {}),
    "dense, weight decay 1": ("dense", dict(decay=1.0)),
    "dense, vocabulary 512": ("dense", dict(vocabulary=512)),
    "stem all": ("stem all", {}),
    "stem all, table rate 0.5": ("stem all", dict(table_lr=0.5)),
    "stem all, weight decay 1": ("stem all", dict(decay=1.0)),
    "stem all, vocabulary 512": ("stem all", dict(vocabulary=512)),
    "stem 1/2": ("stem 1/2", {}),
    "stem 1/3": ("stem 1/3", {}),
}
SHARE, EPOCHS = 0.1, 12


def overfit(args):
    """A tenth of the training text, again and again: where validation loss turns, and what turns it later.

    The rates are those of the whole text, and tables otherwise learn at twice that; weight decay, else 0.1,
    is that of the matrices: tables have none."""
    runs, summary = [], {}
    for seed in range(args.seeds):
        for label, (kind, changes) in OVERFIT.items():
            run = one(args, kind, seed, label, **changes, share=SHARE, epochs=EPOCHS, points=EPOCHS)
            best = min(run["curve"], key=lambda point: point["val_nats_per_byte"])
            runs.append(run | dict(best=best))
    for label in OVERFIT:
        mine = of(runs, label)
        summary[label] = dict(
            best=least_mean_most([run["best"]["val_nats_per_byte"] for run in mine]),
            best_epoch=least_mean_most([sig(run["best"]["step"] * EPOCHS / run["steps"], 3) for run in mine]),
            end=least_mean_most([run["val_nats_per_byte"] for run in mine]),
            train_at_end=least_mean_most([run["train_nats_per_byte"] for run in mine]),
        )  # fmt: skip
    return dict(shape=SHAPE, share=SHARE, epochs=EPOCHS, batch=BATCH, seeds=list(range(args.seeds)),
                summary=summary, runs=runs)  # fmt: skip


def python(args):
    """The same models, rates and shape on a text that is too large to be learned by heart."""
    kinds = "dense", "stem 1/2", "stem all"
    runs = [one(args, kind, seed, steps=STEPS * 3 // 2, source="python")
            for seed in range(args.seeds) for kind in kinds]  # fmt: skip
    return dict(text=standard_library()[1], shape=SHAPE, vocabulary=VOCABULARY, batch=BATCH,
                seeds=list(range(args.seeds)),
                summary={kind: summed_up(of(runs, kind), *LOSSES) for kind in kinds}, runs=runs)  # fmt: skip


# ----------------------------------------------------------------------------- what training needs to go well


def tables(args):
    """How large tables start, in half of the usual steps."""
    runs = []
    for seed in range(args.seeds):
        for std in STDS:
            run = one(args, "stem all", seed, steps=STEPS // 2, table_std=std, points=1)
            runs.append(dict(seed=seed, table_std=std, val_nats_per_byte=run["val_nats_per_byte"]))
    losses = {std: [run["val_nats_per_byte"] for run in runs if run["table_std"] == std] for std in STDS}
    grid = [dict(table_std=std, val_nats_per_byte=least_mean_most(losses[std])) for std in STDS]
    return dict(steps=run["steps"], lr=run["lr"], seeds=list(range(args.seeds)), grid=grid, runs=runs)


def stability(args):
    """Dense and STEM at their best rates, and far above them: losses and gradient norms from step 30 on."""
    runs, words = [], text(args.text)
    for seed in range(args.seeds):
        for kind in ("dense", "stem all"):
            config = Config(VOCABULARY, **SHAPE | MODELS[kind])
            for times in TIMES:
                lr = best_rate(kind) * times
                model, _, losses, norms = fit(config, draws(words, config, seed), 300, seed, lr, warmup=20)
                rises = [losses[i] - np.mean(losses[i - 10 : i]) for i in range(30, len(losses))]
                with np.errstate(all="ignore"):
                    val_loss = validation_loss(model, words.val)
                runs.append(dict(
                    model=kind, seed=seed, times=times, lr=lr, steps=len(losses), val_loss=sig(val_loss),
                    worst_rise=sig(max(rises)), spikes=int(sum(rise > SPIKE for rise in rises)),
                    median_norm=sig(np.median(norms[30:])), largest_norm=sig(max(norms[30:])),
                ))  # fmt: skip
                print(runs[-1], flush=True)
                if seed == 0:  # one is enough to draw
                    runs[-1]["losses"] = [sig(loss, 4) for loss in losses]
    return dict(shape=SHAPE, spike=SPIKE, seeds=list(range(args.seeds)), runs=runs)


# ------------------------------------------------------------------- activated parameters and context


def context(args):
    """Everything here is exact for a text: nothing is trained but tokenizers."""
    vocabularies = []
    for vocabulary in (512, 1024, 2048, 4096):
        words = text(args.text, vocabulary)
        ids = np.concatenate([words.train, words.val])
        lengths = [2**k for k in range(4, 18) if 2**k <= len(ids) // 4]
        distinct = []
        for length in lengths:
            starts = np.linspace(0, len(ids) - length, 32).astype(int)
            distinct.append(float(np.mean([len(np.unique(ids[s : s + length])) for s in starts])))
        # Heaps: distinct = k length^beta, fitted where the vocabulary is not yet used up
        fitted = [j for j, d in enumerate(distinct) if d < vocabulary / 2]
        beta, _ = np.polyfit(np.log([lengths[j] for j in fitted]), np.log([distinct[j] for j in fitted]), 1)
        row = SHAPE["n_layers"] * SHAPE["ffn_dim"]
        vocabularies.append(dict(
            vocabulary=vocabulary, tokens=len(ids), lengths=lengths, distinct=[sig(d, 6) for d in distinct],
            heaps_exponent=sig(beta, 3), active_table_parameters=[round(d * row) for d in distinct],
            ffn_flops_per_token=2 * 2 * SHAPE["dim"] * row,
        ))  # fmt: skip
        print(vocabularies[-1], flush=True)
    return dict(shape=SHAPE, stem_layers=4, windows=32, vocabularies=vocabularies)


if __name__ == "__main__":
    experiments = (rates, models, overfit, python, tables, stability, context)
    records = {f"language_{experiment.__name__}": experiment for experiment in experiments}
    common.main(__doc__, records, **common.SEEDS, text=(Path("input.txt"), "a text file in UTF-8"))
