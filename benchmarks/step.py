"""How long does a training step take, and how long would it take if only the products counted?

    python benchmarks/step.py                          # small, STEM and dense, every side
    python benchmarks/step.py --size large --rounds 3
    python benchmarks/step.py --size T128 T512 T1024 T2048 --variants stem --json results/step.json

A step: fetch the rows, forward, backward, clip, optimizer. The sides, all from the same weights, on
the same batch, with the same number of threads:

    products        the matrix products of that step and nothing else, into buffers made beforehand,
                    the batch split over Python threads that hold BLAS to one thread each
    products-blas   the same products on the whole batch, shared among cores by BLAS itself
    ministem        what train.py does
    torch           torch_model.py as it is; tables get dense gradients and dense AdamW
    torch-sparse    its tables with sparse=True and SparseAdam
    torch-compile   torch.compile on the dense one (compiling happens before the clock starts)

Each side runs in a process of its own, started anew every round, and the sides take turns (common.py
says why). The batch is the same at every step, so all sides must show the same losses, the lazy
optimizers too, since no row is ever absent that was once there.

"others" counts the cores that other programs kept busy meanwhile. It matters: on two cores, one
busy neighbour made ministem twice as slow, and PyTorch, whose threads spin, about eight times.
"""

import statistics
import time
from functools import partial

import common
import numpy as np

from ministem import backend
from ministem.config import Config, init_params
from ministem.model import loss_and_grads, query_blocks
from ministem.optim import AdamW

SIDES = ["products", "products-blas", "ministem", "torch", "torch-sparse", "torch-compile"]
# so low a rate that differences of rounding do not grow large in the few steps of a benchmark
ADAMW = dict(lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)


def task(size, variant):
    """-> config, ids, targets"""
    sizes, B = common.SIZES[size]
    config = Config(**sizes, ffn=variant, stem_layers=tuple(range(sizes["n_layers"])))
    return config, *common.texts(config, B)


# ---------------------------------------------------------------------------------- the products


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


def products(config, B, block=None, some=noise):
    """Every matrix product of a step on B texts -> [(a, b, out), ...] in the order of a step.

    What a product would be given by the elementwise work in between is random instead. Attention has six
    for each block of queries; the one that backward computes a second time is not among them."""
    C, F, V, T = config.dim, config.ffn_dim, config.vocab_size, config.context
    H, K, D, N = config.n_heads, config.n_kv_heads, config.head_dim, B * config.context
    calls, linears, attentions, is_stem = [], [], [], config.ffn == "stem"
    block = block or backend.block_size(T, np.empty(0))
    blocks = query_blocks(T, T, H // K, np.empty((block, 0)))  # of the mask, its length is what counts

    def multiply(a, b):
        out = some(*a.shape[:-1], b.shape[-1])  # a later product may take it, on a GPU as a copy of this
        calls.append((a, b, out))
        return out

    def linear(x, wide):
        """Forward now; what backward needs is kept for later."""
        w = some(x.shape[1], wide)
        out = multiply(x, w)
        linears.append((x, w, some(*out.shape)))
        return out

    def linear_backward():
        x, w, dout = linears.pop()
        multiply(dout, w.T)  # dx
        multiply(x.T, dout)  # dw

    for _ in range(config.n_layers):
        linear(some(N, C), (H + 2 * K) * D)
        q, k, v, p = some(B, K, H // K * T, D), some(B, K, T, D), some(B, K, T, D), []
        for rows, seen, _ in blocks:
            p.append(multiply(q[:, :, rows], k[:, :, :seen].swapaxes(2, 3)))
            multiply(p[-1], v[:, :, :seen])
        attentions.append((q, k, v, p, some(*q.shape)))
        linear(some(N, H * D), C)  # wo
        x = some(N, C)
        linear(x, F)  # w_gate
        if not is_stem:
            linear(x, F)  # w_up
        linear(some(N, F), C)  # w_down
    linear(some(N, C), V)  # the head
    linear_backward()
    for _ in range(config.n_layers):
        for _ in range(2 if is_stem else 3):
            linear_backward()
        linear_backward()  # wo
        q, k, v, p, dy = attentions.pop()
        for rows, seen, _ in reversed(blocks):
            e = p.pop()
            multiply(e.swapaxes(2, 3), dy[:, :, rows])  # dv
            ds = multiply(dy[:, :, rows], v[:, :, :seen].swapaxes(2, 3))
            multiply(ds, k[:, :, :seen])  # dq
            multiply(ds.swapaxes(2, 3), q[:, :, rows])  # dk
        linear_backward()  # wqkv
    return calls


def flops(config, B):
    """Multiplications and additions in the products of a step on B texts. All sides are measured by these."""

    def shape_only(*shape):
        return np.broadcast_to(np.float32(0), shape)

    return sum(2 * a.size * b.shape[-1] for a, b, _ in products(config, B, some=shape_only))


def products_side(config, B, threads):
    """-> a function that does all products of one step, the batch split into `threads` parts."""
    n = min(threads, B)
    parts = [products(config, B * (j + 1) // n - B * j // n) for j in range(n)]
    def run(calls):
        for a, b, out in calls:
            np.matmul(a, b, out=out)

    tasks = [partial(run, calls) for calls in parts]
    return lambda: backend.parallel(tasks, threads) and None  # there is no loss


# --------------------------------------------------------------------- one side, in its own process


def ministem_side(config, ids, targets, threads):
    backend.keep_freed_memory()  # as train.py does
    params, tables = init_params(config, seed=0)
    optimizer = AdamW(**ADAMW, threads=threads)

    def step():
        batch = tables.fetch(ids)
        loss, grads = loss_and_grads(params, config, batch, targets, threads=threads)
        optimizer.step(params, tables, grads)
        return float(loss)

    return step


def torch_side(config, ids, targets, threads, sparse=False, compiled=False):
    import torch
    import torch_model

    torch.set_num_threads(threads)
    params, tables = init_params(config, seed=0)
    model = torch_model.Model(config, sparse=sparse, complex_rope=not compiled)
    model.load(params | {name: tables[name] for name in tables.names})
    training = torch_model.Training(model, **ADAMW, compiled=compiled)
    return partial(training.step, torch.tensor(ids), torch.tensor(targets))


def make(side, size, variant, threads):
    """-> a function that takes one step and returns the loss, if this side has one."""
    config, ids, targets = task(size, variant)
    if side.startswith("products"):
        return products_side(config, len(ids), threads if side == "products" else 1)
    if side.startswith("ministem"):
        return ministem_side(config, ids, targets, threads)
    return torch_side(config, ids, targets, threads, "sparse" in side, "compile" in side)


def work(side, size, variant, threads, warmup, steps):
    """What a worker process does -> a dict for the parent."""
    start = time.perf_counter()
    step = make(side, size, variant, threads)
    losses = [step() for _ in range(warmup)]
    setup = time.perf_counter() - start
    ms = [common.timed(lambda: losses.append(step())) for _ in range(steps)]
    return dict(ms=ms, losses=losses, setup_s=round(setup, 1))


# ------------------------------------------------------------------------------------------- report


def report(size, variant, sides, results):
    """The table of one variant -> {side: median ms}"""
    config, ids, _ = task(size, variant)
    B, T = ids.shape
    gflop = flops(config, B) / 1e9
    print(f"\n{size}, {variant}: C={config.dim} L={config.n_layers} H={config.n_heads} F={config.ffn_dim} "
          f"T={T} B={B} V={config.vocab_size}, {len(np.unique(ids))} distinct tokens, "
          f"{gflop:.2f} GFLOP a step")  # fmt: skip
    results = {side: results[f"{variant} {side}"] for side in sides if f"{variant} {side}" in results}
    median = {side: common.median(rounds, "ms") for side, rounds in results.items()}
    floor = min((median[s] for s in ("products", "products-blas") if s in median), default=None)
    columns = "      ms  from -   to  rounds  x products  x torch  GFLOP/s  others"
    print(f"{'side':<15}{columns}  first loss   last loss")
    for side, ms in median.items():
        used = common.undisturbed(results[side])
        rounds = [statistics.median(r["ms"]) for r in used]
        losses = results[side][0]["losses"]
        cells = [
            f"{side:<15}{ms:8.1f}{min(rounds):6.0f} -{max(rounds):5.0f}{len(used):3} of {len(results[side])}",
            f"{ms / floor:12.2f}" if floor else " " * 12,
            f"{ms / median['torch']:9.2f}" if "torch" in median else " " * 9,
            f"{1e3 * gflop / ms:9.0f}{max(r['others'] for r in used):8.2f}",
            f"{losses[0]:12.5f}{losses[-1]:12.5f}" if losses[0] is not None else "",
        ]
        print("".join(cells))
    check_losses(results)
    return median


def check_losses(results, early=6):
    """All sides train the same model, so all of their losses agree, the first ones (which rounding has not
    yet driven apart) ten times as closely as the last."""
    runs = [(side, r["losses"]) for side, rounds in results.items() for r in rounds]
    runs = [(side, losses) for side, losses in runs if losses[0] is not None]
    if len({side for side, _ in runs}) > 1:
        losses = np.array([losses for _, losses in runs])
        spread = np.ptp(losses, axis=0) / losses.mean(0)
        first = spread[:early].max()
        print("largest relative difference between the sides' losses: "
              f"{first:.1e} in the first {early} steps, {spread.max():.1e} in all")  # fmt: skip
        assert first < 1e-5 and spread.max() < 1e-4, f"the sides do not compute the same thing: {runs}"


def compare_variants(size, medians):
    """STEM should be faster than dense by the products it leaves out."""
    tasks = [task(size, variant) for variant in ("stem", "dense")]
    stem, dense = (flops(config, len(ids)) / 1e9 for config, ids, _ in tasks)
    print(f"\nSTEM / dense, predicted from FLOPs: {stem / dense:.3f}  ({stem:.2f} of {dense:.2f} GFLOP)")
    for side in medians["stem"]:
        if side in medians["dense"]:
            print(f"  measured, {side:<15}{medians['stem'][side] / medians['dense'][side]:.3f}")


def main():
    parser = common.options(__doc__, rounds=5)
    add = parser.add_argument
    add("--size", nargs="+", choices=common.SIZES, help="one or several (default small)")
    add("--variants", nargs="+", choices=["stem", "dense"], default=["stem", "dense"])
    add("--sides", nargs="+", choices=SIDES, default=SIDES)
    add("--steps", type=int, default=10, help="steps timed in each (default 10)")
    add("--warmup", type=int, default=3, help="steps before the clock starts (default 3)")
    args = common.parse(parser, work)
    sizes = args.size or ["tiny" if args.quick else "small"]
    about = common.machine(args.threads, "torch")

    def job(size, variant, side):
        threads = 1 if side == "products" else args.threads
        work = dict(size=size, variant=variant, side=side, threads=args.threads)
        work |= dict(warmup=args.warmup, steps=args.steps)
        return work, common.environment(threads, torch="torch" in side)

    median_ms, errors, results = {}, {}, {}
    for size in sizes:
        jobs = {f"{v} {side}": job(size, v, side) for v in args.variants for side in args.sides}
        results[size], errors[size] = common.take_turns(__file__, jobs, args)
        median_ms[size] = {v: report(size, v, args.sides, results[size]) for v in args.variants}
        if len(args.variants) == 2:
            compare_variants(size, median_ms[size])
        common.print_weather(results[size], errors[size])
    common.write_json(args, about, median_ms=median_ms, errors=errors, results=results)


if __name__ == "__main__":
    main()
