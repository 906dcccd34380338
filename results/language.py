"""STEM on real text. Needs a text file: input.txt, Tiny Shakespeare (see README).

    python results/language.py rates       the best learning rate of each kind of model
    python results/language.py models      validation loss against tokens and FLOPs; angular spread
    python results/language.py overfit     a tenth of the text, many times over; and what helps
    python results/language.py python      a larger text: the source of Python's standard library
    python results/language.py context     distinct rows against length, Heaps' exponent, FLOPs
"""

import hashlib
import os
import platform
import tokenize
from pathlib import Path
from types import SimpleNamespace

import common
import numpy as np
from common import best_rates, fit, least_mean_most, recorded_rates, sig, training_flops

from ministem.config import Config
from ministem.data import draw_batch, load_corpus
from ministem.knowledge import measure
from ministem.model import head_loss_forward, trunk_forward
from ministem.tokenizer import train_bpe
from train import parse_stem_layers

SHAPE = dict(dim=64, n_layers=4, n_heads=2, ffn_dim=192, context=64)
VOCABULARY, BATCH, STEPS = 1024, 8, 1000
EQUAL_FLOPS = 128  # the FFN width at which three matrices cost as much as two of width 192
MODELS = {
    "dense": dict(stem="none"),
    "stem 1/3": dict(stem="1/3"),  # of four layers: layer 1 alone
    "stem 1/2": dict(stem="1/2"),
    "stem all": dict(stem="all"),
    "gate 1/2": dict(stem="1/2", ffn="gate"),
    "additive 1/2": dict(stem="1/2", ffn="additive"),
    "dense, FLOPs of stem all": dict(stem="none", ffn_dim=EQUAL_FLOPS),
}
RATES = (2e-3, 4e-3, 8e-3)  # and on, where the best is the first or the last
LIKE = {"stem 1/3": "stem 1/2", "dense, FLOPs of stem all": "dense"}  # has the rate that is best for that one

NOT_LIBRARY = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "dist-packages"}
NOT_LIBRARY |= {"encodings"}  # tables of characters, by the hundred
TEXTS = {}  # name, vocabulary and share of a text -> ids: each tokenizer is trained once


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


def text(args, vocabulary=VOCABULARY, name="input", share=1.0):
    """-> ids to train on and ids to be judged by (the last tenth), and how many bytes a token of each has.

    share: how much of the training text there is, from its beginning; the tokenizer sees no more of it."""
    key = name, vocabulary, share
    if key not in TEXTS:
        if name == "python":
            whole, _ = standard_library()
            cut = len(whole) * 9 // 10
            train, val = whole[:cut], whole[cut:]
        else:
            corpus = load_corpus(args.text, 0)
            train, val = corpus.train, corpus.val
        train = train[: round(share * len(train))]
        tokenizer = train_bpe(train, vocabulary)
        ids, val_ids = (np.array(tokenizer.encode(t), dtype="int32") for t in (train, val))
        TEXTS[key] = SimpleNamespace(train=ids, val=val_ids, train_bytes=len(train.encode()) / len(ids),
                                     val_bytes=len(val.encode()) / len(val_ids))  # fmt: skip
    return TEXTS[key]


def validation_loss(model, val, batches=48):
    """Nats per token in windows of the validation text, at the same places for every model."""
    losses = []
    for i in range(batches):
        ids, targets = draw_batch(val, BATCH, model.config.context, 0, i)
        batch = model.tables.fetch(ids, targets)
        x, _ = trunk_forward(model.params, model.config, batch)
        losses.append(float(head_loss_forward(x, model.params["head"], batch.targets, grads=False)[0]))
    return np.mean(losses)


def one(args, label, seed, stem, ffn="stem", lr=None, steps=STEPS, epochs=None, looks=10, spread=False,
        vocabulary=VOCABULARY, name="input", share=1.0, decay=0.1, table_lr=2.0,
        table_std=0.02, **shape):  # fmt: skip
    """Train one model, at its kind's best rate unless lr says another -> what is recorded of it; losses in
    nats per byte."""
    lr = lr or recorded_rates("language_rates")[LIKE.get(label, label)]
    words = text(args, vocabulary, name, share)
    layers = parse_stem_layers(stem, SHAPE["n_layers"])
    config = Config(vocabulary, **SHAPE | shape, stem_layers=layers, ffn=ffn)
    n, tokens = measure.count(config), BATCH * config.context
    if epochs:
        steps = round(epochs * len(words.train) / tokens)

    def look(model):
        return dict(val_nats_per_byte=sig(validation_loss(model, words.val) / words.val_bytes))

    def draw(step):
        return draw_batch(words.train, BATCH, config.context, seed, step)

    before = fit(config, draw, 0, seed, lr)[0]
    at_start = angles(before, words) if spread else None
    model, curve, _, _ = fit(config, draw, steps, seed, lr, table_lr, table_std, decay, look=look,
                             every=steps // looks, threads=args.threads)  # fmt: skip
    for point in curve:
        point["train_nats_per_byte"] = sig(point.pop("loss") / words.train_bytes)
    end = curve[-1] if curve else {}  # one that blew up has none
    found = dict(
        model=label, seed=seed, lr=lr, active=n.active, total=n.total, tokens_per_step=tokens, steps=steps,
        epochs=sig(steps * tokens / len(words.train), 3), flops_per_step=training_flops(config, tokens),
        **{k: v for k, v in end.items() if k != "step"}, curve=curve,
    )  # fmt: skip
    print({k: v for k, v in found.items() if k != "curve"}, flush=True)
    return found | (dict(spread=dict(before=at_start, after=angles(model, words))) if spread else {})


def angles(model, words, n=64):
    """Angular spread in every layer -> [dict]: what goes in as `up` (a STEM layer's rows of the tokens that
    were trained, or x @ w_up where tokens of the validation text first occur), and what comes out gated."""
    config = model.config
    inputs = words.val[: n * config.context].reshape(n, config.context)
    first = np.unique(inputs, return_index=True)[1]
    _, (_, _, layers, _) = trunk_forward(model.params, config, model.tables.fetch(inputs))
    found = []
    for i, (*_, ffn) in enumerate(layers):
        a, s, u = ffn[-2]
        up = u.reshape(-1, u.shape[-1])[first]
        gated = (a * s * u).reshape(-1, u.shape[-1])[first]
        kind = config.ffn_kind(i)
        if kind == "stem":
            up = model.tables[f"layers.{i}.table"][np.unique(words.train)]
        of = dict(layer=i, kind=kind, up=measure.angular_spread(up), gated=measure.angular_spread(gated))
        found.append(of)
    return found


def rates(args):
    """One seed that is used nowhere else; half the steps."""
    runs = []

    def loss(label, lr):
        runs.append(one(args, label, 100, **MODELS[label], steps=STEPS // 2, lr=lr, looks=1))
        return runs[-1].get("val_nats_per_byte", np.inf)

    best = best_rates([label for label in MODELS if label not in LIKE], RATES, loss)
    return dict(shape=SHAPE, vocabulary=VOCABULARY, batch=BATCH, best=best, runs=runs)


def models(args):
    runs = [one(args, label, seed, **how, spread=True)
            for seed in range(args.seeds) for label, how in MODELS.items()]  # fmt: skip
    summary = {label: summed_up([r for r in runs if r["model"] == label]) for label in MODELS}
    width = SHAPE["ffn_dim"]
    vectors = np.random.default_rng(0).standard_normal((VOCABULARY, width))
    spread = dict(width=width, random=measure.angular_spread(vectors), theory_p95=sig(1.96 / width**0.5))
    for run in runs:  # histograms of one seed are enough to draw
        for layer in run["spread"]["before"] + run["spread"]["after"]:
            for what in ("up", "gated"):
                keep = run["seed"] == 0 and run["model"] in ("dense", "stem all")
                layer[what] = {k: v if k == "counts" else sig(v) for k, v in layer[what].items()
                               if keep or k != "counts"}  # fmt: skip
    return dict(shape=SHAPE, vocabulary=VOCABULARY, batch=BATCH, seeds=list(range(args.seeds)),
                summary=summary, random_vectors=spread, runs=runs)  # fmt: skip


def summed_up(runs):
    """Of the runs of one model: losses (least, mean, most), and its cost."""
    losses = ("val_nats_per_byte", "train_nats_per_byte")
    of = {key: least_mean_most([run[key] for run in runs]) for key in losses}
    return of | dict(lr=runs[0]["lr"], active=runs[0]["active"], total=runs[0]["total"],
                     flops=runs[0]["flops_per_step"] * runs[0]["steps"])  # fmt: skip


OVERFIT = {
    "dense": dict(stem="none"),
    "dense, weight decay 1": dict(stem="none", decay=1.0),
    "dense, vocabulary 512": dict(stem="none", vocabulary=512),
    "stem all": dict(stem="all"),
    "stem all, table rate 0.5": dict(stem="all", table_lr=0.5),
    "stem all, weight decay 1": dict(stem="all", decay=1.0),
    "stem all, vocabulary 512": dict(stem="all", vocabulary=512),
    "stem 1/2": dict(stem="1/2"),
    "stem 1/3": dict(stem="1/3"),
}
SHARE, EPOCHS = 0.1, 12


def overfit(args):
    """A tenth of the training text, again and again: where validation loss turns, and what turns it later.

    The rates are those of the whole text, and tables otherwise learn at twice that; weight decay, else 0.1,
    is that of the matrices: tables have none."""
    runs = []
    for seed in range(args.seeds):
        for label, how in OVERFIT.items():
            kind = label.split(",")[0]
            lr = recorded_rates("language_rates")[LIKE.get(kind, kind)]
            run = one(args, label, seed, **how, lr=lr, share=SHARE, epochs=EPOCHS, looks=EPOCHS)
            best = min(run["curve"], key=lambda point: point["val_nats_per_byte"])
            runs.append(run | dict(best=best))
    summary = {}
    for label in OVERFIT:
        mine = [run for run in runs if run["model"] == label]
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
    labels = ("dense", "stem 1/2", "stem all")
    runs = [one(args, label, seed, **MODELS[label], steps=STEPS * 3 // 2, name="python")
            for seed in range(args.seeds) for label in labels]  # fmt: skip
    summary = {label: summed_up([r for r in runs if r["model"] == label]) for label in labels}
    return dict(text=standard_library()[1], shape=SHAPE, vocabulary=VOCABULARY, batch=BATCH,
                seeds=list(range(args.seeds)), summary=summary, runs=runs)  # fmt: skip


# ------------------------------------------------------------------- activated parameters and context


def context(args):
    """Everything here is exact for a text: nothing is trained but tokenizers."""
    found = []
    for vocabulary in (512, 1024, 2048, 4096):
        words = text(args, vocabulary)
        ids = np.concatenate([words.train, words.val])
        config = Config(vocabulary, **SHAPE)
        lengths = [2**k for k in range(4, 18) if 2**k <= len(ids) // 4]
        distinct, flops = [], []
        for length in lengths:
            starts = np.linspace(0, len(ids) - length, 32).astype(int)
            distinct.append(float(np.mean([len(np.unique(ids[s : s + length])) for s in starts])))
            one = Config(vocabulary, **SHAPE | dict(context=length))
            flops.append(measure.count(one).flops)
        # Heaps: distinct = k length^beta, fitted where the vocabulary is not yet used up
        some = [j for j, d in enumerate(distinct) if d < vocabulary / 2]
        beta, k = np.polyfit(np.log([lengths[j] for j in some]), np.log([distinct[j] for j in some]), 1)
        row = config.n_layers * config.ffn_dim
        ffn = 2 * 2 * config.n_layers * config.dim * config.ffn_dim
        found.append(dict(
            vocabulary=vocabulary, tokens=len(ids), bytes_per_token=sig(words.val_bytes), lengths=lengths,
            distinct=[sig(d, 6) for d in distinct], heaps_exponent=sig(beta, 3), heaps_k=sig(np.exp(k), 3),
            active_table_parameters=[round(d * row) for d in distinct],
            ffn_flops_per_token=ffn, flops_per_token_at_length=flops,
        ))  # fmt: skip
        print(found[-1], flush=True)
    return dict(shape=SHAPE, stem_layers=4, windows=32, vocabularies=found)


if __name__ == "__main__":
    parser = common.parser(__doc__, ("rates", "models", "overfit", "python", "context"))
    parser.add_argument("--text", type=Path, default=Path("input.txt"))
    args = parser.parse_args()
    common.run(args, globals()[args.what], f"language_{args.what}")
