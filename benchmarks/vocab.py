"""Does a training step get slower when the vocabulary grows?

    python benchmarks/vocab.py                                   # V = 1,024 ... 262,144
    python benchmarks/vocab.py --json results/vocab.json        # lesson 8 draws this one

Only the vocabulary changes: the batches have the same number of distinct tokens, equally often, and where
their rows are is drawn anew for each batch, from all over the tables. So of a big table each step meets
rows it has not seen for long, which no cache holds any more; that is how it is in training. All tables and
moments are written once beforehand, so that the system has really given us their memory.

Measured, in ms a step:

    rows            all the work on tables: fetch the rows, look each position's up, scatter-add a given
                    gradient, AdamW on the rows (all tables of a model, as train.py does it)
    step            a whole training step without the head: fetch, trunk, a given gradient of its output back
                    through it, clipping, optimizer. The head is left out because it is a matrix product with
                    V columns, the one thing here that has to grow with the vocabulary, in any framework.
    torch           the row work with dense nn.Embedding and fused AdamW: all V rows have gradients and move
    torch-sparse    the row work with sparse=True and SparseAdam, which is lazy as ours is

Clipping needs the gradients' norm; ours computes it in `rows` too, PyTorch is let off.

What still grows a little is no work of ours. At V=1,024 half of all rows are in the batch, so they lie
side by side, and tables and moments together (20 MB) may fit into a cache. Later each row is on a page of
its own, and finding the page takes time, whether or not the same rows were there in the step before.
"""

import statistics
import time
from functools import partial

import common
import numpy as np

from ministem import backend
from ministem.config import Config, init_params, shapes
from ministem.model import trunk_backward, trunk_forward
from ministem.optim import AdamW
from ministem.tables import RowSparse, Tables

SIDES = ["rows", "step", "torch", "torch-sparse"]
SIZES = [1024, 4096, 16384, 65536, 262144]
# the model (step.py's small one), texts in a batch, distinct tokens in them
FULL = dict(dim=128, n_layers=4, n_heads=4, ffn_dim=384, context=128), 16, 512
QUICK = dict(dim=16, n_layers=2, n_heads=2, ffn_dim=32, context=8), 4, 12
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8)


class Task:
    """The model, and batches that differ in nothing but where their rows are."""

    def __init__(self, V, quick):
        self.model, self.B, self.U = QUICK if quick else FULL
        self.config = Config(V, **self.model)
        self.T = self.config.context
        slot = common.zipf(self.U, self.B * self.T, np.random.default_rng(1))
        slot[: self.U] = np.arange(self.U)  # each at least once
        self.slot = np.random.default_rng(2).permutation(slot).reshape(self.B, self.T)
        self.rng = np.random.default_rng(3)

    def ids(self):
        """(B,T): a new batch with U distinct tokens out of V"""
        return np.sort(self.rng.choice(self.config.vocab_size, self.U, replace=False))[self.slot]

    def some(self, *shape):
        """What a gradient might be."""
        return 1e-3 * np.random.default_rng(4).standard_normal(shape, np.float32)

    def tables(self):
        """All tables, allocated and filled: np.full writes each number, so no page is only promised."""
        return {name: np.full(shape, 0.02, "float32") for name, shape in shapes(self.config)[1].items()}


# ------------------------------------------------------------------------------------------ ministem


def in_parts(part, batch, B, threads, tables):
    """As loss_and_grads does it: a share of the texts for each thread, the gradients added in order.

    part(start, stop) -> {name: gradient}.  -> the sums; a RowSparse for each table"""
    n = min(threads, B)
    parts = [partial(part, B * j // n, B * (j + 1) // n) for j in range(n)]
    grads, *others = backend.parallel(parts, threads)
    for other in others:
        for name, grad in other.items():
            grads[name] += grad
    for name in tables.names:
        grads[name] = RowSparse(batch.rows, grads[name], tables[name].shape)
    return grads


def rows_side(task, threads):
    """All of a step that has to do with tables, in the library's own calls."""
    tables = Tables(task.tables())
    optimizer = AdamW(**ADAMW, threads=threads)
    optimizer.start({}, tables)
    dout = {name: task.some(task.B, task.T, tables[name].shape[1]) for name in tables.names}

    def step(ids):
        batch = tables.fetch(ids)

        def part(start, stop):
            slots = batch.part(start, stop).slots
            for name, block in batch.blocks.items():
                block[slots[name]]  # forward, the gather
            return {name: backend.sum_rows(dout[name][start:stop], slots[name], task.U) for name in dout}

        optimizer.step({}, tables, in_parts(part, batch, task.B, threads, tables))

    return step


def step_side(task, threads):
    """train.py's step, with a given dx where the head and the loss would be."""
    config = task.config
    params, _ = init_params(Config(2, **task.model), seed=0)  # only the head depends on the vocabulary
    del params["head"]
    tables = Tables(task.tables())
    optimizer = AdamW(**ADAMW, threads=threads)
    optimizer.start(params, tables)
    dx = task.some(task.B, task.T, config.dim)

    def step(ids):
        batch = tables.fetch(ids)

        def part(start, stop):
            _, cache = trunk_forward(params, config, batch.part(start, stop))
            return trunk_backward(dx[start:stop], config, cache)

        optimizer.step(params, tables, in_parts(part, batch, task.B, threads, tables))

    return step


# ------------------------------------------------------------------------------------------- PyTorch


def torch_side(task, threads, sparse):
    import torch
    from torch import nn

    torch.set_num_threads(threads)
    arrays = map(torch.from_numpy, task.tables().values())
    tables = [nn.Embedding.from_pretrained(a, freeze=False, sparse=sparse) for a in arrays]
    weights = [table.weight for table in tables]
    dout = [torch.from_numpy(task.some(task.B, task.T, w.shape[1])) for w in weights]
    if sparse:
        optimizer = torch.optim.SparseAdam(weights, **ADAMW)
    else:
        optimizer = torch.optim.AdamW(weights, **ADAMW, weight_decay=0.0, fused=True)

    def step(ids):
        optimizer.zero_grad(set_to_none=True)
        ids = torch.from_numpy(ids)
        torch.autograd.backward([table(ids) for table in tables], dout)
        optimizer.step()

    return step


# ------------------------------------------------------------------------------------------- measure


def work(side, V, threads, quick, seconds):
    """What a worker process does -> a dict for the parent."""
    task = Task(V, quick)
    if side in ("rows", "step"):
        backend.keep_freed_memory()  # as train.py does
        step = {"rows": rows_side, "step": step_side}[side](task, threads)
    else:
        step = torch_side(task, threads, "sparse" in side)
    for _ in range(3):
        step(task.ids())
    ms, until = [], time.perf_counter() + seconds
    while len(ms) < 3 or time.perf_counter() < until:
        ms.append(common.timed(step, task.ids()))
    return dict(ms=statistics.median(ms), steps=len(ms))


def main():
    parser = common.options(__doc__, rounds=3)
    add = parser.add_argument
    add("--sides", nargs="+", choices=SIDES, default=SIDES)
    add("--sizes", nargs="+", type=int, metavar="V", help=f"default {SIZES}")
    add("--seconds", type=float, default=3, help="timed in each process (default 3; at least three steps)")
    args = common.parse(parser, work)
    sizes = args.sizes or ([64, 256] if args.quick else SIZES)
    about = common.machine(args.threads, "torch")

    def job(side, V):
        work = dict(side=side, V=V, threads=args.threads, quick=args.quick, seconds=args.seconds)
        return work, common.environment(args.threads, torch="torch" in side)

    jobs = {f"{side} {V}": job(side, V) for V in sizes for side in args.sides}
    results, errors = common.take_turns(__file__, jobs, args)
    found = {side: {V: common.median(results[f"{side} {V}"], "ms") for V in sizes if f"{side} {V}" in results}
             for side in args.sides}  # fmt: skip
    task = Task(sizes[0], args.quick)
    floats = sum(shape[1] for shape in shapes(task.config)[1].values())
    print(f"\n{task.U} distinct tokens at {task.B * task.T} positions, {floats} floats in a token's rows")
    print("ms a step, and how many times that of the first line")
    print(f"{'V':>8}{'tables MiB':>12}" + "".join(f"{side:>18}" for side in args.sides))
    for V in sizes:
        cells = [f"{by[V]:10.2f} {by[V] / by[sizes[0]]:6.2f}x" if V in by and sizes[0] in by else f"{'-':>18}"
                 for by in found.values()]  # fmt: skip
        print(f"{V:8}{V * floats * 4 / 2**20:12.0f}" + "".join(cells))
    common.print_weather(results, errors)
    common.write_json(args, about, median_ms=found, errors=errors, results=results)


if __name__ == "__main__":
    main()
