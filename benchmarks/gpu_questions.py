"""Questions about CuPy on a GPU whose answers would change the code, each asked by a few lines.

    python benchmarks/gpu_questions.py --json results/gpu_questions.json
    python benchmarks/gpu_questions.py --ask b c h

None has been answered yet. Needs CuPy and a GPU; says so if not.
"""

import contextlib
import os
import sys
import tempfile
import time
import traceback

import common
import numpy as np
from gpu import gpu, needs_a_gpu

from ministem import backend
from ministem.optim import adamw

QUICK = False  # tiny sizes: does it run?


def size(n):
    return max(1, n // 64) if QUICK else n


def us(cp, call, times=50):
    """-> (microseconds until the host may go on, microseconds until the GPU is done), per call"""
    times = 2 if QUICK else times
    wait = cp.cuda.Device().synchronize
    call()
    wait()
    start = time.perf_counter()
    for _ in range(times):
        call()
    queued = time.perf_counter() - start
    wait()
    done = time.perf_counter() - start
    return round(1e6 * queued / times, 1), round(1e6 * done / times, 1)


def some(cp, *shape, dtype="float32"):
    return cp.asarray(np.random.default_rng(0).standard_normal(shape, dtype="float32")).astype(dtype)


def bmm(cp, a, b, ta=0, tb=0, compute=68):
    """Batched products without copies: a (n,r,c), b (n,r,c), both C-contiguous; ta, tb: transposed.

    compute 68 is float32, 77 TF32. cuBLAS counts columns first, so it is asked for out' = b' a'."""
    from cupy.cuda import cublas

    M, K = (a.shape[2], a.shape[1]) if ta else a.shape[1:]
    N, code = b.shape[1] if tb else b.shape[2], {"float32": 0, "float16": 2, "bfloat16": 14}[a.dtype.name]
    out = cp.empty((len(a), M, N), a.dtype)
    cublas.gemmStridedBatchedEx(
        cp.cuda.get_cublas_handle(), tb, ta, N, M, K, ONE.ctypes.data,
        b.data.ptr, code, b.shape[2], b.shape[1] * b.shape[2],
        a.data.ptr, code, a.shape[2], a.shape[1] * a.shape[2],
        ZERO.ctypes.data, out.data.ptr, code, N, M * N, len(a), compute, -1,
    )  # fmt: skip
    return out


ONE, ZERO = np.array(1, "float32"), np.array(0, "float32")  # read while the product runs: never freed


# ------------------------------------------------------------------------------------- the questions


def a(cp):
    """What does a call cost the host? (How many launches a step may have.)"""
    x, y = some(cp, 16, 16), some(cp, 16, 16)
    return {"multiply": us(cp, lambda: x * y), "in place": us(cp, lambda: np.tanh(x, out=x)),
            "product": us(cp, lambda: x @ y), "sum": us(cp, lambda: x.sum()),
            "through NumPy": us(cp, lambda: np.tanh(y))}  # fmt: skip


def b(cp):
    """Column sums: x.sum(0) or ones @ x? (rmsnorm_backward's dg)"""
    x = some(cp, size(16384), 768)
    ones = cp.ones((1, len(x)), "float32")
    return {"sum(0)": us(cp, lambda: x.sum(0)), "ones @ x": us(cp, lambda: ones @ x)}


def c(cp):
    """The scatter-add: our kernel, atomics, or a one-hot product? (backend.sum_rows)"""
    found = {}
    for V, N, D in ((65, 16384, 2048), (2048, 2048, 384), (50257, 16384, 2048)):
        N, D = size(N), size(D)
        rows, slot = np.unique(common.zipf(V, N, np.random.default_rng(0)), return_inverse=True)
        x, slot, U = some(cp, N, D), cp.asarray(slot.astype("int32")), len(rows)
        each = cp.arange(U, dtype="int32")[:, None]
        ways = {
            "sum_rows": lambda x=x, slot=slot, U=U: backend.sum_rows(x, slot, U),
            "one-hot": lambda x=x, slot=slot, each=each: (slot == each).astype("float32") @ x,
            "add.at": lambda x=x, slot=slot, U=U, D=D: cp.add.at(cp.zeros((U, D), "float32"), slot, x),
        }
        for name, way in ways.items():
            name = f"{N} rows of {D} into {U}, {name}"
            with asked(found, name):
                found[name] = us(cp, way, 10)
    return found


def d(cp):
    """How fast are products? (Whether --tf32 should be the default.)"""
    n, found = size(8192), {}
    for kind in ("float32", "float16"):
        x = some(cp, n, n, dtype=kind)
        found[f"2-D {kind}, TFLOP/s"] = 2 * n**3 / us(cp, lambda x=x: x @ x, 10)[1] / 1e6
    for kind, compute in (("float32", 68), ("float32", 77), ("float16", 68)):
        x = some(cp, 64, size(1024), size(1024), dtype=kind)
        flop = 2 * 64 * x.shape[1] ** 3
        _, took = us(cp, lambda x=x, compute=compute: bmm(cp, x, x, 0, 1, compute), 10)
        found[f"batched {kind} {compute}, TFLOP/s"] = flop / took / 1e6
    return found


def e(cp):
    """Attention's products: CuPy's @ on turned batches, which it copies, or cuBLAS with flags?"""
    q, p = some(cp, 128, size(512), 64), some(cp, 128, size(512), size(512))
    pairs = {"q k'": (q, q, 0, 1), "p' dy": (p, q, 1, 0), "p v": (p, q, 0, 0)}
    found = {}
    for name, (x, y, ta, tb) in pairs.items():
        turned = x.swapaxes(1, 2) if ta else x, y.swapaxes(1, 2) if tb else y
        found[name + " with @"] = us(cp, lambda t=turned: t[0] @ t[1], 10)
        found[name + " with flags"] = us(cp, lambda x=x, y=y, ta=ta, tb=tb: bmm(cp, x, y, ta, tb), 10)
        found[name + " apart by"] = float(abs(turned[0] @ turned[1] - bmm(cp, x, y, ta, tb)).max())
    return found


def f(cp):
    """Tables in the host's memory: how fast are copies, and can a kernel gather from there itself?"""
    V, D, U = size(65536), 2048, size(4096)
    memory = cp.cuda.PinnedMemoryPointer(cp.cuda.PinnedMemory(4 * V * D), 0)
    table = np.frombuffer(memory, "float32", V * D).reshape(V, D)
    table[:] = 1
    rows = np.sort(np.random.default_rng(0).choice(V, U, replace=False))
    gigabytes, found = 4e-3 * U * D, {}
    whole = cp.empty((U, D), "float32")
    found["pinned upload, GB/s"] = gigabytes / us(cp, lambda: whole.set(table[:U]), 10)[1]
    _, took = us(cp, lambda: cp.asarray(table[rows]), 10)
    found["gather on the host, then upload, GB/s"] = gigabytes / took
    there = cp.cuda.MemoryPointer(cp.cuda.UnownedMemory(table.ctypes.data, table.nbytes, table), 0)
    seen, index = cp.ndarray((V, D), "float32", there), cp.asarray(rows)
    found["gather by the GPU, GB/s"] = gigabytes / us(cp, lambda: seen.take(index, axis=0), 10)[1]
    found["and it is right"] = bool((seen.take(index, axis=0) == 1).all())
    return found


def g(cp):
    """Does bfloat16 work, in matrices and in batches of them? (Needs ml_dtypes before CuPy.)"""
    found = {}
    for shape in ((32, 32), (2, 32, 32)):
        with asked(found, f"{len(shape)}-D"):
            x = some(cp, *shape, dtype=np.dtype("bfloat16"))
            found[f"{len(shape)}-D"] = float((x @ x).astype("float32").sum())
    return found


def h(cp):
    """Are sums of float16 added up in float32?"""
    x = cp.full((16, 1024), 0.1, "float16")
    exact = 1024 * float(x[0, 0])
    return {"of all, relative error": abs(float(x.sum()) / (16 * exact) - 1),
            "along rows": abs(float(x.sum(1)[0]) / exact - 1)}  # fmt: skip


def i(cp):
    """How long does the first step take, before and after kernels are kept in a folder?"""
    import subprocess

    found, program = {}, (
        "import time; start = time.perf_counter(); import sys; sys.argv[0] = 'benchmarks/gpu.py'; import gpu;"
        "float(gpu.make('ministem', 'tiny')()); print(time.perf_counter() - start)"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold, s", "kept, s"):
            how = dict(cwd=os.path.dirname(__file__), env=os.environ | {"CUPY_CACHE_DIR": folder})
            command = [sys.executable, "-c", program]
            done = subprocess.run(command, capture_output=True, text=True, check=True, **how)
            found[name] = float(done.stdout.split()[-1])
    return found


def j(cp):
    """A softmax of rows: our five operations against one fused kernel of CuPy's (cupy.fuse)"""
    p = some(cp, size(8192), 512)

    def ours():
        q = p - p.max(-1, keepdims=True)
        np.exp(q, out=q)
        q /= backend.row_sum(q)

    fused = cp.fuse(lambda x, top: cp.exp(x - top))

    def theirs():
        q = fused(p, p.max(-1, keepdims=True))
        q /= q.sum(-1, keepdims=True)

    return {"ours": us(cp, ours), "with one fused": us(cp, theirs)}


def k(cp):
    """Sums over short rows, like a head's 64: x.sum(-1), or as a product?"""
    x, ones = some(cp, size(1 << 18), 64), cp.ones((64, 1), "float32")
    return {"sum(-1)": us(cp, lambda: x.sum(-1)), "x @ ones": us(cp, lambda: x @ ones)}


def l(cp):  # noqa: E743
    """Is cuTENSOR there, and does CuPy use it unasked?"""
    from importlib.util import find_spec

    asked_for = os.environ.get("CUPY_ACCELERATORS", "")
    return {"installed": bool(find_spec("cutensor")), "CUPY_ACCELERATORS": asked_for}


def m(cp):
    """AdamW: our fifteen operations, or one kernel for a whole array? (A third of a step's launches.)"""
    p, g, m, v = (some(cp, size(384) * 128) ** 2 for _ in range(4))
    kernel = cp.ElementwiseKernel(
        "T g, T b1, T b2, T size, T root, T eps, T keep", "T p, T m, T v",
        """m += (1 - b1) * (g - m); v += (1 - b2) * (g * g - v);
           p = p * keep - size * m / (sqrt(v) * root + eps);""", "adamw",
    )  # fmt: skip
    settings = dict(t=3, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, decay=0.1)
    return {"ours": us(cp, lambda: adamw(p, g, m, v, **settings)),
            "one kernel": us(cp, lambda: kernel(g, 0.9, 0.95, 1e-3, 1.0, 1e-8, 1.0, p, m, v))}  # fmt: skip


# ---------------------------------------------------------------------------------------------- asking

QUESTIONS = {question.__name__: question for question in (a, b, c, d, e, f, g, h, i, j, k, l, m)}


@contextlib.contextmanager
def asked(found, name):
    """What goes wrong inside is an answer, too."""
    try:
        yield
    except Exception as error:
        found[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if QUICK:
            traceback.print_exc()


def answer(names, cp):
    """-> {question: what was found}; one that fails does not keep the others from being asked"""
    answers = {}
    for name in names:
        question = QUESTIONS[name]
        print(f"\n({name}) {question.__doc__}")
        found = {}
        with asked(found, "failed"):
            found = question(cp)
        for what, result in found.items():
            print(f"    {what:<45} {result}")
        answers[name] = dict(question=question.__doc__, found=found)
    return answers


def main():
    global QUICK
    parser = common.options(__doc__)
    parser.add_argument("--ask", nargs="+", choices=QUESTIONS, default=list(QUESTIONS), help="(default: all)")
    args = common.parse(parser)
    QUICK = args.quick
    needs_a_gpu()
    import cupy

    print("times are microseconds: until the host may go on, until the GPU is done")
    about = common.machine(1, "cupy-cuda13x", "cupy-cuda12x") | gpu()
    common.write_json(args, about, answers=answer(args.ask, cupy))


if __name__ == "__main__":
    main()
