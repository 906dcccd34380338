"""How many random facts does a model hold? A world of triples: relation, entity -> value.

    python results/capacity.py rates     each model's own best learning rate
    python results/capacity.py models    recall against steps and training FLOPs, 2,000 entities, 4 relations
    python results/capacity.py worlds    other worlds: fewer entities, more; more facts about each
    python results/capacity.py tables    how large tables start, and how fast they learn

Every entity, relation and value is one token, every value is drawn at random, so nothing can be guessed:
log2(100) = 6.6 bits a fact. After its first token a model has to say one fixed token, which is learned at
once: what could come there would be noise. The answer is due where the entity has just been read, so that
the table's row there is the entity's (as in "the capital of Spain").
"""

import common
import numpy as np
from common import best_rates, fit, least_mean_most, of, recorded, sig, summed_up, training_flops

from ministem.config import Config
from ministem.knowledge import measure
from ministem.model import trunk_forward

WORLD = dict(entities=2000, relations=4, values=100)  # 8,000 facts
SHAPE = dict(dim=64, n_layers=6, n_heads=2, ffn_dim=192, context=2)
BATCH, READINGS = 256, 24  # triples a step; how often each fact is read: 750 steps for 8,000 facts
EQUAL_FLOPS = 128  # the FFN width at which three matrices cost as much as two of width 192

ALL, HALF, THIRD = (0, 1, 2, 3, 4, 5), (1, 3, 5), (1, 4)  # the layers with a table
MODELS = {
    "dense": dict(stem_layers=()),
    "stem 1/3": dict(stem_layers=THIRD),
    "stem 1/2": dict(stem_layers=HALF),
    "stem all": dict(stem_layers=ALL),
    "gate 1/3": dict(stem_layers=THIRD, ffn="gate"),
    "additive 1/3": dict(stem_layers=THIRD, ffn="additive"),
    "dense, FLOPs of stem all": dict(stem_layers=(), ffn_dim=EQUAL_FLOPS),
}
RATES = (2.5e-3, 5e-3, 1e-2)  # and on, where the best is the first or the last
STDS = (0.004, 0.02, 0.1, 1.0)  # of new tables; ours is 0.02, the official default gives 0.004 at 1B
TABLE_RATES = (0.5, 2.0, 4.0)  # times the rate of everything else


def triples(entities, relations, values, seed):
    """-> (N,3) token ids of all facts: relation, entity, value."""
    value = np.random.default_rng([seed, 1]).integers(0, values, entities * relations)
    entity, relation = np.divmod(np.arange(len(value)), relations)
    return np.stack([entities + relation, entity, entities + relations + value], axis=1)


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


def one(args, label, seed, readings=READINGS, lr=None, world=WORLD, table_std=0.02, table_lr=2.0, points=10):
    """Train one model on one world, at its own best rate unless lr says another -> what is recorded of it."""
    lr = lr or recorded("capacity_rates")["best"][label]
    facts = triples(**world, seed=seed)
    config = Config(sum(world.values()), **SHAPE | MODELS[label])
    steps = round(len(facts) * readings / BATCH)
    targets = np.stack([np.full(len(facts), world["entities"]), facts[:, 2]], axis=1)

    def draw(step):
        rows = np.random.default_rng([seed, step]).integers(0, len(facts), BATCH)
        return facts[rows, :2], targets[rows]

    _, curve, _, _ = fit(config, draw, steps, seed, lr, table_lr, table_std, threads=args.threads,
                         evaluate=lambda model: recall(model, facts), every=steps // points)  # fmt: skip
    n = measure.count(config)
    run = dict(
        model=label, seed=seed, **world, facts=len(facts), lr=lr, steps=steps, active=n.active, total=n.total,
        flops_per_step=training_flops(config, 2 * BATCH), **(curve[-1] if curve else {}), curve=curve,
    )  # fmt: skip
    print({k: v for k, v in run.items() if k != "curve"}, flush=True)
    return run


def rates(args):
    """One seed that is used nowhere else; two thirds of the steps."""
    runs = []

    def loss(label, lr):
        runs.append(one(args, label, 100, readings=16, lr=lr, points=1))
        return runs[-1].get("nats", np.inf)  # one that blew up has none

    return dict(shape=SHAPE, batch=BATCH, best=best_rates(MODELS, RATES, loss), runs=runs)


def models(args):
    runs = [one(args, label, seed) for seed in range(args.seeds) for label in MODELS]
    for run in runs:
        run["steps_to_nine_tenths"] = steps_to(0.9, run["curve"])
    summary = {label: summed_up(of(runs, label), "recall", "steps_to_nine_tenths") for label in MODELS}
    dense = summary["dense"]
    for model in summary.values():  # the paper's ROI, with recall as the accuracy: over FLOPs, dense = 1
        roi = model["recall"][1] / model["flops"] / dense["recall"][1] * dense["flops"]
        model["roi"] = sig(roi, 3)
    return dict(shape=SHAPE, batch=BATCH, seeds=list(range(args.seeds)), summary=summary, runs=runs)


def steps_to(share, curve):
    """Where a curve first reaches that recall, interpolated between two points; None: never."""
    steps, recalls = ([0] + [point[key] for point in curve] for key in ("step", "recall"))
    for i in range(1, len(steps)):
        if recalls[i] >= share:
            part = (share - recalls[i - 1]) / (recalls[i] - recalls[i - 1])
            return round(steps[i - 1] + part * (steps[i] - steps[i - 1]))


def worlds(args):
    runs = []
    for seed in range(args.seeds):
        for entities, relations in ((125, 64), (500, 16), (4000, 4)):
            world = WORLD | dict(entities=entities, relations=relations)
            runs += [one(args, label, seed, world=world) for label in ("dense", "stem all")]
    return dict(shape=SHAPE, batch=BATCH, seeds=list(range(args.seeds)), runs=runs)


def tables(args):
    """STEM in all layers, after 250 steps: before everything is known."""
    runs, grid = [], []
    for seed in range(args.seeds):
        for std in STDS:
            for rate in TABLE_RATES:
                run = one(args, "stem all", seed, readings=8, table_std=std, table_lr=rate, points=1)
                about = dict(seed=seed, table_std=std, table_lr=rate)
                runs.append(about | dict(recall=run["recall"], nats=run["nats"]))
    for std in STDS:
        for rate in TABLE_RATES:
            recalls = [r["recall"] for r in runs if (r["table_std"], r["table_lr"]) == (std, rate)]
            grid.append(dict(table_std=std, table_lr=rate, recall=least_mean_most(recalls)))
    xavier = {"here": (sum(WORLD.values()), SHAPE["ffn_dim"]), "paper 350M": (32000, 2560),
              "paper 1B": (128256, 8192)}  # fmt: skip
    official = {name: sig((2 / (V + F)) ** 0.5, 3) for name, (V, F) in xavier.items()}
    return dict(steps=run["steps"], lr=run["lr"], seeds=list(range(args.seeds)), official_std=official,
                grid=grid, runs=runs)  # fmt: skip


if __name__ == "__main__":
    experiments = (rates, models, worlds, tables)
    records = {f"capacity_{experiment.__name__}": experiment for experiment in experiments}
    common.main(__doc__, records, **common.SEEDS)
