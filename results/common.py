"""What the experiments share: options, the record that each leaves, a bare training loop for small models.

Imported first: it also makes ministem importable where it is not installed.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from ministem import backend  # noqa: E402
from ministem.config import init_params  # noqa: E402
from ministem.knowledge import measure  # noqa: E402
from ministem.model import loss_and_grads  # noqa: E402
from ministem.optim import AdamW, cosine_schedule  # noqa: E402


def main(doc, experiments, **options):
    """The command of an experiment script: run the experiment that is named, and record what it returns.

    experiments: {name of the record: function of the arguments -> dict}; the command names the function, and
    need not where there is only one. options: name=(default, help)."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    records = {function.__name__: name for name, function in experiments.items()}
    only = next(iter(records)) if len(records) == 1 else None
    parser.add_argument("what", choices=records, default=only, nargs="?" if only else None)
    for name, (default, text) in (dict(threads=(1, "of the processor")) | options).items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=type(default), default=default, help=f"{text} (default: {default})")
    args = parser.parse_args()
    record(args, records[args.what], experiments[records[args.what]])


SEEDS = dict(seeds=(3, "how many: 0, 1, 2, ..."))


def record(args, name, experiment):
    """Write what experiment(args) returns, with its command, date and versions, as NAME.json.

    Its time is the CPU's, summed over threads and processes: other programs may run beside it."""
    start = sum(os.times()[:4])  # user and system, of this process and of its children
    backend.keep_freed_memory()
    with backend.blas_threads(args.threads):
        result = experiment(args)
    scratch = str(getattr(args, "folder", "."))  # where large files were does not belong into a record
    words = ["." if word == scratch else word for word in sys.argv[1:]]
    content = dict(
        command=shlex.join(["python", f"results/{Path(sys.argv[0]).name}", *words]),
        date=datetime.date.today().isoformat(), cpu_seconds=round(sum(os.times()[:4]) - start),
        versions={p: importlib.metadata.version(p) for p in ("numpy", "scipy", "tiktoken")}
        | {"python": platform.python_version()},
        **result,
    )  # fmt: skip
    (HERE / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", "utf-8")


def recorded(name):
    """What stands in NAME.json."""
    return json.loads((HERE / f"{name}.json").read_text("utf-8"))


# -------------------------------------------------------------------------------------------- training


def fit(config, draw, steps, seed, lr, table_lr=2.0, table_std=0.02, decay=0.1, warmup=50, evaluate=None,
        every=100, threads=1, model=None, keep=None):  # fmt: skip
    """Train a new model, as train.py does but without a run folder; or go on with `model`, which changes.

    draw(step) -> ids, targets, each (B,T); evaluate(model) -> a dict, called every `every` steps; keep(grads)
    -> the gradients to follow.
    -> model (params, tables, config), curve [dict(step, loss, ...)], and loss and gradient norm of all steps.
    A model whose gradient is no longer finite stops there: its curve is shorter."""
    if model is None:
        params, tables = init_params(config, seed)
        for name in tables.names:
            if name != "embed":
                tables[name][...] *= np.float32(table_std / 0.02)
        model = SimpleNamespace(params=params, tables=tables, config=config)
    params, tables = model.params, model.tables
    optimizer = AdamW(lr, weight_decay=decay, table_lr=table_lr, threads=threads)
    curve, losses, norms = [], [], []
    with np.errstate(all="ignore"):  # what is not finite is looked for
        for step in range(1, steps + 1):
            optimizer.lr = cosine_schedule(step, steps, lr, warmup)
            ids, targets = draw(step)
            loss, grads = loss_and_grads(params, config, tables.fetch(ids), targets, threads)
            try:
                norms.append(float(optimizer.step(params, tables, keep(grads) if keep else grads)))
            except FloatingPointError:
                break
            losses.append(float(loss))
            if evaluate and (step % every == 0 or step == steps):
                curve.append(dict(step=step, loss=sig(np.mean(losses[-every:])), **evaluate(model)))
    return model, curve, losses, norms


def best_rates(labels, rates, loss):
    """Each model's own best learning rate: the one with the smallest loss(label, rate).

    Tries `rates`, in order of size; while the best is the first or the last, half or twice that one too.
    -> {label: best rate}"""
    best = {}
    for label in labels:
        losses = {rate: loss(label, rate) for rate in rates}
        while (rate := min(losses, key=losses.get)) in (min(losses), max(losses)):
            further = rate * 2 if rate == max(losses) else rate / 2
            losses[further] = loss(label, further)
        best[label] = rate
    return best


def training_flops(config, tokens):
    """Forward, and twice as much for the way back: every product has two in its backward pass."""
    return 3 * measure.count(config).flops * tokens


# ------------------------------------------------------------------------------------------ summing up


def of(runs, model):
    return [run for run in runs if run["model"] == model]


def summed_up(runs, *keys):
    """The runs of one model, a seed each -> what it costs, and least, mean and most of some keys."""
    first = runs[0]
    cost = {key: first[key] for key in ("lr", "active", "total", "flops_per_step")}
    spread = {key: least_mean_most([run[key] for run in runs]) for key in keys}
    return spread | cost | dict(flops=first["flops_per_step"] * first["steps"])


def least_mean_most(numbers):
    """What is reported of several seeds; None if one of them is None."""
    return None if None in numbers else [min(numbers), sig(np.mean(numbers)), max(numbers)]


def sig(x, digits=5):
    """x to that many significant digits: what a JSON file needs to hold of a measurement."""
    return float(f"{float(x):.{digits}g}")
