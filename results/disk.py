"""A model whose tables take 8 GB trains in a fraction of that memory: how fast, and how much memory?

    python results/disk.py                    about ten minutes; --folder needs 40 GB for a while

Two processes, taking turns step by step, train the same model on the same random ids, which are spread over
the whole vocabulary and drawn as often as words are (Zipf):

    disk   1,400,000 tokens, four STEM tables of 2.15 GB, and their moments, by rows on disk
    ram    the tokens of these very ids alone, renumbered: as many rows a step, in tables in memory

What is not about tables is kept small: the head has 2,048 classes, which are the ids modulo 2,048. Over
the whole vocabulary it would be 0.7 GB of weights alone, and most of the step. Then, for 50,000 tokens,
where both fit: the text that is written must be the same. Memory is RssAnon of /proc/self/status: file pages
are left out, since the system may drop them at any time. CPU time is given beside wall time, since others
may use the machine too. The numbers go to disk.json beside this file.
"""

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from ministem import AdamW, Config, backend, init_params, loss_and_grads  # noqa: E402
from ministem.config import init_dense, shapes  # noqa: E402
from ministem.devices.disk import DiskTables  # noqa: E402
from ministem.generate import generate  # noqa: E402
from ministem.run import checkpoint  # noqa: E402

MODEL = dict(dim=128, n_layers=4, n_heads=4, ffn_dim=384, context=128)
CLASSES, BATCH = 2048, 16


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--folder", default=".", help="where the big files go (default: here)")
    parser.add_argument("--vocab-size", type=int, default=1_400_000)
    parser.add_argument("--steps", type=int, default=60, help="the last third is timed")
    parser.add_argument("--threads", type=int, default=backend.available_cores())
    parser.add_argument("--work", choices=("disk", "ram"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        return print(json.dumps(work(args)))
    start, workers, last = time.perf_counter(), {}, args.steps // 3
    for side in ("disk", "ram"):
        command = [sys.executable, __file__, *sys.argv[1:], "--work", side]
        workers[side] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    # one step here, one step there, so that both see the same weather
    seconds = []
    for _ in range(args.steps):
        seconds.append({side: json.loads(ask(worker)) for side, worker in workers.items()})
        print(seconds[-1], file=sys.stderr, flush=True)
    found = {side: json.loads(ask(worker)) for side, worker in workers.items()}
    for side in workers:
        mine, cpu = zip(*(step[side] for step in seconds), strict=True)
        found[side] |= dict(
            ms_per_step=round(1e3 * statistics.median(mine[-last:])),
            cpu_ms_per_step=round(1e3 * statistics.median(cpu[-last:])),
            first_steps_s=[round(s, 2) for s in mine[:5]], all_steps_s=round(sum(mine), 1),
        )  # fmt: skip
    words = shlex.join(["python", "results/disk.py", *sys.argv[1:]])
    record = dict(
        command=words.replace(args.folder, ".") if "--folder" in sys.argv else words,
        date=datetime.date.today().isoformat(), seconds=round(time.perf_counter() - start), seed=0,
        versions={p: importlib.metadata.version(p) for p in ("numpy", "scipy")}
        | {"python": platform.python_version()},
        model=MODEL | dict(vocab_size=args.vocab_size, classes=CLASSES), batch=BATCH, threads=args.threads,
        steps=args.steps, timed=f"the last {last} steps, median",
        ratio=round(statistics.median(s["disk"][0] / s["ram"][0] for s in seconds[-last:]), 3),
        cpu_ratio=round(statistics.median(s["disk"][1] / s["ram"][1] for s in seconds[-last:]), 3), **found,
        same_sample_as_in_ram=same_sample(args),
    )  # fmt: skip
    print(json.dumps(record, indent=1))
    (HERE / "disk.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def ask(worker):
    """Let a worker do one step more -> its answer."""
    worker.stdin.write("\n")
    worker.stdin.flush()
    return worker.stdout.readline()


def work(args):
    config = Config(args.vocab_size, **MODEL)
    ids = stream(config, args.steps)
    targets = ids[:, :, 1:] % CLASSES
    ids = ids[:, :, :-1]
    if args.work == "ram":
        rows, ids = np.unique(ids, return_inverse=True)
        config = replace(config, vocab_size=len(rows))
        tables = init_params(config, 0)[1]
    else:
        tables = DiskTables(args.folder, config, seed=0)
    params = init_dense(replace(config, vocab_size=CLASSES), 0)
    backend.keep_freed_memory()
    optimizer, n_rows, most = AdamW(1e-3, threads=args.threads), [], 0
    optimizer.start(params, tables)
    with backend.blas_threads(args.threads):
        for step in range(args.steps):
            sys.stdin.readline()
            start = time.perf_counter(), time.process_time()
            batch = tables.fetch(ids[step])
            loss, grads = loss_and_grads(params, config, batch, targets[step], args.threads)
            optimizer.step(params, tables, grads)
            print([time.perf_counter() - start[0], time.process_time() - start[1]], flush=True)
            n_rows.append(len(batch.rows))
            most = max(most, anonymous())
    sys.stdin.readline()
    found = dict(
        loss=float(loss), rows_per_step=statistics.median(n_rows),
        table_gb=round(sum(4e-9 * np.prod(s) for n, s in shapes(config)[1].items() if n != "embed"), 2),
        anonymous_mb=round(most / 1e6),
    )  # fmt: skip
    if args.work == "disk":
        kinds = dict(tables=tables, moments_m=optimizer.table_m, moments_v=optimizer.table_v)
        found["disk_gb"] = {kind: round(size_on_disk(kept) / 1e9, 2) for kind, kept in kinds.items()}
        found |= saved(args, config, params, tables, optimizer)
    return found


def stream(config, steps):
    """-> ids (steps,B,T+1): a few all the time, most of them hardly ever, in all parts of the tables"""
    rng, V = np.random.default_rng(0), config.vocab_size
    reached = np.cumsum(1 / (np.arange(V) + 2.7))
    shape = (steps, BATCH, config.context + 1)
    rank = np.searchsorted(reached, rng.random(shape) * reached[-1])
    return rng.permutation(V)[rank].astype("int32")


def saved(args, config, params, tables, optimizer):
    """Save and open what a checkpoint has of the tables, and write a text from it."""
    folder = Path(tempfile.mkdtemp(dir=args.folder))
    try:
        start = time.perf_counter()
        checkpoint.save_tables(folder / "tables", tables, optimizer)
        seconds = time.perf_counter() - start
        size = sum(path.stat().st_size for path in (folder / "tables").iterdir())
        (opened,) = checkpoint.open_tables(folder / "tables", config)
        texts = [list(generate(params, t, config, [1, 2, 3], 60, seed=0)) for t in (tables, opened)]
    finally:
        shutil.rmtree(folder)
    return dict(checkpoint_s=round(seconds, 1), checkpoint_gb=round(size / 1e9, 2),
                trained_rows=len(tables.written("embed")), same_sample_from_checkpoint=texts[0] == texts[1],
                anonymous_mb_at_the_end=round(anonymous() / 1e6))  # fmt: skip


def same_sample(args, V=50_000, steps=10):
    """Train with tables on disk and in memory, and let both write: is it the same text?"""
    config, texts = Config(V, **MODEL), []
    ids = stream(config, steps)
    for tables in (DiskTables(args.folder, config, seed=0), init_params(config, 0)[1]):
        params, optimizer = init_dense(replace(config, vocab_size=CLASSES), 0), AdamW(1e-3)
        for batch in ids:
            fetched = tables.fetch(batch[:, :-1])
            _, grads = loss_and_grads(params, config, fetched, batch[:, 1:] % CLASSES, args.threads)
            optimizer.step(params, tables, grads)
        texts.append(list(generate(params, tables, config, [1, 2, 3], 200, seed=0)))
    return texts[0] == texts[1]


def anonymous():
    """-> bytes of memory in use that are not pages of files"""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("RssAnon")))


def size_on_disk(tables):
    return sum(512 * os.fstat(file.fileno()).st_blocks for file in tables.files.values())


if __name__ == "__main__":
    main()
