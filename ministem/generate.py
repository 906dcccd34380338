"""Sampling: tokens one at a time, with the keys and values of earlier positions kept (the KV cache).

The text is the same as if everything were computed anew for every token. When the model's context is
full, it goes on with the newest half of it. Turning ids into characters is tokenizer.StreamDecoder's work.
"""

import numpy as np

from .backend import block_size, download
from .model import causal_mask, linear_forward, rope_rotations, trunk_forward


class KVCache:
    """Keys and values of every layer for the positions already seen, so that a new token costs one
    position. Holds up to `context` positions of B texts: two arrays (L,B,K,context,D)."""

    def __init__(self, config, B, like):
        shape = (config.n_layers, B, config.n_kv_heads, config.context, config.head_dim)
        self.keys, self.values = np.empty_like(like, shape=shape), np.empty_like(like, shape=shape)
        self.rot = rope_rotations(0, config.context, config.head_dim, config.rope_theta, like)
        self.mask = causal_mask(block_size(config.context, like), like)
        self.length = 0  # positions filled; trunk_forward moves it when all layers have added theirs

    def extend(self, i):
        """-> a function for layer i: k, v (B,K,T,D) of the new positions -> k, v (B,K,S,D) of all"""

        def append(k, v):
            S = self.length + k.shape[2]
            self.keys[i, :, :, self.length : S], self.values[i, :, :, self.length : S] = k, v
            return self.keys[i, :, :, :S], self.values[i, :, :, :S]

        return append


def generate(params, tables, config, ids, max_new_tokens, temperature=1.0, top_k=None, top_p=None,
             seed=0, cached=True, override=None):  # fmt: skip
    """Continue ids (a non-empty list) -> yields up to max_new_tokens new ids, one by one.

    temperature 0 takes the likeliest token each time. top_k keeps the k likeliest tokens; top_p the
    smallest set of likeliest tokens whose probabilities reach top_p. Same seed, same ids.
    cached=False computes every position anew for each token: slow, and the test that the cache is right.
    override: a function (batch, place of its first token in the text) -> batch, called on what is fetched
    (edit.while_generating)."""
    if not len(ids):
        raise ValueError("nothing to continue: the prompt has no tokens")
    rng, ids, cache, cache_start = np.random.default_rng(seed), list(ids), None, None
    for _ in range(max_new_tokens):
        start, new = window_start(len(ids), config.context), ids[-1:]
        if start != cache_start or not cached:
            cache, cache_start, new = KVCache(config, 1, like=params["head"]), start, ids[start:]
        batch = tables.fetch([new])
        if override:
            batch = override(batch, len(ids) - len(new))
        x, _ = trunk_forward(params, config, batch, cache)
        logits = download(linear_forward(x[:, -1:], params["head"])[0])[0, 0]
        ids.append(sample(logits, temperature, top_k, top_p, rng))
        yield ids[-1]


def window_start(n, context):
    """Where the window that predicts token n begins: 0 until the context is full, then each time it is
    full, half a context further on."""
    if n <= context:
        return 0
    step = max(1, context // 2)
    return -(-(n - context) // step) * step


def sample(logits, temperature, top_k, top_p, rng):
    """logits (V,) -> one id. Raises ValueError for settings outside their range."""
    if not temperature >= 0:
        raise ValueError(f"temperature must be >= 0, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ValueError(f"top_k must be >= 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p must be > 0 and <= 1, got {top_p}")
    if not np.isfinite(logits.max()):
        raise ValueError("the model's scores are not finite: its training, a patch or an edit spoilt them")
    if temperature == 0:
        return int(logits.argmax())
    # the ids to choose from stay in their own order: so a filter that keeps them all changes no draw
    kept = np.arange(len(logits))
    if top_k is not None and top_k < len(logits):
        kept = np.flatnonzero(logits >= np.partition(logits, -top_k)[-top_k])  # no need to sort all
        kept = np.sort(kept[np.argsort(-logits[kept], kind="stable")][:top_k])  # of equals, the smaller ids
    with np.errstate(over="ignore"):  # a tiny temperature makes -inf of them, and that a chance of 0
        p = np.exp((logits[kept].astype("float64") - logits.max()) / temperature)
    if top_p is not None and top_p < 1:
        order = np.argsort(-logits[kept], kind="stable")  # likeliest first
        reached = np.cumsum(p[order])
        # the token that crosses top_p stays: keep those before which less than top_p was reached
        order = np.sort(order[reached - p[order] < top_p * reached[-1]])
        kept, p = kept[order], p[order]
    reached = np.cumsum(p)
    return int(kept[np.searchsorted(reached, rng.random() * reached[-1], side="right")])
