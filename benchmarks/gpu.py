"""How long does a training step take on a GPU, and what is it made of?

    python benchmarks/gpu.py                        # small, medium: every side
    python benchmarks/gpu.py --sizes large --sides ministem torch-compile
    python benchmarks/gpu.py --sides ministem ministem-host --batches 8
    python benchmarks/gpu.py --parts                # other ways to do three parts of a step

The sides start from the same weights and see the same batch; -tf32 lets matrix products round their
factors to 10 bits:

    products        the matrix products of the step and nothing else, on CuPy, operands laid out at best
    ministem        what train.py --device gpu does
    ministem-host   ... with --tables host: tables and moments in the host's memory
    torch           torch_model.py as it is, eager
    torch-compile   torch.compile of it (compiling happens before the clock starts)

With --batches 8 there are eight batches in turn, not one over and over: then most rows of a batch are not
those of the one before, which is what fetching them ahead is for. (Their losses are not compared: PyTorch's
dense AdamW moves absent rows too.)

Each side runs in a process of its own. A round of steps is timed as a whole, from the first launch until
the GPU has nothing left to do, since single steps are not waited for. Launches are counted by PyTorch's
profiler, which sees those of CuPy too. Needs CuPy, PyTorch for CUDA and a GPU; says so if they are not there.
"""

import itertools
import statistics
import sys
import time
from functools import partial

import common
import numpy as np
import step

from ministem import backend
from ministem.backend import row_max
from ministem.config import Config, init_params
from ministem.devices.host import HostTables
from ministem.model import loss_and_grads
from ministem.optim import AdamW, adamw
from ministem.tables import Tables

SIZES = common.SIZES | {
    "medium": (dict(vocab_size=16384, dim=768, n_layers=12, n_heads=12, ffn_dim=2048, context=512), 16),
    "wide": (dict(vocab_size=50257, dim=1536, n_layers=12, n_heads=16, ffn_dim=4096, context=1024), 8),
}
SIDES = ["products", "ministem", "ministem-host", "torch", "torch-compile"]
SIDES = [side + more for side in SIDES for more in ("", "-tf32")]


def task(size, batches=1):
    """-> config, and as many batches: (ids, targets)"""
    sizes, B = SIZES[size]
    config = Config(**sizes, stem_layers=tuple(range(sizes["n_layers"])))
    first = common.texts(config, B)
    return config, [tuple((a + 7 * i) % config.vocab_size for a in first) for i in range(batches)]


# --------------------------------------------------------------------- one side, in its own process


def products_side(config, batches, tf32):
    """Operands as the product likes them best: the floor is what could be had, not what we do."""
    like = backend.device_array("gpu", tf32)

    def on_device(a):
        turned = a.ndim == 2 and not a.flags.c_contiguous  # a transposed matrix costs nothing
        return backend.upload(np.ascontiguousarray(a.T), like).T if turned else backend.upload(a.copy(), like)

    block = backend.block_size(config.context, like)
    calls = [tuple(map(on_device, call)) for call in step.products(config, len(batches[0][0]), block)]

    def take():
        for a, b, out in calls:
            np.matmul(a, b, out=out)

    return take


def ministem_side(config, batches, tf32, host=False):
    like = backend.device_array("gpu", tf32)
    params, tables = init_params(config, seed=0)
    params = {name: backend.upload(p, like) for name, p in params.items()}
    if host:
        tables = HostTables(tables.arrays)
    else:
        tables = Tables({name: backend.upload(tables[name], like) for name in tables.names})
    optimizer, turns = AdamW(**step.ADAMW), itertools.cycle(batches)
    following = next(turns)

    def take():
        nonlocal following
        batch = tables.fetch(*following)
        following = next(turns)
        loss, grads = loss_and_grads(params, config, batch, batch.targets)
        tables.prefetch(*following)
        optimizer.step(params, tables, grads)
        return loss

    return take


def torch_side(config, batches, tf32, compiled, device="cuda"):
    import torch
    import torch_model

    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    params, tables = init_params(config, seed=0)
    model = torch_model.Model(config, complex_rope=not compiled)
    model.load(params | {name: tables[name] for name in tables.names}).to(device)
    training, turns = torch_model.Training(model, **step.ADAMW, compiled=compiled), itertools.cycle(batches)

    def take():  # a batch comes from the host at every step, as it does for ministem
        return training.update(*(torch.tensor(a, device=device) for a in next(turns)))

    return take


def make(side, size, batches=1):
    """-> a function that launches one step, and returns the loss if it has one, not waited for"""
    name, tf32 = side.removesuffix("-tf32"), side.endswith("-tf32")
    if name == "products":
        return products_side(*task(size), tf32)
    if name.startswith("ministem"):
        return ministem_side(*task(size, batches), tf32, host=name == "ministem-host")
    return torch_side(*task(size, batches), tf32, compiled=name == "torch-compile")


def wait(side):
    if side.startswith("torch"):
        import torch

        torch.cuda.synchronize()
    else:
        import cupy

        cupy.cuda.Device().synchronize()


def launches(take, wait):
    """-> how many kernels a step launches, how long they take together (ms), or None without the profiler"""
    try:
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            take()
            wait()
    except (ImportError, RuntimeError):
        return None, None
    events = profiler.events()
    n = sum("LaunchKernel" in event.name for event in events)
    busy = sum(event.device_time_total for event in events if "CUDA" in str(event.device_type)) / 1e3
    return n or None, busy or None


def work(side, size, warmup, steps, rounds, batches=1):
    """What a worker process does -> a dict for the parent."""
    take, end, ms = make(side, size, batches), partial(wait, side), []
    losses = [take() for _ in range(warmup)]
    for _ in range(rounds):
        end()
        start = time.perf_counter()
        losses += [take() for _ in range(steps)]
        end()
        ms.append(1e3 * (time.perf_counter() - start) / steps)
    losses = [None if loss is None else float(loss) for loss in losses]
    n, busy = launches(take, end)
    return dict(ms=ms, losses=losses, launches=n, busy=busy)


# -------------------------------------------------------------------------- other ways to do its parts


def scatter_add(cp, V, N, D):
    """backend.sum_rows against atomics and a one-hot product. (Do we need a kernel of our own?)"""
    rows, slot = np.unique(common.zipf(V, N, np.random.default_rng(0)), return_inverse=True)
    x, slot, U = cp.ones((N, D), "float32"), cp.asarray(slot.astype("int32")), len(rows)
    each = cp.arange(U, dtype="int32")[:, None]
    return {
        "ours": lambda: backend.sum_rows(x, slot, U),
        "add.at": lambda: cp.add.at(cp.zeros((U, D), "float32"), slot, x),
        "one-hot product": lambda: (slot == each).astype("float32") @ x,
    }


def softmax(cp, N, S):
    """Attention's operations against the same with two of them fused. (Worth a function of backend.py?)"""
    p, fused = cp.ones((N, S), "float32"), cp.fuse(lambda x, top: cp.exp(x - top))

    def ours():
        e = p - row_max(p)
        np.exp(e, out=e)
        return e / backend.row_sum(e)

    def theirs():
        e = fused(p, row_max(p))
        return e / backend.row_sum(e)

    return {"ours": ours, "two fused": theirs}


def adamw_update(cp, N):
    """optim.adamw's fifteen operations against one kernel. (They are a third of a step's launches.)"""
    p, g, m, v = (cp.ones(N, "float32") for _ in range(4))
    kernel = cp.ElementwiseKernel(
        "T g, T b1, T b2, T size, T root, T eps, T keep", "T p, T m, T v",
        """m += (1 - b1) * (g - m); v += (1 - b2) * (g * g - v);
           p = p * keep - size * m / (sqrt(v) * root + eps);""", "adamw",
    )  # fmt: skip
    settings = dict(t=3, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, decay=0.1)
    return {"ours": lambda: adamw(p, g, m, v, **settings),
            "one kernel": lambda: kernel(g, 0.9, 0.95, 1e-3, 1.0, 1e-8, 1.0, p, m, v)}  # fmt: skip


PARTS = [(scatter_add, 65, 16384, 2048), (scatter_add, 2048, 2048, 384), (scatter_add, 50257, 16384, 2048),
         (softmax, 8192, 512), (adamw_update, 384 * 128)]  # fmt: skip


def microseconds(cp, call, times):
    """-> until the host may go on, until the GPU is done; per call"""
    wait = cp.cuda.Device().synchronize
    call()
    wait()
    start = time.perf_counter()
    for _ in range(times):
        call()
    queued = time.perf_counter() - start
    wait()
    return [1e6 * t / times for t in (queued, time.perf_counter() - start)]


def measure_parts(cp, parts=PARTS, times=20):
    """Prints the table -> {part: {way: [microseconds on the host, on the GPU] or what went wrong}}"""
    found = {}
    for part, *sizes in parts:
        print(f"\n{part.__name__} {sizes}: {part.__doc__}")
        ways = found[f"{part.__name__} {sizes}"] = {}
        for way, call in part(cp, *sizes).items():
            try:
                ways[way] = microseconds(cp, call, times)
                print(f"    {way:<20}{ways[way][0]:10.1f} us on the host{ways[way][1]:10.1f} us in all")
            except Exception as error:  # one way that CuPy refuses is no reason not to time the others
                ways[way] = f"{type(error).__name__}: {error}"
                print(f"    {way:<20}{ways[way]}")
    return found


# ------------------------------------------------------------------------------------------- report


def report(size, results, errors, batches=1):
    """The table of one size -> {side: median ms}"""
    config, ((ids, _),) = task(size)
    gflop = step.flops(config, len(ids)) / 1e9
    print(f"\n{size}: C={config.dim} L={config.n_layers} H={config.n_heads} F={config.ffn_dim} "
          f"T={config.context} B={len(ids)} V={config.vocab_size}, {gflop:.1f} GFLOP a step")  # fmt: skip
    print(f"{'side':<20}      ms  x torch   TFLOP/s  products  tokens/s  launches  kernels, ms   last loss")
    median = {side: statistics.median(found["ms"]) for side, (found,) in results.items()}
    for side, ms in median.items():
        (found,) = results[side]
        floor = median.get("products-tf32" if side.endswith("-tf32") else "products")
        print(
            f"{side:<20}{ms:8.2f}"
            + (f"{ms / median['torch']:9.2f}" if "torch" in median else " " * 9)
            + f"{gflop / ms:10.1f}"
            + (f"{floor / ms:10.0%}" if floor and "torch" not in side else " " * 10)
            + f"{1e3 * ids.size / ms:10,.0f}"
            + f"{found['launches'] or '?':>10}"
            + (f"{found['busy']:13.2f}" if found["busy"] else f"{'?':>13}")
            + (f"{found['losses'][-1]:12.5f}" if found["losses"][-1] is not None else "")
        )
    if batches == 1:
        check_losses({side: found["losses"] for side, (found,) in results.items()})
    for side, error in errors.items():
        print(f"{side}: did not run: {error}")
    return median


def check_losses(losses):
    """All sides train one model: their losses agree, to 1e-4 in float32 and to 1e-2 with TF32."""
    exact = {side: found for side, found in losses.items() if found[0] is not None and "tf32" not in side}
    for side, found in losses.items():
        for other, theirs in exact.items():
            if found[0] is not None:
                apart = max(abs(a - b) / abs(b) for a, b in zip(found, theirs, strict=True))
                limit = 1e-2 if "tf32" in side else 1e-4
                assert apart < limit, f"{side} and {other} do not compute the same thing: {apart:.1e} apart"


def main():
    parser = common.options(__doc__, rounds=5)
    add = parser.add_argument
    add("--sizes", nargs="+", choices=SIZES, default=["small", "medium"])
    add("--sides", nargs="+", choices=SIDES, default=SIDES)
    add("--steps", type=int, default=20, help="steps in a round (default 20)")
    add("--batches", type=int, default=1, help="different batches, in turn (default 1)")
    add("--warmup", type=int, default=5, help="steps before the clock starts (default 5)")
    add("--parts", action="store_true", help="time other ways to do parts of a step instead")
    args = common.parse(parser, work)
    needs_a_gpu()
    about = common.machine(args.threads, "cupy-cuda13x", "cupy-cuda12x", "torch") | gpu()
    if args.parts:
        import cupy

        common.write_json(args, about, microseconds=measure_parts(cupy))
        return
    job, rounds = dict(warmup=args.warmup, steps=args.steps, batches=args.batches), args.rounds
    job["rounds"] = rounds
    medians, args.rounds = {}, 1  # a round is one of many inside a process: starting CUDA takes seconds
    for size in args.sizes:
        jobs = {side: (job | dict(side=side, size=size), common.environment(1)) for side in args.sides}
        medians[size] = report(size, *common.take_turns(__file__, jobs, args), args.batches)
    common.write_json(args, about, rounds=rounds, median_ms=medians)


def needs_a_gpu():
    """Ends the program in one line where there is none."""
    try:
        backend.device_array("gpu")
    except ValueError as why:
        print(f"nothing to measure: {str(why).removesuffix('; or use --device cpu')}", file=sys.stderr)
        sys.exit(2)


def gpu():
    """-> which GPU, which driver"""
    import cupy

    runtime = cupy.cuda.runtime
    name = runtime.getDeviceProperties(0)["name"].decode()
    about = dict(gpu=name, driver=runtime.driverGetVersion(), cuda=runtime.runtimeGetVersion())
    print(" | ".join(f"{key} {value}" for key, value in about.items()))
    return about


if __name__ == "__main__":
    main()
