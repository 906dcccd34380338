"""Weights to and from the official STEM code (built on Meta Lingua): its names, its layouts.

Nothing is computed here, every number stays what it was, bit for bit. A torch Linear stores
(out, in) and we store (in, out), so matrices turn over; the official code keeps wq, wk and wv
apart and we keep one wqkv. The tables stand outside lm_transformer and are counted by themselves:
stem_embeddings.0 belongs to the first STEM layer, whichever that is, and a STEM layer is one that
has no w3. Left out: the optimizer's state, and our `gate` and `additive`, which are ours alone.
"""

import re

import numpy as np

from ministem.model import Config
from ministem.tables import Tables

REFUSED = "not a STEM model of the official code"


def layout(config):
    """{our name: {official name: shape}}: all that both directions need to know."""
    V, C, F = config.vocab_size, config.dim, config.ffn_dim
    kv = config.n_kv_heads * (C // config.n_heads)
    stem_layers = sorted(config.stem_layers) if config.ffn == "stem" else []
    names = {"embed": {"tok_embeddings": (V, C)}}
    for i in range(config.n_layers):
        ours, theirs = f"layers.{i}.", f"layers.{i}.feed_forward."
        attention = f"layers.{i}.attention."
        names |= {
            ours + "norm1": {f"layers.{i}.attention_norm": (C,)},
            ours + "wqkv": {
                attention + "wq": (C, C),  # the rows of wqkv.T: query heads,
                attention + "wk": (kv, C),  # then key heads,
                attention + "wv": (kv, C),
            },  # then value heads
            ours + "wo": {attention + "wo": (C, C)},
            ours + "norm2": {f"layers.{i}.ffn_norm": (C,)},
            ours + "w_gate": {theirs + "w1": (F, C)},
            ours + "w_down": {theirs + "w2": (C, F)},
        }
        if i not in stem_layers:
            names[ours + "w_up"] = {theirs + "w3": (F, C)}
    names |= {"norm": {"norm": (C,)}, "head": {"output": (V, C)}}
    names = {
        ours: {f"lm_transformer.{name}.weight": shape for name, shape in parts.items()}
        for ours, parts in names.items()
    }
    return names | {
        f"layers.{i}.table": {f"stem_embeddings.{j}.weight": (V, F)}
        for j, i in enumerate(stem_layers)
    }


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
    """-> params, tables, config.  Shapes say all of the config except these four arguments:
    a (C,C) matrix does not know into how many heads it is cut, nor a weight how it is used."""
    state = {name: np.asarray(a) for name, a in state.items()}
    layers = [re.match(r"lm_transformer\.layers\.(\d+)\.", name) for name in state]
    n_layers = 1 + max((int(m[1]) for m in layers if m), default=0)
    V, C = matrix(state, "lm_transformer.tok_embeddings.weight").shape
    kv = len(matrix(state, "lm_transformer.layers.0.attention.wk.weight"))
    F = len(matrix(state, "lm_transformer.layers.0.feed_forward.w1.weight"))
    if C % n_heads:
        raise ValueError(f"width {C} does not divide into {n_heads} heads")
    w3 = "lm_transformer.layers.{}.feed_forward.w3.weight"
    config = Config(
        vocab_size=V,
        dim=C,
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=max(1, kv // (C // n_heads)),
        ffn_dim=F,
        context=context,
        stem_layers=tuple(i for i in range(n_layers) if w3.format(i) not in state),
        ffn="stem",
        norm_eps=norm_eps,
        rope_theta=rope_theta,
    )

    names = layout(config)
    shapes = {name: shape for parts in names.values() for name, shape in parts.items()}
    wrong = [f"missing {name}" for name in shapes if name not in state]
    wrong += [f"unexpected {name}" for name in state if name not in shapes]
    wrong += [
        f"{name} is {state[name].shape}, expected {shape}"
        for name, shape in shapes.items()
        if name in state and state[name].shape != shape
    ]
    if wrong:
        raise ValueError(f"{REFUSED}: " + "; ".join(wrong))

    arrays = {
        ours: np.concatenate([state[name] for name in parts]) for ours, parts in names.items()
    }
    params = {name: np.array(a.T, order="C") for name, a in arrays.items() if not is_table(name)}
    tables = Tables({name: a for name, a in arrays.items() if is_table(name)})
    return params, tables, config
