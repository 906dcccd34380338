"""What training needs to go well.

    python results/training.py tables      how large tables start, and how fast they learn (random facts)
    python results/training.py text        how large they start, on text (input.txt)
    python results/training.py stability   too high a learning rate: loss spikes, gradient norms (input.txt)
"""

from pathlib import Path

import capacity
import common
import language
import numpy as np
from common import fit, least_mean_most, recorded_rates, sig

from ministem.config import Config
from ministem.data import draw_batch
from train import parse_stem_layers

STDS = (0.004, 0.02, 0.1, 1.0)  # ours is 0.02; the official default gives 0.004 at 1B
TABLE_RATES = (0.5, 2.0, 4.0)  # times the rate of everything else
READINGS = 8  # 250 steps: before everything is known
TIMES, STEPS = (1, 16, 64), 300  # how many times as high as the best rate
SPIKE = 0.5  # nats above the mean of the ten steps before


def tables(args):
    """STEM in all layers, in the world of capacity.py."""
    runs = []
    for seed in range(args.seeds):
        for std in STDS:
            for rate in TABLE_RATES:
                run = capacity.one(args, "stem all", seed, "all", readings=READINGS, table_std=std,
                                   table_lr=rate, looks=1)  # fmt: skip
                of = dict(seed=seed, table_std=std, table_lr=rate)
                runs.append(of | dict(recall=run["recall"], nats=run["nats"]))
    grid = []
    for std in STDS:
        for rate in TABLE_RATES:
            found = [r["recall"] for r in runs if (r["table_std"], r["table_lr"]) == (std, rate)]
            grid.append(dict(table_std=std, table_lr=rate, recall=least_mean_most(found)))
    V, F = sum(capacity.WORLD.values()), capacity.SHAPE["ffn_dim"]
    xavier = {"here": (V, F), "paper 350M": (32000, 2560), "paper 1B": (128256, 8192)}
    official = {name: sig((2 / (v + f)) ** 0.5, 3) for name, (v, f) in xavier.items()}
    return dict(steps=run["steps"], lr=run["lr"], seeds=list(range(args.seeds)), official_std=official,
                grid=grid, runs=runs)  # fmt: skip


def text(args):
    """The same on text, half of the usual steps."""
    runs = []
    for seed in range(args.seeds):
        for std in STDS:
            run = language.one(args, "stem all", seed, "all", steps=language.STEPS // 2, table_std=std,
                               looks=1)  # fmt: skip
            runs.append(dict(seed=seed, table_std=std, val_nats_per_byte=run["val_nats_per_byte"]))
    of = {std: [run["val_nats_per_byte"] for run in runs if run["table_std"] == std] for std in STDS}
    grid = [dict(table_std=std, val_nats_per_byte=least_mean_most(found)) for std, found in of.items()]
    return dict(steps=run["steps"], lr=run["lr"], seeds=list(range(args.seeds)), grid=grid, runs=runs)


def one(args, label, seed, times):
    """Train at that many times the best rate -> what its loss and its gradient norms did, from step 30 on."""
    lr = recorded_rates("language_rates")[label] * times
    words = language.text(args)
    layers = parse_stem_layers(language.MODELS[label]["stem"], language.SHAPE["n_layers"])
    config = Config(language.VOCABULARY, **language.SHAPE, stem_layers=layers)

    def draw(step):
        return draw_batch(words.train, language.BATCH, config.context, seed, step)

    model, _, losses, norms = fit(config, draw, STEPS, seed, lr, warmup=20)
    rise = [losses[i] - np.mean(losses[i - 10 : i]) for i in range(30, len(losses))]
    late = np.array(norms[30:])
    with np.errstate(all="ignore"):
        end = language.validation_loss(model, words.val)
    found = dict(
        model=label, seed=seed, times=times, lr=lr, steps=len(losses), val_loss=sig(end),
        worst_rise=sig(max(rise)), spikes=int(sum(r > SPIKE for r in rise)),
        median_norm=sig(np.median(late)), largest_norm=sig(late.max()),
        losses=[sig(loss, 4) for loss in losses],
    )  # fmt: skip
    print({k: v for k, v in found.items() if k != "losses"}, flush=True)
    return found


def stability(args):
    """Dense and STEM at their best rates, and far above them."""
    runs = [one(args, label, seed, times) for seed in range(args.seeds)
            for label in ("dense", "stem all") for times in TIMES]  # fmt: skip
    for run in runs:
        if run["seed"]:
            del run["losses"]  # one seed is enough to draw
    return dict(shape=language.SHAPE, spike=SPIKE, seeds=list(range(args.seeds)), runs=runs)


if __name__ == "__main__":
    parser = common.parser(__doc__, ("tables", "text", "stability"))
    parser.add_argument("--text", type=Path, default=Path("input.txt"))
    args = parser.parse_args()
    common.run(args, globals()[args.what], f"training_{args.what}")
