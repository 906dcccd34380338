"""How many random facts does a model hold? A world of triples: relation, entity -> value.

    python results/capacity.py rates     each model's own best learning rate
    python results/capacity.py models    recall against steps and training FLOPs, 2,000 entities, 4 relations
    python results/capacity.py worlds    other worlds: fewer entities, more; more facts about each

Every entity, relation and value is one token, every value is drawn at random, so nothing can be guessed:
log2(100) = 6.6 bits a fact. After its first token a model has to say one fixed token, which is learned at
once: what could come there would be noise. The answer is due where the entity has just been read, so that
the table's row there is the entity's (as in "the capital of Spain").
"""

import common
import numpy as np
from common import best_rates, fit, least_mean_most, recorded_rates, sig, training_flops

from ministem.config import Config
from ministem.knowledge import measure
from ministem.model import trunk_forward
from train import parse_stem_layers

WORLD = dict(entities=2000, relations=4, values=100)  # 8,000 facts
SHAPE = dict(dim=64, n_layers=6, n_heads=2, ffn_dim=192, context=2)
BATCH, READINGS = 256, 24  # triples a step; how often each fact is read: 750 steps for 8,000 facts
EQUAL_FLOPS = 128  # the FFN width at which three matrices cost as much as two of width 192

MODELS = {
    "dense": dict(stem="none"),
    "stem 1/3": dict(stem="1/3"),
    "stem 1/2": dict(stem="1/2"),
    "stem all": dict(stem="all"),
    "gate 1/3": dict(stem="1/3", ffn="gate"),
    "additive 1/3": dict(stem="1/3", ffn="additive"),
    "dense, FLOPs of stem all": dict(stem="none", ffn_dim=EQUAL_FLOPS),
}
RATES = (2.5e-3, 5e-3, 1e-2)  # and on, where the best is the first or the last


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


def one(args, label, seed, stem, ffn="stem", readings=READINGS, lr=None, world=WORLD,
        table_std=0.02, table_lr=2.0, looks=10, **shape):  # fmt: skip
    """Train one model on one world, at its own best rate unless lr says another -> what is recorded of it."""
    lr = lr or recorded_rates("capacity_rates")[label]
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
    """One seed that is used nowhere else; two thirds of the steps."""
    runs = []

    def loss(label, lr):
        runs.append(one(args, label, 100, **MODELS[label], readings=16, lr=lr, looks=1))
        return runs[-1].get("nats", np.inf)  # one that blew up has none

    return dict(shape=SHAPE, batch=BATCH, best=best_rates(MODELS, RATES, loss), runs=runs)


def models(args):
    runs = [one(args, label, seed, **how) for seed in range(args.seeds) for label, how in MODELS.items()]
    for run in runs:
        run["steps_to_half"] = steps_to(0.5, run["curve"])
        run["steps_to_nine_tenths"] = steps_to(0.9, run["curve"])
    summary = {label: summed_up([r for r in runs if r["model"] == label]) for label in MODELS}
    for found in summary.values():  # the paper's ROI, with recall as the accuracy: over FLOPs, dense = 1
        found["roi"] = sig(found["recall"][1] / found["flops"] / summary["dense"]["recall"][1]
                           * summary["dense"]["flops"], 3)  # fmt: skip
    return dict(shape=SHAPE, batch=BATCH, seeds=list(range(args.seeds)), summary=summary, runs=runs)


def summed_up(runs):
    """Of the runs of one model, a seed each: recall, and the steps after which half of the facts were known
    and nine tenths (least, mean, most), and its cost."""
    what = ("recall", "steps_to_half", "steps_to_nine_tenths")
    of = {key: least_mean_most([run[key] for run in runs]) for key in what}
    return of | dict(lr=runs[0]["lr"], active=runs[0]["active"], total=runs[0]["total"],
                     flops_per_step=runs[0]["flops_per_step"],
                     flops=runs[0]["flops_per_step"] * runs[0]["steps"])  # fmt: skip


def steps_to(share, curve):
    """Where a curve first reaches that recall, on a straight line between two looks; None: never."""
    steps, known = ([0] + [point[key] for point in curve] for key in ("step", "recall"))
    for i in range(1, len(steps)):
        if known[i] >= share:
            part = (share - known[i - 1]) / (known[i] - known[i - 1])
            return round(steps[i - 1] + part * (steps[i] - steps[i - 1]))


def worlds(args):
    runs = []
    for seed in range(args.seeds):
        for entities, relations in ((125, 64), (500, 16), (4000, 4)):
            world = WORLD | dict(entities=entities, relations=relations)
            for label in ("dense", "stem all"):
                runs.append(one(args, label, seed, **MODELS[label], world=world))
    return dict(shape=SHAPE, batch=BATCH, seeds=list(range(args.seeds)), runs=runs)


if __name__ == "__main__":
    args = common.parser(__doc__, ("rates", "models", "worlds")).parse_args()
    common.run(args, globals()[args.what], f"capacity_{args.what}")
