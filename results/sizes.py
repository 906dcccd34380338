"""How long and how large: a training step at three sizes, each in a process of its own, one thread.

Seconds are the processor's, so that other programs count less.

    python results/sizes.py steps
"""

import json
import resource
import subprocess
import sys
import time
from dataclasses import asdict

import common
import numpy as np
from common import sig

from ministem import backend
from ministem.config import Config, init_params
from ministem.knowledge import measure
from ministem.model import loss_and_grads
from ministem.optim import AdamW

SIZES = {  # and texts per step
    "default": (Config(2048, dim=128, n_layers=4, n_heads=4, ffn_dim=384, context=64), 16),
    "large": (Config(8192, dim=384, n_layers=6, n_heads=6, ffn_dim=1024, context=256), 8),
    "the end of the road": (
        Config(16384, dim=512, n_layers=8, n_heads=8, ffn_dim=1408, context=256, stem_layers=(1, 3, 5, 7)), 8,
    ),
}  # fmt: skip


def one(name, steps=3):
    """Take a few steps on tokens as frequent as words are -> what they took. In a new process."""
    config, B = SIZES[name]
    backend.keep_freed_memory()
    params, tables = init_params(config, 0)
    optimizer, rng, seconds = AdamW(), np.random.default_rng(0), []
    with backend.blas_threads(1):
        for _ in range(steps):
            start = time.process_time()
            ids = rng.zipf(1.2, (B, config.context + 1)) % config.vocab_size
            _, grads = loss_and_grads(params, config, tables.fetch(ids[:, :-1]), ids[:, 1:])
            optimizer.step(params, tables, grads)
            seconds.append(time.process_time() - start)
    n, tokens = measure.count(config), B * config.context
    step = min(seconds[1:])
    return dict(
        config=asdict(config), batch=B, total=n.total, active=n.active, cpu_seconds_a_step=sig(step, 3),
        tokens_per_second=round(tokens / step), gflops=sig(3 * n.flops * tokens / step / 1e9, 3),
        # Chinchilla's rule of thumb: 20 tokens for each active parameter
        hours_for_20_tokens_a_parameter=sig(20 * n.active / tokens * step / 3600, 3),
        peak_mib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        kept_mib=round(n.train_bytes / 2**20),
    )  # fmt: skip


def steps(args):
    sizes = {}
    for name in SIZES:
        code = f"import json, sizes; print(json.dumps(sizes.one({name!r})))"
        done = subprocess.run([sys.executable, "-c", code], cwd=common.HERE, capture_output=True, check=True)
        sizes[name] = json.loads(done.stdout)
        print(name, {k: v for k, v in sizes[name].items() if k != "config"}, flush=True)
    return dict(sizes=sizes)


if __name__ == "__main__":
    common.main(__doc__, dict(sizes=steps))
