"""Where arrays live and how the cores are used: the CPU's half, and the way to the GPU's (devices/gpu.py).

The layer code is plain NumPy, and NumPy hands its calls to CuPy when it meets CuPy arrays. What needs
another implementation per device, or is much faster another way, is a named function here.
"""

import functools
import itertools
import math
import os
import sys
from pathlib import Path, PurePosixPath

import numpy as np

from .devices import gpu

# --------------------------------------------------------------------------------------- operations


def row_dot(a, b):
    """(…,N), (…,N) -> (…,1): the sum of a * b over the last axis, without an array for the products."""
    if isinstance(a, np.ndarray):
        return np.vecdot(a, b)[..., None]
    return (a * b).sum(-1, keepdims=True)


def row_sum(x):
    """(…,N) -> (…,1): the sum over the last axis; on a CPU as a product with ones (BLAS beats sum there)."""
    if isinstance(x, np.ndarray):
        return x @ np.ones_like(x, shape=(x.shape[-1], 1))
    return x.sum(-1, keepdims=True)


def row_max(x):
    """(…,N) -> (…,1): the largest of the last axis; on a CPU by its place (argmax beats max there)."""
    if isinstance(x, np.ndarray):
        rows = x.reshape(-1, x.shape[-1])
        return rows[np.arange(len(rows)), rows.argmax(1)].reshape(*x.shape[:-1], 1)
    return x.max(-1, keepdims=True)


BLOCK = 64


def block_size(T, like):
    """How many queries attention takes at a time, of T. On a CPU few, so that little of the masked half is
    computed and the scores stay in its cache (in texts of 2,048 three times as many, for fewer calls); on a
    GPU many, since every block launches kernels."""
    size = BLOCK if T < 32 * BLOCK else 3 * BLOCK
    return min(T, size if isinstance(like, np.ndarray) else 16 * BLOCK)


def sum_rows(values, slot, n_rows):
    """The scatter-add, backward of `block[slot]`: out[r] = the sum of values where slot is r.

    values (B,T,·), slot (B,T) int -> (n_rows,·). `block[slot]` is onehot(slot) @ block, so this is
    onehot(slot).T @ values. SciPy multiplies by that transpose without building it: one pass over values,
    adding each into its row in a fixed order. (`out[slot] += values` would lose repeated tokens.)"""
    values, slot = values.reshape(-1, values.shape[-1]), slot.reshape(-1)
    if isinstance(values, np.ndarray):
        from scipy.sparse import csc_array  # here, since importing it takes as long as importing numpy thrice

        ones, column_starts = np.ones(len(slot), values.dtype), np.arange(len(slot) + 1)
        return csc_array((ones, slot, column_starts), shape=(n_rows, len(slot))) @ values
    return gpu.sum_rows(values, slot, n_rows)


# ------------------------------------------------------------------------------------------ devices


def upload(x, like):
    """A host array, put where `like` lives."""
    return np.asarray(x, like=like)


def upload_ints(arrays, like):
    """Host arrays of whole numbers, put where `like` lives: to a GPU in a single transfer, as int32."""
    if isinstance(like, np.ndarray):
        return arrays
    packed = upload(np.concatenate([a.reshape(-1) for a in arrays]).astype("int32"), like)
    stops = np.cumsum([a.size for a in arrays]).tolist()
    return [packed[stop - a.size : stop].reshape(a.shape) for a, stop in zip(arrays, stops, strict=True)]


def download(x):
    """Any array as a NumPy array on the host. From a GPU this waits until x has been computed."""
    return x if isinstance(x, np.ndarray | np.generic) else x.get()


def device_array(device, tf32=False):
    """-> an empty array on "cpu" or "gpu", to be passed as `like`. tf32: see gpu.device_array.

    Raises ValueError: one line that says what is missing. There is no silent fall-back to the CPU."""
    return gpu.device_array(tf32) if device == "gpu" else np.empty(0, "float32")


# ------------------------------------------------------------------------------------------ threads


def available_cores(root="/"):
    """Cores this process may use: taskset and containers may allow fewer than the machine has."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min([cores, *_quotas(Path(root))])))


def _quotas(root):
    """How many cores' worth of time the control groups of this process have (Linux): its own, and those that
    this one lies in. In version 2, "150000 100000" is a core and a half and "max 100000" no limit; version 1
    has two files, and -1. (In a container the path may be the host's: then the group is what is mounted.)"""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if not controllers:  # version 2
            places, names = ("", "unified"), ("cpu.max",)
        elif "cpu" in controllers.split(","):
            places, names = ("cpu", controllers), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        for place, around in itertools.product(places, (group, *group.parents)):
            folder = root / "sys/fs/cgroup" / place / around
            try:
                quota, period = " ".join((folder / name).read_text() for name in names).split()
                if int(quota) > 0:
                    yield int(quota) / int(period)
            except (OSError, ValueError):  # no such file, or "max"
                continue


@functools.cache
def _blas():
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def blas_threads(n):
    """A context manager: inside it, each matrix product uses n threads."""
    return _blas().limit(limits=n, user_api="blas")


@functools.cache
def _pool(threads):
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads)


def parallel(tasks, threads):
    """Call the functions in `tasks`, up to `threads` at a time -> their results, in order."""
    if threads == 1 or len(tasks) == 1:
        return [task() for task in tasks]
    with blas_threads(1):  # the tasks share the cores: a product that takes all of them is in the way
        return list(_pool(threads).map(lambda task: task(), tasks))


@functools.cache
def keep_freed_memory():
    """Ask glibc to keep freed memory for the next step instead of giving it back to the system.

    A step frees and takes the same arrays over and over; each time, the system would clear the pages again.
    Does nothing on other C libraries."""
    if sys.platform == "linux":
        import ctypes

        try:
            mallopt = ctypes.CDLL("libc.so.6").mallopt
        except (OSError, AttributeError):
            return
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD: give back only what lies free beyond a gigabyte
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD: take arrays from the heap, not as mappings of their own
