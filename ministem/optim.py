"""AdamW for dense arrays and for table rows, clipping by the global norm, the learning-rate schedule.

One formula serves both kinds. A dense parameter is updated whole; of a table only the rows in the batch are
read, updated and written back, so a step costs the same whether the table has a thousand rows or a
million. That is *lazy* Adam: rows that are absent do not move, and their moments do not decay. (The paper's
released code has dense table gradients: there every row decays and moves at every step.)
"""

import math
from functools import partial

import numpy as np

from . import backend
from .tables import RowSparse

PIECE = 1 << 16  # numbers a CPU updates at a time: they, their gradients and moments stay in its cache


def cosine_schedule(step, steps, lr, warmup=0, floor=0.1):
    """The rate for `step` (counted from 1) of `steps`: up in a line for `warmup` steps, then down along half
    a cosine to floor * lr."""
    if step <= warmup:
        return lr * step / warmup
    progress = min(1, (step - warmup) / max(1, steps - warmup))
    return lr * (floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2)


def adamw(p, g, m, v, t, lr, betas, eps, decay, scale=1.0):
    """One AdamW update, in place, of p and its two moments m and v (Loshchilov and Hutter, algorithm 2).

    p, g, m, v: arrays of one shape. t: the step, from 1. decay: pulls p towards 0 by lr * decay, apart from
    the gradient. scale: multiplies g first (clipping); a number, or an array () on a GPU."""
    beta1, beta2 = betas
    g = g * scale
    m += (1 - beta1) * (g - m)  # running mean of g
    v += (1 - beta2) * (g * g - v)  # running mean of g squared
    # both started at zero: dividing by 1 - beta^t makes them right from the first step on
    size = lr / (1 - beta1**t)
    p *= 1 - lr * decay
    p -= size * m / (np.sqrt(v / (1 - beta2**t)) + eps)


class AdamW:
    """AdamW over a params dict and Tables. `lr` may be set anew before each step (see cosine_schedule).

    table_lr multiplies the rate of tables; weight decay is for matrices only (not norms, not tables);
    clip is the largest global norm that all gradients together may have (None or 0: no limit). A negative
    one, which would turn the gradients round, raises ValueError."""

    def __init__(self, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, table_lr=1.0, clip=1.0,
                 threads=1):  # fmt: skip
        if clip is not None and not clip >= 0:
            raise ValueError(f"clip must be >= 0, got {clip}")
        self.lr, self.betas, self.eps, self.weight_decay = lr, betas, eps, weight_decay
        self.table_lr, self.clip, self.threads = table_lr, clip, threads
        self.t = 0  # steps taken
        self.m, self.v = {}, {}  # moments of dense parameters
        self.table_m, self.table_v = None, None  # moments of tables, which are tables too

    def start(self, params, tables):
        """Make the moments, all zero. The first step does this by itself."""
        self.m = {name: np.zeros_like(p) for name, p in params.items()}
        self.v = {name: np.zeros_like(p) for name, p in params.items()}
        self.table_m, self.table_v = tables.zeros(), tables.zeros()

    def state(self):
        """-> {name: array}: all moments in memory, as m/NAME and v/NAME. With `t`, and what table_m and
        table_v have on disk, all there is to keep."""
        kinds = {"m": self.m, "v": self.v}
        dense = {f"{k}/{name}": a for k, moments in kinds.items() for name, a in moments.items()}
        kinds = {"m": self.table_m, "v": self.table_v}
        return dense | {f"{k}/{name}": a for k, table in kinds.items() for name, a in table.whole.items()}

    def load(self, state, t, on_disk=()):
        """Go on from what state() gave after t steps; self.start() must have made the moments.

        on_disk: of tables on disk, the Tables m and v that their moments are copied from."""
        for name, array in self.state().items():
            array[...] = state[name]
        for moments, saved in zip((self.table_m, self.table_v), on_disk, strict=False):
            moments.take(saved)
        self.t = t

    def step(self, params, tables, grads):
        """Update params and tables in place. grads: as loss_and_grads returns them -> their global norm.

        On a CPU, raises FloatingPointError if the norm is not finite; then nothing has been changed. A GPU is
        not waited for: there the norm has yet to be computed, clipping is left to the GPU too, and whoever
        reads the norm later has to look whether it is finite. If not, the weights are spoilt since then."""
        if self.table_m is None:
            self.start(params, tables)
        norm = global_norm(grads)
        on_cpu = isinstance(norm, float | np.generic | np.ndarray)
        if on_cpu and not np.isfinite(norm):
            raise FloatingPointError(f"the gradient's norm is {norm} at step {self.t + 1}")
        self.t += 1
        scale = 1.0
        if self.clip:
            room = self.clip / ((float(norm) if on_cpu else norm) + 1e-12)
            scale = min(1.0, room) if on_cpu else np.minimum(room, 1.0)
        hyper = dict(t=self.t, betas=self.betas, eps=self.eps, scale=scale)

        def update_dense(name, i, j):
            p, g, m, v = (arrays[name][i:j] for arrays in (params, grads, self.m, self.v))
            decay = self.weight_decay if params[name].ndim == 2 else 0.0
            adamw(p, g, m, v, lr=self.lr, decay=decay, **hyper)

        def update_rows(name, i, j):
            rows, g = grads[name].rows[i:j], grads[name].values[i:j]
            stores = (tables, self.table_m, self.table_v)
            p, m, v = (table.read(name, rows) for table in stores)
            adamw(p, g, m, v, lr=self.lr * self.table_lr, decay=0.0, **hyper)
            for table, values in zip(stores, (p, m, v), strict=True):
                table.write(name, rows, values)

        tasks = []
        for name, grad in grads.items():
            update, g = (update_rows, grad.values) if isinstance(grad, RowSparse) else (update_dense, grad)
            n = max(1, PIECE * len(g) // max(1, g.size) if on_cpu else len(g))
            tasks += [partial(update, name, i, i + n) for i in range(0, len(g), n)]
        backend.parallel(tasks, self.threads)
        return norm


def global_norm(grads):
    """The length of all gradients as one vector: the root of the sum of their squares."""
    arrays = [grad.values if isinstance(grad, RowSparse) else grad for grad in grads.values()]
    return sum(np.vdot(a, a) for a in arrays) ** 0.5
