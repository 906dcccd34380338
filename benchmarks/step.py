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

Each side runs in a process of its own, started anew every round, and the sides take turns: in one
process their thread pools get in each other's way, and one after the other they would be measured
in different weather. The batch is the same at every step, so all sides must show the same losses,
the lazy optimizers too, since no row is ever absent that was once there.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from ministem import backend  # noqa: E402
from ministem.model import Config, init_params, loss_and_grads  # noqa: E402
from ministem.optim import AdamW  # noqa: E402

SIZES = {  # the model, then the batch
    "tiny": (dict(vocab_size=64, dim=32, n_layers=2, n_heads=2, ffn_dim=64, context=16), 4),
    "small": (dict(vocab_size=2048, dim=128, n_layers=4, n_heads=4, ffn_dim=384, context=128), 16),
    "large": (dict(vocab_size=8192, dim=384, n_layers=6, n_heads=6, ffn_dim=1024, context=256), 8),
}
SIDES = ["products", "products-blas", "ministem", "torch", "torch-sparse", "torch-compile"]
QUIET = 0.2  # cores that other programs may keep busy meanwhile before a round counts as disturbed
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0)


def task(size, variant):
    """-> config, ids, targets. Tokens are drawn as text draws them, a few of them all the time."""
    sizes, B = SIZES[size]
    config = Config(**sizes, ffn=variant, stem_layers=tuple(range(sizes["n_layers"])))
    rng = np.random.default_rng(1)
    V, T = config.vocab_size, config.context
    often = 1 / (np.arange(V) + 2.7)  # Zipf's law, near enough
    text = rng.permutation(V)[rng.choice(V, B * T + 1, p=often / often.sum())]
    return config, text[:-1].reshape(B, T), text[1:].reshape(B, T)


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
        out = np.empty((*a.shape[:-1], b.shape[-1]), np.float32)
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


def flops_of(calls):
    return sum(2 * a.size * b.shape[-1] for a, b, _ in calls)


def products_side(config, B, threads):
    """-> a function that does all products of one step, the batch split into `threads` parts."""
    bounds = [B * j // threads for j in range(threads + 1)]
    parts = [products(config, b - a) for a, b in zip(bounds, bounds[1:], strict=False) if b > a]
    counted, expected = sum(map(flops_of, parts)), flops(config, B)
    assert counted == expected, f"the products make {counted} flops, on paper it is {expected}"

    def run(calls):
        for a, b, out in calls:
            np.matmul(a, b, out=out)

    if len(parts) == 1:
        return partial(run, parts[0])
    pool = ThreadPoolExecutor(len(parts))
    return lambda: list(pool.map(run, parts)) and None


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
    if side == "ministem":
        return ministem_side(config, ids, targets, threads)
    return torch_side(config, ids, targets, threads, "sparse" in side, "compile" in side)


def work(side, size, variant, threads, keep, warmup, steps):
    """What a worker process does -> a dict for the parent."""
    if keep:
        backend.keep_freed_memory()
    start = time.perf_counter()
    step = make(side, size, variant, threads)
    losses = [step() for _ in range(warmup)]
    setup, ms = time.perf_counter() - start, []
    for _ in range(steps):
        start = time.perf_counter()
        losses.append(step())
        ms.append(1e3 * (time.perf_counter() - start))
    return dict(side=side, variant=variant, ms=ms, losses=losses, setup_s=round(setup, 1))


def environment(side, threads):
    """BLAS takes its thread count from here; torch brings its own, so NumPy's need not wake up."""
    blas = threads if side in ("products-blas", "ministem") else 1
    torch = threads if side.startswith("torch") else blas
    return os.environ | {
        "OPENBLAS_NUM_THREADS": str(blas),
        "OMP_NUM_THREADS": str(torch),
        "MKL_NUM_THREADS": str(torch),
    }


# -------------------------------------------------------------------------- the parent: take turns


def cpu_seconds():
    """-> what the whole machine has spent so far, what our own children have; None where unknown"""
    if not os.path.exists("/proc/stat"):
        return None
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq, steal = map(int, f.readline().split()[1:9])
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    machine = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return machine, children.ru_utime + children.ru_stime


def others(before, seconds):
    """-> how many cores somebody else kept busy in these seconds: a measurement's bad weather"""
    after = cpu_seconds()
    if not (before and after):
        return float("nan")
    (machine, children), (machine0, children0) = after, before
    return max(0.0, machine - machine0 - (children - children0)) / seconds


def wait_for_quiet(until):
    """Until nobody else uses more than a tenth of a core, or the time is up."""
    while time.monotonic() < until:
        before = cpu_seconds()
        time.sleep(1)
        if not others(before, 1) > 0.1:
            return


def run_worker(side, variant, args):
    """-> the worker's dict, or {"error": its last words}"""
    options = dict(
        side=side,
        variant=variant,
        size=args.size,
        threads=args.threads,
        keep=args.heap == "all" or (args.heap == "ministem" and side == "ministem"),
        warmup=args.warmup,
        steps=args.steps,
    )
    command = [sys.executable, __file__, "--work", json.dumps(options)]
    until = time.monotonic() + args.patience
    while True:
        wait_for_quiet(until)
        before, start = cpu_seconds(), time.monotonic()
        done = subprocess.run(
            command, env=environment(side, args.threads), capture_output=True, text=True
        )
        disturbed = others(before, time.monotonic() - start)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return {"error": next((x for x in reversed(lines) if "Error" in x), lines[-1]).strip()}
        # chosen by what others did, never by how long we took
        if not disturbed > QUIET or time.monotonic() > until:
            return json.loads(done.stdout.splitlines()[-1]) | {"others": round(disturbed, 2)}


def versions(threads):
    from threadpoolctl import threadpool_info

    blas = [f"{lib['internal_api']} {lib['version']}" for lib in threadpool_info()]
    try:
        from importlib.metadata import version

        torch = version("torch")
    except ModuleNotFoundError:
        torch = "not installed"
    cpu = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as f:
            cpu = next((x.split(":")[1].strip() for x in f if x.startswith("model name")), cpu)
    return dict(
        cpu=cpu,
        cores=backend.available_cores(),
        threads=threads,
        numpy=np.__version__,
        blas=", ".join(blas),
        torch=torch,
        python=platform.python_version(),
    )


def report(size, variant, results, errors):
    """The table of one variant -> {side: median ms}"""
    config, ids, _ = task(size, variant)
    T, B = config.context, len(ids)
    print(
        f"\n{size}, {variant}: C={config.dim} L={config.n_layers} H={config.n_heads} "
        f"F={config.ffn_dim} T={T} B={B} V={config.vocab_size}, "
        f"{len(np.unique(ids))} distinct tokens, {flops(config, B) / 1e9:.2f} GFLOP a step"
    )
    # where some rounds were quiet and others were not, only the quiet ones count
    quiet = {side: [r for r in rounds if r["others"] <= QUIET] for side, rounds in results.items()}
    used = {side: quiet[side] or rounds for side, rounds in results.items() if rounds}
    median = {
        side: statistics.median(ms for r in rounds for ms in r["ms"])
        for side, rounds in used.items()
    }
    floor = min((median[s] for s in ("products", "products-blas") if s in median), default=None)
    columns = "      ms  from -   to  rounds  x products  x torch  GFLOP/s  others"
    print(f"{'side':<14}{columns}  first loss   last loss")
    for side, ms in median.items():
        rounds = [statistics.median(r["ms"]) for r in used[side]]
        losses = results[side][0]["losses"]
        cells = [
            f"{ms:8.1f}{min(rounds):6.0f} -{max(rounds):5.0f}",
            f"{len(rounds):3} of {len(results[side])}",
            f"{ms / floor:12.2f}" if floor else " " * 12,
            f"{ms / median['torch']:9.2f}" if "torch" in median else " " * 9,
            f"{flops(config, B) / ms / 1e6:9.0f}{max(r['others'] for r in used[side]):8.2f}",
            f"{losses[0]:12.5f}{losses[-1]:12.5f}" if losses[0] is not None else "",
        ]
        print(f"{side:<14}" + "".join(cells))
    for side, error in errors.items():
        print(f"{side:<15}did not run: {error}")
    check_losses(results)
    if any(r["others"] > QUIET for rounds in used.values() for r in rounds):
        print(
            "others: cores that other programs kept busy meanwhile, in the worst round. PyTorch,\n"
            "whose threads spin while they wait, suffers most: measure again on a quiet machine."
        )
    return median


def check_losses(results):
    """All sides train the same model, so all of their losses agree, from the first to the last."""
    runs = {
        side: r["losses"]
        for side, rounds in results.items()
        for r in rounds
        if r["losses"][0] is not None
    }
    if len(runs) > 1:
        spread = np.ptp(np.array(list(runs.values())), axis=0).max()
        print(f"largest difference between the sides' losses at any step: {spread:.1e}")
        assert spread < 1e-4, f"the sides do not compute the same thing: {runs}"


def compare_variants(size, medians):
    """STEM should be faster than dense by the products it leaves out."""
    config, ids, _ = task(size, "stem")
    B = len(ids)
    stem, dense = flops(config, B), flops(task(size, "dense")[0], B)
    print(
        f"\nSTEM / dense, predicted from FLOPs: {stem / dense:.3f}"
        f"  ({stem / 1e9:.2f} of {dense / 1e9:.2f} GFLOP)"
    )
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--size", choices=SIZES, default="small")
    add("--variants", nargs="+", choices=["stem", "dense"], default=["stem", "dense"])
    add("--sides", nargs="+", choices=SIDES, default=SIDES)
    add("--rounds", type=int, default=5, help="processes started per side (default 5)")
    add("--steps", type=int, default=10, help="steps timed in each (default 10)")
    add("--warmup", type=int, default=3, help="steps before the clock starts (default 3)")
    add(
        "--threads",
        type=int,
        default=backend.available_cores(),
        help="for every side (default: the cores this process may use)",
    )
    add(
        "--patience",
        type=float,
        default=0,
        metavar="S",
        help="for each process, wait and measure again for up to S seconds until other programs "
        "leave the machine alone (default 0)",
    )
    add(
        "--heap",
        choices=["ministem", "all", "none"],
        default="ministem",
        help="who keeps freed memory instead of giving it back each step (default: ministem, as "
        "train.py does)",
    )
    add("--json", metavar="FILE", help="write all measurements there too")
    add("--profile", action="store_true", help="show where ministem's time goes instead")
    add("--work", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        print(json.dumps(work(**json.loads(args.work))))
        return
    about = versions(args.threads)
    print(" | ".join(f"{name} {value}" for name, value in about.items()))
    if args.profile:
        for variant in args.variants:
            profile(args.size, variant, args.threads)
        return

    jobs = [(variant, side) for variant in args.variants for side in args.sides]
    results = {variant: {side: [] for side in args.sides} for variant in args.variants}
    errors = {variant: {} for variant in args.variants}
    for i in range(args.rounds):
        for variant, side in jobs if i % 2 == 0 else jobs[::-1]:  # back and forth
            if side in errors[variant]:
                continue
            answer = run_worker(side, variant, args)
            if "error" in answer:
                errors[variant][side] = answer["error"]
            else:
                results[variant][side].append(answer)
        print(f"round {i + 1} of {args.rounds} done", file=sys.stderr)
    medians = {v: report(args.size, v, results[v], errors[v]) for v in args.variants}
    if len(medians) == 2:
        compare_variants(args.size, medians)
    if args.json:
        command = "python benchmarks/step.py " + " ".join(sys.argv[1:])
        Path(args.json).write_text(
            json.dumps(
                dict(command=command, **about, median_ms=medians, errors=errors, results=results)
            )
        )


if __name__ == "__main__":
    main()
