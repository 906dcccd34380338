"""How much memory does a training step take, and how much would it have to?

    python benchmarks/memory.py
    python benchmarks/memory.py --size T128 T256 T512 T1024 T2048 --json results/memory.json

What must be there: parameters, their two moments, gradients, what the forward pass keeps for the backward
pass (counted by walking the caches it returns, an array that is seen through several views once), the
rows fetched, and one chunk of logits. The model here has a vocabulary for which all logits of the batch
would be 1.5 GiB, as would their exponentials and their gradients.

The peak is measured twice, each in a process of its own: as the system sees it (resident pages, less what
there was after importing everything and one step of a tiny model) and as tracemalloc adds it up, to which
NumPy reports every array. The first includes what the allocator leaves lying about, the second does not.
"""

import resource
import sys
import tracemalloc
from collections import Counter

import common
import numpy as np

from ministem import backend, model
from ministem.config import Config, init_params
from ministem.model import loss_and_grads, trunk_forward
from ministem.optim import AdamW

MIB = 2**20
TINY = dict(vocab_size=64, dim=16, n_layers=1, n_heads=2, ffn_dim=32, context=16), 4
SIZES = common.SIZES | {
    "quick": (dict(vocab_size=8192, dim=16, n_layers=2, n_heads=2, ffn_dim=32, context=64), 32),
    "full": (dict(vocab_size=50257, dim=256, n_layers=4, n_heads=8, ffn_dim=768, context=256), 32),
}
CHUNK = model.head_loss_forward.__defaults__[0]  # positions whose logits are in memory at a time


class Training:
    """A model and a batch, and everything train.py keeps from one step to the next."""

    def __init__(self, sizes, B, threads):
        self.config, self.threads = Config(**sizes), threads
        self.ids, self.targets = common.texts(self.config, B)
        self.params, self.tables = init_params(self.config, seed=0)
        self.optimizer = AdamW(threads=threads)

    def step(self):
        batch = self.tables.fetch(self.ids)
        loss, grads = loss_and_grads(self.params, self.config, batch, self.targets, threads=self.threads)
        self.optimizer.step(self.params, self.tables, grads)
        return float(loss)


# ------------------------------------------------------------------------------- what must be there


def owners(cache):
    """All arrays in nested tuples and lists; of a view, the array whose memory it looks at."""
    if isinstance(cache, np.ndarray):
        while isinstance(cache.base, np.ndarray):
            cache = cache.base
        yield cache
    elif isinstance(cache, tuple | list):
        for part in cache:
            yield from owners(part)


def needed(training):
    """-> {what: bytes}"""
    config, params, tables = training.config, training.params, training.tables
    batch = tables.fetch(training.ids)
    _, (_, _, layers, norm) = trunk_forward(params, config, batch)
    elsewhere = {id(a) for part in (params, batch.blocks, batch.slots) for a in part.values()}
    seen = {id(a): a.nbytes for a in owners(([layers], norm)) if id(a) not in elsewhere}

    def total(arrays):
        return sum(a.nbytes for a in arrays)

    dense, whole = total(params.values()), total(tables[name] for name in tables.names)
    rows, N = total(batch.blocks.values()), training.ids.size
    return {
        "parameters": dense,
        "tables": whole,
        "moments": 2 * (dense + whole),
        "rows fetched": rows,
        "activations kept": sum(seen.values()),
        "gradients": dense + rows,
        "a chunk of logits": 4 * min(CHUNK, N) * config.vocab_size,
    }


# ---------------------------------------------------------------------------------- what there is


def resident():
    """-> the most pages that were ever resident, in bytes"""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak * (1 if sys.platform == "darwin" else 1024)


def work(size, threads, way):
    """What a worker process does -> a dict for the parent."""
    backend.keep_freed_memory()  # as train.py does
    Training(*TINY, threads).step()  # imports what is imported late, wakes the threads up
    if way == "resident":
        before = resident()
        training = Training(*SIZES[size], threads)
        losses = [training.step() for _ in range(2)]
        return dict(peak=resident() - before, losses=losses)
    tracemalloc.start()
    training = Training(*SIZES[size], threads)
    losses = [training.step()]
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    losses.append(training.step())
    peak = tracemalloc.get_traced_memory()[1]
    return dict(peak=peak, added=peak - before, largest=largest_array(training), losses=losses,
                needed=needed(training))  # fmt: skip


def sizes_alive():
    return Counter(trace.size for trace in tracemalloc.take_snapshot().traces)


def largest_array(training):
    """-> bytes of the largest array made by a step among those alive while a chunk of logits is"""
    before, found = sizes_alive(), []

    def spy(x):
        if x.ndim == 2 and not found:  # in the loss: x is a chunk of logits
            found.append(max(sizes_alive() - before))
        return row_sum(x)

    row_sum, model.row_sum = model.row_sum, spy
    try:
        training.step()
    finally:
        model.row_sum = row_sum
    assert found, "the loss has changed: nothing was seen"
    return max(found)


# ------------------------------------------------------------------------------------------- report


def report(size, results):
    """The table of one size -> {"needed", "resident", "traced": bytes}"""
    sizes, B = SIZES[size]
    config, N = Config(**sizes), B * sizes["context"]
    traced = results["traced"][0]
    must, logits = traced["needed"], 4 * N * config.vocab_size
    print(f"\n{size}: V={config.vocab_size} B={B} T={config.context} C={config.dim} L={config.n_layers} "
          f"H={config.n_heads} F={config.ffn_dim}; all logits would be {logits / MIB:.0f} MiB")  # fmt: skip
    print(f"{'MiB':<32}{'':>10}{'x needed':>10}")
    for name, n in must.items():
        print(f"{name:<32}{n / MIB:10.1f}")
    total, kept = sum(must.values()), must["parameters"] + must["tables"] + must["moments"]
    peaks = {way: common.median(rounds, "peak") for way, rounds in results.items()}
    lines = {"needed, in all": total, "peak, resident pages": peaks["resident"],
             "peak, arrays (tracemalloc)": peaks["traced"]}  # fmt: skip
    for what, less, of in (("in all", 0, total), ("without parameters, tables, moments", kept, total - kept)):
        print(f"{what}:")
        for name, n in lines.items():
            print(f"  {name:<30}{(n - less) / MIB:10.1f}{(n - less) / of:10.2f}")
    for losses in (r["losses"] for rounds in results.values() for r in rounds):
        assert abs(losses[1] - traced["losses"][1]) < 1e-4, "not the same step"
    print(f"largest array made by a step, of those alive in the loss: {traced['largest'] / MIB:.1f} MiB")
    return peaks | dict(needed=total)


def check_logits(size, traced):
    """The size whose logits are larger than all else: there cannot have been an array of them."""
    sizes, B = SIZES[size]
    logits = 4 * B * sizes["context"] * sizes["vocab_size"]
    assert traced["added"] < logits and traced["largest"] < logits
    print(f"a step adds {traced['added'] / MIB:.1f} MiB to what is there before it: less than all logits, so "
          f"there cannot have been\nan array of B*T*V numbers at any time")  # fmt: skip


def main():
    parser = common.options(__doc__, rounds=3)
    parser.add_argument("--size", nargs="+", choices=SIZES, help="one or several (default full)")
    args = common.parse(parser, work)
    sizes = args.size or ["quick" if args.quick else "full"]
    about, env = common.machine(args.threads), common.environment(args.threads)
    peaks, results = {}, {}
    for size in sizes:
        job = dict(size=size, threads=args.threads)
        jobs = {way: (job | {"way": way}, env) for way in ("resident", "traced")}
        results[size], errors = common.take_turns(__file__, jobs, args)
        for name, error in errors.items():
            sys.exit(f"{name}: did not run: {error}")
        peaks[size] = report(size, results[size])
        if size in ("quick", "full"):
            check_logits(size, results[size]["traced"][0])
    common.write_json(args, about, peaks=peaks, results=results)


if __name__ == "__main__":
    main()
