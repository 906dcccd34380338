"""STEM on real text. Needs a text file: input.txt, Tiny Shakespeare (see README).

    python results/language.py models      validation loss against tokens and FLOPs; angular spread
    python results/language.py context     distinct rows against length, Heaps' exponent, FLOPs
"""

from pathlib import Path

import common
import numpy as np
from common import fit, sig, training_flops

from ministem import measure
from ministem.data import draw_batch, load_corpus
from ministem.model import Config, trunk_forward
from ministem.tokenizer import train_bpe
from train import parse_stem_layers

SHAPE = dict(dim=64, n_layers=4, n_heads=2, ffn_dim=192, context=64)
VOCABULARY, BATCH, STEPS, RATE = 1024, 8, 150, 4e-3
MODELS = {
    "dense": dict(stem="none"),
    "stem 1/2": dict(stem="1/2"),
    "stem all": dict(stem="all"),
    "gate 1/2": dict(stem="1/2", ffn="gate"),
    "additive 1/2": dict(stem="1/2", ffn="additive"),
}
TEXTS = {}  # vocabulary size -> ids and bytes per token: each tokenizer is trained once


def text(args, vocabulary=VOCABULARY):
    """-> training ids, validation ids, and bytes per token of the validation text (the last tenth)."""
    if vocabulary not in TEXTS:
        corpus = load_corpus(args.text, 0)
        tokenizer = train_bpe(corpus.train, vocabulary)
        ids, val = (np.array(tokenizer.encode(t), dtype="int32") for t in (corpus.train, corpus.val))
        TEXTS[vocabulary] = ids, val, len(corpus.val.encode()) / len(val)
    return TEXTS[vocabulary]


def one(args, label, seed, stem, ffn="stem"):
    """Train one model -> what is recorded of it; losses in nats per byte."""
    ids, val, bytes_per_token = text(args)
    layers = parse_stem_layers(stem, SHAPE["n_layers"])
    config = Config(VOCABULARY, **SHAPE, stem_layers=layers, ffn=ffn)

    def look(model):
        loss = measure.evaluate(model, val, BATCH, limit=6_144)
        return dict(val_nats_per_byte=sig(loss / bytes_per_token))

    def draw(step):
        return draw_batch(ids, BATCH, config.context, seed, step)

    before = fit(config, draw, 0, seed, RATE)[0]
    at_start = angles(before, ids, val)
    model, curve, _, _ = fit(config, draw, STEPS, seed, RATE, look=look, every=STEPS // 3,
                             threads=args.threads)  # fmt: skip
    n, tokens = measure.count(config), BATCH * config.context
    found = dict(
        model=label, seed=seed, active=n.active, total=n.total, tokens_per_step=tokens, steps=STEPS,
        epochs=sig(STEPS * tokens / len(ids), 3), flops_per_step=training_flops(config, tokens),
        val_nats_per_byte=curve[-1]["val_nats_per_byte"],
        train_nats_per_byte=sig(curve[-1]["loss"] / bytes_per_token), curve=curve,
    )  # fmt: skip
    print({k: v for k, v in found.items() if k != "curve"}, flush=True)
    return found | dict(spread=dict(before=at_start, after=angles(model, ids, val)))


def angles(model, ids, val, n=64):
    """Angular spread in every layer -> [dict]: what goes in as `up` (a STEM layer's rows of the tokens that
    were trained, or x @ w_up where tokens of the validation text first occur), and what comes out gated."""
    config = model.config
    inputs = val[: n * config.context].reshape(n, config.context)
    first = np.unique(inputs, return_index=True)[1]
    _, (_, _, layers, _) = trunk_forward(model.params, config, model.tables.fetch(inputs))
    found = []
    for i, (*_, ffn) in enumerate(layers):
        a, s, u = ffn[-2]
        up = u.reshape(-1, u.shape[-1])[first]
        gated = (a * s * u).reshape(-1, u.shape[-1])[first]
        kind = config.ffn_kind(i)
        if kind == "stem":
            up = model.tables[f"layers.{i}.table"][np.unique(ids)]
        of = dict(layer=i, kind=kind, up=measure.angular_spread(up), gated=measure.angular_spread(gated))
        found.append(of)
    return found


def models(args):
    runs = [one(args, label, seed, **how) for seed in range(args.seeds) for label, how in MODELS.items()]
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
    return dict(shape=SHAPE, vocabulary=VOCABULARY, batch=BATCH, rate=RATE, seeds=list(range(args.seeds)),
                summary=summary, random_vectors=spread, runs=runs)  # fmt: skip


def summed_up(runs):
    """Of the runs of one model: validation loss (least, mean, most), and its cost."""
    found = [run["val_nats_per_byte"] for run in runs]
    return dict(val_nats_per_byte=[min(found), sig(np.mean(found)), max(found)],
                train_nats_per_byte=sig(np.mean([run["train_nats_per_byte"] for run in runs])),
                active=runs[0]["active"], flops=runs[0]["flops_per_step"] * runs[0]["steps"])  # fmt: skip


# ------------------------------------------------------------------- activated parameters and context


def context(args):
    """Everything here is exact for a text: nothing is trained but tokenizers."""
    found = []
    for vocabulary in (512, 1024, 2048, 4096):
        ids, val, bytes_per_token = text(args, vocabulary)
        ids = np.concatenate([ids, val])
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
            vocabulary=vocabulary, tokens=len(ids), bytes_per_token=sig(bytes_per_token), lengths=lengths,
            distinct=[sig(d, 6) for d in distinct], heaps_exponent=sig(beta, 3), heaps_k=sig(np.exp(k), 3),
            active_table_parameters=[round(d * row) for d in distinct],
            ffn_flops_per_token=ffn, flops_per_token_at_length=flops,
        ))  # fmt: skip
        print(found[-1], flush=True)
    return dict(shape=SHAPE, stem_layers=4, windows=32, vocabularies=found)


if __name__ == "__main__":
    parser = common.parser(__doc__, ("models", "context"))
    parser.add_argument("--text", type=Path, default=Path("input.txt"))
    args = parser.parse_args()
    common.run(args, globals()[args.what], f"language_{args.what}")
