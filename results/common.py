"""What the experiments share: a bare training loop for small models, and the record that each leaves."""

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
sys.path.insert(0, str(HERE.parent))

from ministem import backend  # noqa: E402
from ministem.config import init_params  # noqa: E402
from ministem.knowledge import measure  # noqa: E402
from ministem.model import loss_and_grads  # noqa: E402
from ministem.optim import AdamW, cosine_schedule  # noqa: E402


def parser(doc, commands):
    """Arguments of an experiment script: which experiment, how many seeds, how many threads."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=commands)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    return parser


def run(args, experiment, name):
    """Call experiment(args) -> a dict, and write it with its command, date and versions as NAME.json.

    Its time is the CPU's, summed over threads and processes: other programs may run beside it."""
    start = sum(os.times()[:4])  # user and system, of this process and of its children
    backend.keep_freed_memory()
    with backend.blas_threads(args.threads):
        found = experiment(args)
    record = dict(
        command=shlex.join(["python", f"results/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        date=datetime.date.today().isoformat(), cpu_seconds=round(sum(os.times()[:4]) - start),
        versions={p: importlib.metadata.version(p) for p in ("numpy", "scipy", "tiktoken")}
        | {"python": platform.python_version()},
        **found,
    )  # fmt: skip
    (HERE / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def fit(config, draw, steps, seed, lr, table_lr=2.0, table_std=0.02, decay=0.1, warmup=50, look=None,
        every=100, threads=1):  # fmt: skip
    """Train a new model, as train.py does but without a run folder.

    draw(step) -> ids, targets, each (B,T); look(model) -> a dict, called every `every` steps.
    -> model (params, tables, config), curve [dict(step, loss, ...)], and loss and gradient norm of all steps.
    A model whose gradient is no longer finite stops there: its curve is shorter."""
    params, tables = init_params(config, seed)
    for name in tables.names:
        if name != "embed":
            tables[name][...] *= np.float32(table_std / 0.02)
    model = SimpleNamespace(params=params, tables=tables, config=config)
    optimizer = AdamW(lr, weight_decay=decay, table_lr=table_lr, threads=threads)
    curve, losses, norms = [], [], []
    with np.errstate(all="ignore"):  # what is not finite is looked for
        for step in range(1, steps + 1):
            optimizer.lr = cosine_schedule(step, steps, lr, warmup)
            ids, targets = draw(step)
            loss, grads = loss_and_grads(params, config, tables.fetch(ids), targets, threads)
            try:
                norms.append(float(optimizer.step(params, tables, grads)))
            except FloatingPointError:
                break
            losses.append(float(loss))
            if look and (step % every == 0 or step == steps):
                curve.append(dict(step=step, loss=sig(np.mean(losses[-every:])), **look(model)))
    return model, curve, losses, norms


def best_rates(labels, rates, loss):
    """Each model's own best learning rate: loss(label, rate) -> what is to be small.

    Tries `rates`, in order of size; while the best is the first or the last, half or twice that one too.
    -> {label: best rate}"""
    best = {}
    for label in labels:
        found = {rate: loss(label, rate) for rate in rates}
        while (rate := min(found, key=found.get)) in (min(found), max(found)):
            further = rate * 2 if rate == max(found) else rate / 2
            found[further] = loss(label, further)
        best[label] = rate
    return best


def recorded_rates(name):
    """What best_rates found: {label: rate}, as recorded in NAME.json."""
    return json.loads((HERE / f"{name}.json").read_text("utf-8"))["best"]


def training_flops(config, tokens):
    """Forward, and twice as much for the way back: every product has two in its backward pass."""
    return 3 * measure.count(config).flops * tokens


def least_mean_most(found):
    """What is reported of several seeds; None if one of them is None."""
    return None if None in found else [min(found), sig(np.mean(found)), max(found)]


def sig(x, digits=5):
    """x to that many significant digits: what a JSON file needs to hold of a measurement."""
    return float(f"{float(x):.{digits}g}")
