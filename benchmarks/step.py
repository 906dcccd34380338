"""How long does a training step take, and how long would it take if only the products counted?

    python benchmarks/step.py                          # small, STEM and dense, every side
    python benchmarks/step.py --size large --rounds 3
    python benchmarks/step.py --sides products ministem --profile

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
import sys
import time
from functools import partial

import common
import numpy as np

from ministem import backend
from ministem.config import Config, init_params
from ministem.model import loss_and_grads
from ministem.optim import AdamW

SIZES = {  # the model, then the batch
    "tiny": (dict(vocab_size=64, dim=32, n_layers=2, n_heads=2, ffn_dim=64, context=16), 4),
    "small": (dict(vocab_size=2048, dim=128, n_layers=4, n_heads=4, ffn_dim=384, context=128), 16),
    "large": (dict(vocab_size=8192, dim=384, n_layers=6, n_heads=6, ffn_dim=1024, context=256), 8),
}
SIDES = ["products", "products-blas", "ministem", "torch", "torch-sparse", "torch-compile"]
# so low a rate that differences of rounding do not grow large in the few steps of a benchmark
ADAMW = dict(lr=1e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)


def task(size, variant):
    """-> config, ids, targets"""
    sizes, B = SIZES[size]
    config = Config(**sizes, ffn=variant, stem_layers=tuple(range(sizes["n_layers"])))
    return config, *common.texts(config, B)


# ---------------------------------------------------------------------------------- the products


def products(config, B):
    """Every matrix product of a step on B texts -> [(a, b, out), ...] in the order of a step.

    What a product would be given by the elementwise work in between is random instead."""
    C, F, V, T = config.dim, config.ffn_dim, config.vocab_size, config.context
    H, K, D, N = config.n_heads, config.n_kv_heads, config.head_dim, B * config.context
    rng = np.random.default_rng(0)
    calls, linears = [], []

    def some(*shape):
        return rng.standard_normal(shape, dtype=np.float32)

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

    attentions, is_stem = [], config.ffn == "stem"
    for _ in range(config.n_layers):
        linear(some(N, C), (H + 2 * K) * D)
        q, k, v = some(B, K, H // K * T, D), some(B, K, T, D), some(B, K, T, D)
        p = multiply(q, k.swapaxes(2, 3))
        y = multiply(p, v)
        attentions.append((q, k, v, p, some(*y.shape)))
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
        multiply(p.swapaxes(2, 3), dy)  # dv
        ds = multiply(dy, v.swapaxes(2, 3))
        multiply(ds, k)  # dq
        multiply(ds.swapaxes(2, 3), q)  # dk
        linear_backward()  # wqkv
    return calls


def flops(config, B):
    """Of a step, counted on paper: 6 per weight and token, and the six products of attention."""
    C, F, T, L = config.dim, config.ffn_dim, config.context, config.n_layers
    ffn = 2 if config.ffn == "stem" else 3
    kv = config.n_kv_heads * config.head_dim
    active = L * (C * (C + 2 * kv) + C * C + ffn * C * F) + C * config.vocab_size
    return 6 * active * B * T + L * 6 * 2 * B * T * T * C


def products_side(config, B, threads):
    """-> a function that does all products of one step, the batch split into `threads` parts."""
    n = min(threads, B)
    parts = [products(config, B * (j + 1) // n - B * j // n) for j in range(n)]
    counted = sum(2 * a.size * b.shape[-1] for calls in parts for a, b, _ in calls)
    expected = flops(config, B)
    assert counted == expected, f"the products make {counted} flops, on paper it is {expected}"

    def run(calls):
        for a, b, out in calls:
            np.matmul(a, b, out=out)

    tasks = [partial(run, calls) for calls in parts]
    return lambda: backend.parallel(tasks, threads) and None  # there is no loss


# --------------------------------------------------------------------- one side, in its own process


def ministem_side(config, ids, targets, threads):
    params, tables = init_params(config, seed=0)
    optimizer = AdamW(**ADAMW, threads=threads)

    def step(clock=lambda name: None):
        batch = tables.fetch(ids)
        clock("fetch")
        loss, grads = loss_and_grads(params, config, batch, targets, threads=threads)
        clock("forward and backward")
        optimizer.step(params, tables, grads)
        clock("clip and optimizer")
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


def work(side, size, variant, threads, keep, warmup, steps):
    """What a worker process does -> a dict for the parent."""
    if keep:
        backend.keep_freed_memory()
    start = time.perf_counter()
    step = make(side, size, variant, threads)
    losses = [step() for _ in range(warmup)]
    setup = time.perf_counter() - start
    ms = [common.timed(lambda: losses.append(step())) for _ in range(steps)]
    return dict(ms=ms, losses=losses, setup_s=round(setup, 1))


# ------------------------------------------------------------------------------------------- report


def report(size, variant, results, errors):
    """The table of one variant -> {side: median ms}"""
    config, ids, _ = task(size, variant)
    B, T = ids.shape
    gflop = flops(config, B) / 1e9
    print(f"\n{size}, {variant}: C={config.dim} L={config.n_layers} H={config.n_heads} F={config.ffn_dim} "
          f"T={T} B={B} V={config.vocab_size}, {len(np.unique(ids))} distinct tokens, "
          f"{gflop:.2f} GFLOP a step")  # fmt: skip
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
    common.print_weather(results, errors)
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


def profile(size, variant, threads, lines=22):
    """Where ministem's time goes: by phase as it runs, by function on one thread."""
    import cProfile
    import pstats

    backend.keep_freed_memory()
    step = make("ministem", size, variant, threads)
    for _ in range(3):
        step()
    phases = {}
    for _ in range(10):
        last = time.perf_counter()

        def clock(name):
            nonlocal last
            now = time.perf_counter()
            phases.setdefault(name, []).append(1e3 * (now - last))
            last = now

        step(clock)
    print(f"\n{size}, {variant}, {threads} threads, by phase:")
    for name, ms in phases.items():
        print(f"  {name:<22}{statistics.median(ms):>8.2f} ms")
    step = make("ministem", size, variant, threads=1)
    step()
    with backend.blas_threads(1), cProfile.Profile() as profiler:
        for _ in range(5):
            step()
    print("by function, five steps on one thread (seconds):")
    stats = pstats.Stats(profiler, stream=sys.stdout)
    stats.strip_dirs().sort_stats("tottime").print_stats(lines)


def main():
    parser = common.options(__doc__, rounds=5)
    add = parser.add_argument
    add("--size", choices=SIZES, help="default small")
    add("--variants", nargs="+", choices=["stem", "dense"], default=["stem", "dense"])
    add("--sides", nargs="+", choices=SIDES, default=SIDES)
    add("--steps", type=int, default=10, help="steps timed in each (default 10)")
    add("--warmup", type=int, default=3, help="steps before the clock starts (default 3)")
    add("--heap", choices=["ministem", "all", "none"], default="ministem", help="who keeps freed memory "
        "instead of giving it back each step (default ministem, as train.py does)")  # fmt: skip
    add("--profile", action="store_true", help="show where ministem's time goes instead")
    args = common.parse(parser, work)
    size = args.size or ("tiny" if args.quick else "small")
    about = common.machine(args.threads, "torch")
    if args.profile:
        for variant in args.variants:
            profile(size, variant, args.threads)
        return

    told = dict(size=size, threads=args.threads, warmup=args.warmup, steps=args.steps)

    def job(variant, side):
        threads = 1 if side == "products" else args.threads
        env = common.environment(threads, torch="torch" in side)
        keep = args.heap in ("all", side.removesuffix("-fast"))
        return told | dict(side=side, variant=variant, keep=keep), env

    def by_variant(found):
        return {v: {side: what for (of, side), what in found.items() if of == v} for v in args.variants}

    jobs = {(variant, side): job(variant, side) for variant in args.variants for side in args.sides}
    results, errors = map(by_variant, common.take_turns(__file__, jobs, args))
    medians = {v: report(size, v, results[v], errors[v]) for v in args.variants}
    if len(medians) == 2:
        compare_variants(size, medians)
    common.write_json(args, about, median_ms=medians, errors=errors, results=results)


if __name__ == "__main__":
    main()
