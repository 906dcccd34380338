"""How many random facts does a model hold? A world of triples: relation, entity -> value.

    python results/capacity.py rates     the best learning rate, of a dense model and of STEM
    python results/capacity.py models    recall against steps and training FLOPs, 1,000 entities, 4 relations
    python results/capacity.py worlds    other worlds: as many facts about fewer entities; fewer, more

Every entity, relation and value is one token, every value is drawn at random, so nothing can be guessed:
log2(100) = 6.6 bits a fact. After its first token a model has to say one fixed token, which is learned at
once: what could come there would be noise. The answer is due where the entity has just been read, so that
the table's row there is the entity's (as in "the capital of Spain").
"""

import common
import numpy as np
from common import fit, sig, training_flops

from ministem import measure
from ministem.model import Config, trunk_forward
from train import parse_stem_layers

WORLD = dict(entities=1000, relations=4, values=100)  # 4,000 facts
SHAPE = dict(dim=32, n_layers=6, n_heads=1, ffn_dim=96, context=2)
BATCH, READINGS = 256, 25.6  # triples a step; how often each fact is read: 400 steps for 4,000 facts
EQUAL_FLOPS = 64  # the FFN width at which three matrices cost as much as two of width 96

MODELS = {
    "dense": dict(stem="none"),
    "stem 1/3": dict(stem="1/3"),
    "stem all": dict(stem="all"),
    "gate 1/3": dict(stem="1/3", ffn="gate"),
    "additive 1/3": dict(stem="1/3", ffn="additive"),
    "dense, FLOPs of stem all": dict(stem="none", ffn_dim=EQUAL_FLOPS),
    "stem 1/2": dict(stem="1/2"),
}
RATES = (3e-3, 6e-3, 1.2e-2)
RATE = 6e-3  # the best of RATES for dense; STEM could do with twice as much, see capacity_rates.json


def triples(entities, relations, values, seed):
    """-> (N,3) token ids of all facts: relation, entity, value."""
    drawn = np.random.default_rng([seed, 1]).integers(0, values, entities * relations)
    entity, relation = np.divmod(np.arange(len(drawn)), relations)
    return np.stack([entities + relation, entity, entities + relations + drawn], axis=1)


def recall(model, facts, B=2000):
    """-> the share of facts whose value is the likeliest token, and its surprise in nats."""
    right, nats = 0, 0.0
    for part in np.split(facts, range(B, len(facts), B)):
        x, _ = trunk_forward(model.params, model.config, model.tables.fetch(part[:, :2]))
        logits = x[:, 1] @ model.params["head"]
        right += (logits.argmax(-1) == part[:, 2]).sum()
        logits -= logits.max(-1, keepdims=True)
        answer = np.take_along_axis(logits, part[:, 2:], 1)[:, 0]
        nats += (np.log(np.exp(logits).sum(-1)) - answer).sum()
    return dict(recall=sig(right / len(facts)), nats=sig(nats / len(facts), 4))


def one(args, label, seed, stem, ffn="stem", readings=READINGS, lr=RATE, world=WORLD,
        table_std=0.02, table_lr=2.0, looks=4, **shape):  # fmt: skip
    """Train one model on one world -> what is recorded of it."""
    facts = triples(**world, seed=seed)
    layers = parse_stem_layers(stem, SHAPE["n_layers"])
    config = Config(sum(world.values()), **SHAPE | shape, stem_layers=layers, ffn=ffn)
    steps = round(len(facts) * readings / BATCH)
    targets = np.stack([np.full(len(facts), world["entities"]), facts[:, 2]], axis=1)

    def draw(step):
        some = np.random.default_rng([seed, step]).integers(0, len(facts), BATCH)
        return facts[some, :2], targets[some]

    _, curve, _, _ = fit(config, draw, steps, seed, lr, table_lr, table_std, threads=args.threads,
                         look=lambda model: recall(model, facts), every=steps // looks)  # fmt: skip
    n = measure.count(config)
    found = dict(
        model=label, seed=seed, **world, facts=len(facts), lr=lr, steps=steps, active=n.active, total=n.total,
        flops_per_step=training_flops(config, 2 * BATCH), **(curve[-1] if curve else {}), curve=curve,
    )  # fmt: skip
    print({k: v for k, v in found.items() if k != "curve"}, flush=True)
    return found


def rates(args):
    """One seed that is used nowhere else; half the steps."""
    labels = ("dense", "stem 1/3", "gate 1/3", "additive 1/3")
    runs = [one(args, label, 100, **MODELS[label] | dict(readings=READINGS / 2, lr=lr, looks=1))
            for label in labels for lr in RATES]  # fmt: skip
    best = {label: min((r for r in runs if r["model"] == label), key=lambda r: r["nats"]) for label in labels}
    return dict(shape=SHAPE, best={label: run["lr"] for label, run in best.items()}, runs=runs)


def models(args):
    runs = [one(args, label, seed, **how) for seed in range(args.seeds) for label, how in MODELS.items()]
    summary = {label: summed_up([r for r in runs if r["model"] == label]) for label in MODELS}
    for found in summary.values():  # the paper's ROI, with recall as the accuracy: over FLOPs, dense = 1
        found["roi"] = sig(found["recall"][1] / found["flops"] / summary["dense"]["recall"][1]
                           * summary["dense"]["flops"], 3)  # fmt: skip
    return dict(shape=SHAPE, batch=BATCH, seeds=list(range(args.seeds)), summary=summary, runs=runs)


def summed_up(runs):
    """Of the runs of one model, a seed each: recall (least, mean, most), and its cost."""
    found = [run["recall"] for run in runs]
    return dict(recall=[min(found), sig(np.mean(found)), max(found)], active=runs[0]["active"],
                total=runs[0]["total"], flops=runs[0]["flops_per_step"] * runs[0]["steps"])  # fmt: skip


def worlds(args):
    runs = []
    for seed in range(args.seeds):
        for entities, relations in ((125, 32), (500, 4), (2000, 4)):
            world = WORLD | dict(entities=entities, relations=relations)
            for label in ("dense", "stem all"):
                runs.append(one(args, label, seed, **MODELS[label], world=world))
    return dict(shape=SHAPE, batch=BATCH, seeds=list(range(args.seeds)), runs=runs)


if __name__ == "__main__":
    args = common.parser(__doc__, ("rates", "models", "worlds")).parse_args()
    common.run(args, globals()[args.what], f"capacity_{args.what}")
