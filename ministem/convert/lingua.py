"""Weights to and from the official STEM code (built on Meta Lingua): its names, its layouts.

Nothing is computed here, every number stays what it was, bit for bit. A torch Linear stores
(out, in) and we store (in, out), so matrices turn over; the official code keeps wq, wk and wv
apart and we keep one wqkv. The tables stand outside lm_transformer and are counted by themselves:
stem_embeddings.0 belongs to the first STEM layer, whichever that is, and a STEM layer is one that
has no w3. Left out: the optimizer's state, and our `gate` and `additive`, which are ours alone.
"""

import re

import numpy as np

from ..config import Config, shapes
from ..tables import Tables

REFUSED = "not a STEM model of the official code"
THEIRS = {  # the last word of our name -> what the official code calls it; wqkv is three of theirs
    "embed": ["tok_embeddings"],
    "norm1": ["attention_norm"],
    "wqkv": ["attention.wq", "attention.wk", "attention.wv"],
    "wo": ["attention.wo"],
    "norm2": ["ffn_norm"],
    "w_gate": ["feed_forward.w1"],
    "w_up": ["feed_forward.w3"],
    "w_down": ["feed_forward.w2"],
    "norm": ["norm"],
    "head": ["output"],
}


def layout(config):
    """-> {our name: {official name: shape}}, all that both directions need to know."""
    kv = config.n_kv_heads * config.head_dim
    dense, tables = shapes(config)
    names = {}
    for ours, shape in (tables | dense).items():
        at, _, last = ours.rpartition(".")  # "layers.1", "wqkv"
        if last == "table":
            names[ours] = {f"stem_embeddings.{len(names) - 1}.weight": shape}  # embed came first
            continue
        rows, *columns = shape if last == "embed" else shape[::-1]  # (in,out) -> (out,in)
        cut = [config.dim, kv, kv] if last == "wqkv" else [rows]  # query, key and value heads
        names[ours] = {
            f"lm_transformer.{at}.{theirs}.weight".replace("..", "."): (n, *columns)
            for theirs, n in zip(THEIRS[last], cut, strict=True)
        }
    return names


def is_table(name):
    return name == "embed" or name.endswith(".table")  # tables are (V, ·) on both sides


def matrix(state, name):
    """The three arrays the sizes are read from have to be there before anything can be compared."""
    if name not in state or state[name].ndim != 2:
        raise ValueError(f"{REFUSED}: {name} is missing or no matrix")
    return state[name]


def to_lingua(params, tables, config):
    """-> {official name: array}, contiguous copies ready for torch.from_numpy or safetensors"""
    if config.stem_layers and config.ffn not in ("stem", "dense"):
        raise ValueError(f"the official STEM code has no ffn {config.ffn!r}, only dense and stem")
    state = {}
    for ours, parts in layout(config).items():
        a = tables[ours] if is_table(ours) else params[ours].T
        cuts = np.cumsum([shape[0] for shape in parts.values()])[:-1]
        for name, part in zip(parts, np.split(a, cuts), strict=True):
            state[name] = np.array(part, order="C")
    return state


def from_lingua(state, n_heads, context, norm_eps=1e-5, rope_theta=10000.0):
    """-> params, tables, config.  Shapes say all of the config but these four arguments: a (C,C)
    matrix does not know into how many heads it is cut. Raises ValueError naming what is wrong."""
    state = {name: np.asarray(a) for name, a in state.items()}
    layers = [re.match(r"lm_transformer\.layers\.(\d+)\.", name) for name in state]
    n_layers = 1 + max((int(m[1]) for m in layers if m), default=0)
    if n_layers > 1 + len(state):  # before a list of so many is made
        raise ValueError(f"{REFUSED}: it has {len(state)} arrays, and one for layer {n_layers - 1}")
    V, C = matrix(state, "lm_transformer.tok_embeddings.weight").shape
    kv = len(matrix(state, "lm_transformer.layers.0.attention.wk.weight"))
    F = len(matrix(state, "lm_transformer.layers.0.feed_forward.w1.weight"))
    if C % n_heads:
        raise ValueError(f"width {C} does not divide into {n_heads} heads")
    w3 = "lm_transformer.layers.{}.feed_forward.w3.weight"
    stem_layers = [i for i in range(n_layers) if w3.format(i) not in state]
    sizes = dict(vocab_size=V, dim=C, n_layers=n_layers, n_heads=n_heads, ffn_dim=F)
    sizes["n_kv_heads"] = max(1, kv // (C // n_heads))
    how = dict(context=context, norm_eps=norm_eps, rope_theta=rope_theta)
    config = Config(**sizes, **how, stem_layers=stem_layers)

    names = layout(config)
    expected = {name: shape for parts in names.values() for name, shape in parts.items()}
    wrong = [f"missing {name}" for name in expected if name not in state]
    for name, a in state.items():
        if name not in expected:
            wrong.append(f"unexpected {name}")
        elif a.shape != expected[name]:
            wrong.append(f"{name} is {a.shape}, expected {expected[name]}")
    if wrong:
        raise ValueError(f"{REFUSED}: " + "; ".join(wrong))

    arrays = {ours: np.concatenate([state[n] for n in parts]) for ours, parts in names.items()}
    params = {name: np.array(a.T, order="C") for name, a in arrays.items() if not is_table(name)}
    tables = Tables({name: a for name, a in arrays.items() if is_table(name)})
    return params, tables, config
