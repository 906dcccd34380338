"""What STEM saves: products and parameter reads of the real code, counted while it runs, and the formulas.

    python results/cost.py count     exact: counts, formulas, the paper's models, training ROI
    python results/cost.py time      a dense and a STEM FFN on this machine, in milliseconds

The formulas are the paper's, in multiply-adds, for one layer and one text of L tokens: dense
4 L d^2 + 2 L^2 d + 3 L d f, STEM 2 L d f in the last term, so that f / (4 d + 2 L + 3 f) of it is saved.
"""

from dataclasses import replace
from time import perf_counter

import common
import numpy as np
from common import sig
from measures import watch

from ministem.config import Config, shapes
from ministem.knowledge import measure
from ministem.model import FFN, forward
from ministem.tables import Batch

OURS = {
    "default": Config(2048, dim=128, n_layers=4, n_heads=4, ffn_dim=384, context=64),
    "README, large": Config(8192, dim=384, n_layers=6, n_heads=6, ffn_dim=1024, context=256),
    "capacity": Config(2104, dim=64, n_layers=6, n_heads=2, ffn_dim=192, context=2),
}
PAPER = {  # shapes inferred from the parameter counts that the paper gives; see the STEM layers beside them
    "paper 350M": Config(32000, 960, 32, 15, 5, 2560, 4096),
    "paper 1B": Config(128256, 2048, 16, 32, 8, 8192, 4096),
}
STEM_LAYERS = {
    "paper 350M": {"1/3": range(1, 32, 3)[:10], "1/2": range(1, 32, 2), "full": range(1, 32)},
    "paper 1B": {"1/3": range(1, 14, 3)},
}
# what the paper reports: average downstream accuracy, and forward GFLOPs per token
REPORTED = {
    "350M dense": (49.72, 0.74), "350M STEM 1/3": (50.90, 0.70), "350M STEM 1/2": (54.20, 0.67),
    "350M STEM full": (53.43, 0.60), "1B dense": (55.82, 3.00), "1B STEM 1/3": (56.63, 2.83),
}  # fmt: skip
# savings that the paper quotes for a Qwen2.5 whose layers were all STEM: d, f, share (L = 4096)
QUOTED = {
    "1.5B": (1536, 8960, 0.217), "3B": (2048, 11008, 0.228), "7B": (3584, 18944, 0.239),
    "14B": (5120, 13824, 0.197), "32B": (5120, 27648, 0.248),
}  # fmt: skip


def watched(config, T):
    """The real forward pass over one text of T different tokens -> its notes (measures.watch).

    Nothing is computed and the weights take no memory, so the paper's models can be counted too."""
    dense, tables = shapes(config)

    def zeros(shape):
        return np.broadcast_to(np.float32(0), shape)

    params = {name: zeros(shape) for name, shape in dense.items()}
    blocks = {name: zeros((T, width)) for name, (_, width) in tables.items()}
    slot = np.arange(T)[None]
    batch = Batch(np.arange(T), {name: slot for name in tables}, blocks)
    params, batch, notes = watch(params, batch, dry=True)
    forward(params, config, batch)
    return notes


def adds(notes, layer=None):
    """Multiply-adds, of all or of one layer's weights; attention (no name) is shared out by the caller."""
    return sum(n for _, name, n, _ in notes if layer is None or (name or "").startswith(f"layers.{layer}."))


def one_layer(config, T):
    """Layer 1, dense and STEM: counted, and by the paper's formulas (which know no grouped heads)."""
    found = {}
    for kind, layers in (("dense", ()), ("stem", (1,))):
        one = replace(config, stem_layers=layers, n_kv_heads=config.n_heads)
        notes = watched(one, T)
        attention = sum(n for _, name, n, _ in notes if name is None) // config.n_layers
        reads = sum(read for what, name, _, read in notes if (name or "").startswith("layers.1."))
        found[kind] = dict(counted=adds(notes, 1) + attention, read=reads)
    d, f = config.dim, config.ffn_dim
    for kind, matrices in (("dense", 3), ("stem", 2)):
        found[kind]["formula"] = 4 * T * d * d + 2 * T * T * d + matrices * T * d * f
        assert found[kind]["counted"] == found[kind]["formula"], (config, kind, found)
    saved = 1 - found["stem"]["counted"] / found["dense"]["counted"]
    formula = f / (4 * d + 2 * T + 3 * f)
    assert abs(saved - formula) < 1e-12
    return found | dict(T=T, saved=sig(saved), formula_saved=sig(formula),
                        formula_saved_at_4096=sig(f / (4 * d + 2 * 4096 + 3 * f)))  # fmt: skip


def whole(config, layers, T):
    """The whole model, as it is (grouped heads, head), with these STEM layers against none."""
    found = {}
    for kind, stem in (("dense", ()), ("stem", tuple(layers))):
        one = replace(config, stem_layers=stem)
        n, at_T = measure.count(one), replace(one, context=T)
        notes = watched(one, T)
        assert 2 * adds(notes) == T * measure.count(at_T).flops
        one_token = watched(one, 1)  # decoding: each matrix once, one row of each table
        reads = sum(read for _, name, _, read in one_token if name)
        norms = sum(int(np.prod(s)) for s in shapes(one)[0].values() if len(s) == 1)
        assert reads + norms == n.active
        # the paper counts the token embedding as active in full, and 2 FLOPs for each active parameter
        as_reported = n.active + (one.vocab_size - 1) * one.dim
        found[kind] = dict(total=n.total, active=n.active, flops_per_token=n.flops,
                           active_as_reported=as_reported, gflops_as_reported=sig(2 * as_reported / 1e9, 4),
                           )  # fmt: skip
    dense, stem = found["dense"], found["stem"]
    saved = {name: sig(1 - stem[name] / dense[name]) for name in ("active", "flops_per_token")}
    return found | dict(stem_layers=list(layers), saved=saved)


def ffn_only(d, f):
    """Products and reads of one FFN for one token: what "3x faster" would have to come out of."""
    dense, stem = 3 * d * f, 2 * d * f
    return dict(d=d, f=f, dense=dense, stem=stem, read_by_stem=stem + f, products_ratio=dense / stem,
                reads_ratio=sig(dense / (stem + f), 6))  # fmt: skip


def model(name, config):
    """All there is to say about one model."""
    T = min(config.context, 256)  # the formulas hold at every length; 256 is quick to count
    layers = STEM_LAYERS.get(name, {"all": range(config.n_layers)})
    return dict(
        dim=config.dim, ffn_dim=config.ffn_dim, n_layers=config.n_layers, vocab_size=config.vocab_size,
        context=config.context, layer=one_layer(config, T),
        whole={share: whole(config, some, T) for share, some in layers.items()},
        ffn=ffn_only(config.dim, config.ffn_dim),
    )  # fmt: skip


def count(args):
    models = {name: model(name, config) for name, config in (OURS | PAPER).items()}
    quoted = {
        name: dict(d=d, f=f, quoted=share, formula=sig(f / (4 * d + 2 * 4096 + 3 * f), 4))
        for name, (d, f, share) in QUOTED.items()
    }
    roi = {}
    for name, (accuracy, gflops) in REPORTED.items():
        base_accuracy, base_gflops = REPORTED[name.split()[0] + " dense"]
        ratio = (accuracy / gflops) / (base_accuracy / base_gflops)
        roi[name] = dict(accuracy=accuracy, gflops=gflops, roi=sig(ratio, 3))
    return dict(models=models, quoted_savings=quoted, roi_of_the_paper=roi)


def time(args):
    """Forward and forward + backward of one FFN, dense and STEM taking turns; medians of 15."""
    rows = []
    for C, F, V, N in ((128, 384, 2048, 1024), (384, 1024, 8192, 2048), (1024, 4096, 32000, 512)):
        rng = np.random.default_rng(0)
        x, dout = (rng.standard_normal((1, N, C), dtype="float32") for _ in range(2))
        w_gate, w_up = (rng.standard_normal((C, F), dtype="float32") for _ in range(2))
        w_down, table = (rng.standard_normal((n, m), dtype="float32") for n, m in ((F, C), (V, F)))
        ids, slot = np.unique(rng.zipf(1.3, N) % V, return_inverse=True)
        slot, seconds = slot.reshape(1, N), {}
        for _ in range(16):
            for kind in ("dense", "stem"):
                ffn_forward, ffn_backward, _ = FFN[kind]
                start = perf_counter()
                weights = (w_gate, w_up, w_down) if kind == "dense" else (slot, w_gate, table[ids], w_down)
                _, cache = ffn_forward(x, *weights)
                between = perf_counter()
                ffn_backward(dout, cache)
                seconds.setdefault((kind, False), []).append(between - start)
                seconds.setdefault((kind, True), []).append(perf_counter() - start)
        ms = {key: 1e3 * float(np.median(times[1:])) for key, times in seconds.items()}
        rows.append(dict(
            C=C, F=F, V=V, positions=N, distinct=len(ids),
            forward_ms={kind: sig(ms[kind, False], 3) for kind in ("dense", "stem")},
            both_ms={kind: sig(ms[kind, True], 3) for kind in ("dense", "stem")},
            forward_ratio=sig(ms["dense", False] / ms["stem", False], 3),
            both_ratio=sig(ms["dense", True] / ms["stem", True], 3),
        ))  # fmt: skip
        print(rows[-1], flush=True)
    return dict(ideal_ratio=1.5, sizes=rows)


if __name__ == "__main__":
    common.main(__doc__, dict(cost_count=count, cost_time=time))
