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

import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import common
import numpy as np

from benchmarks.common import zipf
from ministem import AdamW, Config, backend, init_params, loss_and_grads
from ministem.config import init_dense, shapes
from ministem.devices.disk import DiskTables
from ministem.generate import generate
from ministem.run import checkpoint

MODEL = dict(dim=128, n_layers=4, n_heads=4, ffn_dim=384, context=128)
CLASSES, BATCH = 2048, 16


def disk(args):
    context, pipes, last = multiprocessing.get_context("spawn"), {}, args.steps // 3
    for side in ("disk", "ram"):
        pipes[side], theirs = context.Pipe()
        context.Process(target=work, args=(args, side, theirs), daemon=True).start()
        theirs.close()
    # one step here, one step there, so that both see the same weather
    seconds = []
    for _ in range(args.steps):
        seconds.append({side: ask(pipe) for side, pipe in pipes.items()})
        print(seconds[-1], flush=True)
    sides = {side: ask(pipe) for side, pipe in pipes.items()}
    for side in sides:
        wall, cpu = zip(*(step[side] for step in seconds), strict=True)
        sides[side] |= dict(
            ms_per_step=round(1e3 * statistics.median(wall[-last:])),
            cpu_ms_per_step=round(1e3 * statistics.median(cpu[-last:])),
            first_steps_s=[round(s, 2) for s in wall[:5]], all_steps_s=round(sum(wall), 1),
        )  # fmt: skip
    return dict(
        model=MODEL | dict(vocab_size=args.vocab_size, classes=CLASSES), batch=BATCH, threads=args.threads,
        steps=args.steps, timed=f"the last {last} steps, median", seed=0,
        ratio=round(statistics.median(s["disk"][0] / s["ram"][0] for s in seconds[-last:]), 3),
        cpu_ratio=round(statistics.median(s["disk"][1] / s["ram"][1] for s in seconds[-last:]), 3), **sides,
        same_sample_as_in_ram=same_sample(args),
    )  # fmt: skip


def ask(pipe):
    """Let a worker go on to its next answer."""
    pipe.send(None)
    return pipe.recv()


def work(args, side, pipe):
    """The worker: for each request a training step -> its wall and CPU seconds; at last, what it needed."""
    config = Config(args.vocab_size, **MODEL)
    ids = stream(config, args.steps)
    targets = ids[:, :, 1:] % CLASSES
    ids = ids[:, :, :-1]
    if side == "ram":
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
            pipe.recv()
            start = time.perf_counter(), time.process_time()
            batch = tables.fetch(ids[step])
            loss, grads = loss_and_grads(params, config, batch, targets[step], args.threads)
            optimizer.step(params, tables, grads)
            pipe.send((time.perf_counter() - start[0], time.process_time() - start[1]))
            n_rows.append(len(batch.rows))
            most = max(most, anonymous())
    pipe.recv()
    result = dict(
        loss=float(loss), rows_per_step=statistics.median(n_rows),
        table_gb=round(sum(4e-9 * np.prod(s) for n, s in shapes(config)[1].items() if n != "embed"), 2),
        anonymous_mb=round(most / 1e6),
    )  # fmt: skip
    if side == "disk":
        kinds = dict(tables=tables, moments_m=optimizer.table_m, moments_v=optimizer.table_v)
        result["disk_gb"] = {kind: round(size_on_disk(part) / 1e9, 2) for kind, part in kinds.items()}
        result |= saved(args, config, params, tables, optimizer)
    pipe.send(result)


def stream(config, steps):
    """-> ids (steps,B,T+1), as frequent as words are"""
    shape = (steps, BATCH, config.context + 1)
    return zipf(config.vocab_size, np.prod(shape), np.random.default_rng(0)).reshape(shape).astype("int32")


def saved(args, config, params, tables, optimizer):
    """Save the tables as a checkpoint has them, open them again, and write a text from them."""
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
    for tables in (DiskTables(args.folder, config, seed=0), init_params(config, 0)[1]):
        params, optimizer = init_dense(replace(config, vocab_size=CLASSES), 0), AdamW(1e-3)
        for ids in stream(config, steps):
            batch = tables.fetch(ids[:, :-1])
            _, grads = loss_and_grads(params, config, batch, ids[:, 1:] % CLASSES, args.threads)
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
    options = dict(folder=(".", "where the large files go"), vocab_size=(1_400_000, "tokens"),
                   steps=(60, "of training; the last third is timed"),
                   threads=(backend.available_cores(), "of each side"))  # fmt: skip
    common.main(__doc__, dict(disk=disk), **options)
