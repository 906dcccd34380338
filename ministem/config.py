"""The shape of a model, the names and shapes of its arrays, and the numbers it starts with.

Read it after model.py. A dense parameter and a table are told apart here, and nowhere else: `shapes` returns
two dicts. Names are those of model.py: `layers.{i}.w_gate`. Left out: a file format (run/checkpoint.py).
"""

import zlib
from dataclasses import dataclass

import numpy as np

from .model import FFN
from .tables import CHUNK, Tables


@dataclass(frozen=True)
class Config:
    """The shape of a model. Raises ValueError for shapes that make no sense."""

    vocab_size: int  # V
    dim: int = 128  # C, model width
    n_layers: int = 4  # L
    n_heads: int = 4  # H, query heads; the head width D is dim / n_heads
    n_kv_heads: int | None = None  # K, key/value heads, each shared by H/K query heads; default H
    ffn_dim: int | None = None  # F, FFN width; default 3 * dim
    context: int = 128  # the longest text the model is trained on, in tokens
    stem_layers: tuple[int, ...] | None = None  # the layers that have a table; default all
    ffn: str = "stem"  # what those layers are: stem, gate, additive (or dense: no tables at all)
    norm_eps: float = 1e-5
    rope_theta: float = 10000.0

    def __post_init__(self):
        for name in "vocab_size dim n_layers n_heads n_kv_heads ffn_dim context".split():
            size = getattr(self, name)
            if size is None and name in ("n_kv_heads", "ffn_dim"):
                size = self.n_heads if name == "n_kv_heads" else 3 * self.dim
                object.__setattr__(self, name, size)
            if type(size) is not int or size < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {size!r}")
        for name in ("norm_eps", "rope_theta"):
            number = getattr(self, name)
            if type(number) not in (int, float) or not 0 < number < float("inf"):
                raise ValueError(f"{name} must be a finite number > 0, got {number!r}")
        L, C, H = self.n_layers, self.dim, self.n_heads
        if L > 1000:
            raise ValueError(f"n_layers must be at most 1000, got {L}")
        layers = range(L) if self.stem_layers is None else self.stem_layers
        if not isinstance(layers, list | tuple | range) or any(type(i) is not int for i in layers):
            raise ValueError(f"stem_layers must be a list of whole numbers, got {layers!r}")
        layers = sorted(set(layers))
        object.__setattr__(self, "stem_layers", tuple(layers))
        K, D = self.n_kv_heads, C // H
        for nonsense, why in (
            (C % H, f"dim {C} does not divide into n_heads {H}"),
            (D % 2, f"the head width dim / n_heads = {C} / {H} = {D} must be even: RoPE turns pairs"),
            (H % K, f"n_heads {H} does not divide into n_kv_heads {K}"),
            (self.ffn not in tuple(FFN), f"ffn {self.ffn!r} is not one of {', '.join(FFN)}"),
            (any(i not in range(L) for i in layers), f"stem_layers {layers} are not all in 0..{L - 1}"),
        ):
            if nonsense:
                raise ValueError(why)

    @property
    def head_dim(self):
        return self.dim // self.n_heads

    def ffn_kind(self, i):
        """The variant of layer i: a key of FFN."""
        return self.ffn if i in self.stem_layers else "dense"


def shapes(config):
    """-> two dicts, name -> shape: the dense parameters, and the tables. Weights are (in, out)."""
    C, F, V, L = config.dim, config.ffn_dim, config.vocab_size, config.n_layers
    H, K, D = config.n_heads, config.n_kv_heads, config.head_dim
    dense, tables = {}, {"embed": (V, C)}
    for i in range(L):
        at = f"layers.{i}."
        dense |= {at + "norm1": (C,), at + "wqkv": (C, (H + 2 * K) * D), at + "wo": (H * D, C)}
        dense |= {at + "norm2": (C,)}
        for name in FFN[config.ffn_kind(i)][2]:
            if name == "table":
                tables[at + "table"] = (V, F)
            else:
                dense[at + name] = (F, C) if name == "w_down" else (C, F)
    return dense | {"norm": (C,), "head": (C, V)}, tables


def init_params(config, seed, dtype="float32"):
    """-> params (dict of dense arrays), Tables. Deterministic: same config and seed, same bytes."""
    tables = {name: np.empty(shape, dtype) for name, shape in shapes(config)[1].items()}
    for name, table in tables.items():
        for start in range(0, len(table), CHUNK):
            table[start : start + CHUNK] = initial_rows(config, seed, name, start)
    return init_dense(config, seed, dtype), Tables(tables)


def init_dense(config, seed, dtype="float32"):
    """-> params. Matrices are normal with std fan_in^-0.5; what writes into the residual stream (wo, w_down)
    is divided by sqrt(2L) more. The head starts small, so that the first loss is about ln V, and so do the
    STEM tables."""
    rng = np.random.default_rng(seed)

    def normal(shape, std):
        x = rng.standard_normal(shape, dtype="float32")  # drawn in float32, whatever dtype is asked for
        return (x * np.float32(std)).astype(dtype)

    def std(name, shape):
        if name == "head":
            return 0.02
        return shape[0] ** -0.5 / ((2 * config.n_layers) ** 0.5 if name.endswith(("wo", "w_down")) else 1)

    dense = shapes(config)[0]
    return {n: normal(s, std(n, s)) if len(s) > 1 else np.ones(s, dtype) for n, s in dense.items()}


def initial_rows(config, seed, name, start):
    """Rows start .. start+CHUNK-1 (start a multiple of CHUNK) of a new table: any part can be made without
    the rest, so a table that is larger than memory never has to be written out whole."""
    V, width = shapes(config)[1][name]
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), start])
    std = config.dim**-0.5 if name == "embed" else 0.02
    return rng.standard_normal((min(CHUNK, V - start), width), dtype="float32") * np.float32(std)
