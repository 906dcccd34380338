"""The model: every layer as a forward/backward pair, then the whole transformer made of them.

Read this file first, from the top. Each layer's `x_forward` returns `out, cache`; the `x_backward` under it
takes `dout, cache` and returns the gradients in the order of forward's float arguments. `dname` is always
the gradient of the loss with respect to `name`, and has its shape. Nothing is written into an argument, so
a backward pass may be called twice.

What is left to other files: where table rows come from (tables.py), how an update is made (optim.py), and
what depends on the device (backend.py: row_dot and row_sum are sums over the last axis, sum_rows is the
scatter-add, parallel runs functions on several cores). There is no dropout, no bias, no autograd. The code
is plain NumPy and makes arrays only from its inputs, so that it can run on CuPy arrays too.

Size letters: B batch · T time · C model width · H query heads · K key/value heads · G = H/K query heads per
key/value head · D head width · F FFN width · V vocabulary · L layers · U distinct tokens in the batch ·
S keys seen so far (S = T unless there is a KV cache).
"""

from functools import partial
from itertools import zip_longest

import numpy as np

from .backend import block_size, parallel, row_dot, row_max, row_sum, sum_rows
from .tables import RowSparse, check_ids

# ------------------------------------------------------------------------------------------ linear


def flat(x):
    """(B,T,·) -> (B*T,·): one row per position, so that a product is one BLAS call."""
    return x.reshape(-1, x.shape[-1])


def linear_forward(x, w):
    """out = x W          x (B,T,I), w (I,O) -> out (B,T,O)"""
    return (flat(x) @ w).reshape(*x.shape[:-1], w.shape[1]), (x, w)


def linear_backward(dout, cache):
    """dout (B,T,O) -> dx (B,T,I), dw (I,O)"""
    x, w = cache
    dx = (flat(dout) @ w.T).reshape(x.shape)
    return dx, flat(x).T @ flat(dout)


# ----------------------------------------------------------------------------------------- RMSNorm


def rmsnorm_forward(x, g, eps=1e-5):
    """out = x / rms(x) * g          x (B,T,C), g (C,) -> out (B,T,C)"""
    r = (row_dot(x, x) / x.shape[-1] + eps) ** -0.5  # (B,T,1)  one scale per position
    n = x * r  # (B,T,C)  every position now has length sqrt(C)
    return n * g, (n, r, g)


def rmsnorm_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dg (C,)"""
    n, r, g = cache
    dg = flat(dout * n).sum(0)  # forward: out = n * g
    dn = dout * g
    # the length of n is fixed, so the part of dn along n cannot change the loss: project it out
    dx = r * (dn - n * (row_dot(dn, n) / n.shape[-1]))
    return dx, dg


# -------------------------------------------------------------------------------------------- RoPE


def rope_rotations(start, T, D, theta, like):
    """How far to turn each pair of features at positions start .. start+T-1.

    -> (T,D/2) complex, on `like`'s device and of its precision: exp(i * position * theta^(-2j/D))"""
    position = np.arange(start, start + T, dtype="float64", like=like)
    speed = theta ** (-np.arange(0, D, 2, dtype="float64", like=like) / D)  # a radian a step to almost none
    return np.exp(1j * position[:, None] * speed).astype(_complex(like))


def rope_forward(x, rot):
    """Features 2j and 2j+1 are one complex number; position t turns it by an angle proportional to t, so
    that a query times a key depends on how far apart they are.  x (B,T,N,D), rot (T,D/2) -> (B,T,N,D)"""
    return (x.view(_complex(x)) * rot[:, None]).view(x.dtype), rot


def rope_backward(dout, rot):
    """A rotation is undone by turning back: multiply by the conjugate.  (B,T,N,D) -> (B,T,N,D)"""
    return (dout.view(_complex(dout)) * rot.conj()[:, None]).view(dout.dtype)


def _complex(x):
    return "complex64" if x.dtype == "float32" else "complex128"


# --------------------------------------------------------------------------------------- attention


def causal_mask(T, like):
    """(T,T): 0 where a query may look, -inf at the keys that come after it."""
    return np.triu(np.full_like(like, -np.inf, shape=(T, T)), 1)


def split_heads(x, K):
    """(B,T,H,D) -> (B,K,T*G,D): the G query heads that share a key head become one longer list of queries,
    those of position 0 first."""
    B, T, H, D = x.shape
    return x.reshape(B, T, K, H // K, D).transpose(0, 2, 1, 3, 4).reshape(B, K, -1, D)


def join_heads(x, T):
    """(B,K,T*G,D) -> (B,T,H,D): undoes split_heads."""
    B, K, _, D = x.shape
    return x.reshape(B, K, T, -1, D).transpose(0, 2, 1, 3, 4).reshape(B, T, -1, D)


KEPT = 4  # blocks of scores that wait for the backward pass: all of a text of 256


def query_blocks(T, S, G, mask):
    """T queries, the last of S positions, in blocks of Q = len(mask) or fewer -> for each block: its rows in
    (B,K,T*G,·), how many keys it sees, and the mask of the last of these, which are its own."""
    stops = [(i, min(i + len(mask), T)) for i in range(0, T, len(mask))]
    return [(slice(G * i, G * j), S - T + j, mask[: j - i, : j - i]) for i, j in stops]


def exp_scores(q, k, mask):
    """Softmax but for its division: softmax(q k', causal) = e / z.

    q (B,K,Q*G,D), k (B,K,S,D), mask (Q,Q) -> e (B,K,Q*G,S), z (B,K,Q*G,1)"""
    e, Q = q @ k.swapaxes(2, 3), len(mask)  # the scores ...
    own = e.reshape(*e.shape[:2], Q, -1, e.shape[3])[..., -Q:]  # (B,K,Q,G,Q)  a view of e
    own += mask[:, None]
    e -= row_max(e)
    np.exp(e, out=e)  # ... and from here their exponentials
    return e, row_sum(e)


def attention_forward(x, wqkv, wo, rot, mask, n_kv_heads, extend=None):
    """out = softmax(rope(q) rope(k)' / sqrt(D), causal) v Wo,  where q, k, v = x Wqkv

    Queries go in blocks, each with the keys up to its own end: what lies in the future is not computed, and
    memory grows with T, not T*T. It is FlashAttention's tiling, but of queries alone: a block sees all of
    its keys at once, so its softmax is the usual one.
    x (B,T,C), wqkv (C,(H+2K)*D), wo (H*D,C), rot (T,D/2), mask (Q,Q) of a block -> out (B,T,C)
    `extend` puts this call's keys and values behind those of earlier calls (KVCache.extend)."""
    (B, T, _), K, D = x.shape, n_kv_heads, 2 * rot.shape[1]
    H = len(wo) // D
    qkv, proj = linear_forward(x, wqkv)
    qkv = qkv.reshape(B, T, H + 2 * K, D)
    qk, _ = rope_forward(qkv[:, :, : H + K], rot)
    q = split_heads(qk[:, :, :H] * D**-0.5, K)  # (B,K,T*G,D)
    k = split_heads(qk[:, :, H:], K)  # (B,K,T,D)
    v = split_heads(qkv[:, :, H + K :], K)  # (B,K,T,D)
    if extend:
        k, v = extend(k, v)  # (B,K,S,D)
    y, kept = np.empty_like(q), []
    for rows, seen, own in query_blocks(T, k.shape[2], H // K, mask):
        e, z = exp_scores(q[:, :, rows], k[:, :, :seen], own)
        np.divide(e @ v[:, :, :seen], z, out=y[:, :, rows])
        kept = [*kept, (e, z)][-KEPT:]
    joined = join_heads(y, T).reshape(B, T, H * D)
    out, merge = linear_forward(joined, wo)
    return out, (q, k, v, y, kept, mask, rot, proj, merge)


def attention_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dwqkv (C,(H+2K)*D), dwo (H*D,C)"""
    q, k, v, y, kept, mask, rot, proj, merge = cache
    (B, T, _), (K, S, D) = dout.shape, k.shape[1:]
    djoined, dwo = linear_backward(dout, merge)
    dy = split_heads(djoined.reshape(B, T, -1, D), K)  # (B,K,T*G,D)
    dq = np.empty_like(q)
    blocks = query_blocks(T, S, q.shape[2] // T, mask)
    for (rows, seen, own), scores in zip_longest(blocks[::-1], kept[::-1]):  # from the last to the first
        qb, kb, vb, yb = q[:, :, rows], k[:, :, :seen], v[:, :, :seen], y[:, :, rows]
        e, z = scores or exp_scores(qb, kb, own)  # again, if not kept: those of all blocks would take (T,S)
        dyb = dy[:, :, rows] / z  # p = e / z, and dy is smaller than e
        dvb = e.swapaxes(2, 3) @ dyb  # forward: y = p @ v;  sums over the G heads that share v
        ds = dyb @ vb.swapaxes(2, 3)  # (B,K,Q*G,seen)  dp / z; softmax's backward makes it ds in place:
        ds -= row_dot(dyb, yb)  # ds = p * (dp - sum(dp * p)), and that sum is dy . y, a shorter one
        ds *= e
        np.multiply(ds @ kb, D**-0.5, out=dq[:, :, rows])  # forward: q was scaled by D**-0.5 ...
        dkb = ds.swapaxes(2, 3) @ qb  # ... and this q has the scale in it
        if seen == S:
            dk, dv = dkb, dvb
        else:
            dk[:, :, :seen] += dkb  # a key is seen by several blocks: their gradients add
            dv[:, :, :seen] += dvb
    dk, dv = dk[:, :, S - T :], dv[:, :, S - T :]  # the keys of earlier calls are constants here
    dq, dk, dv = (join_heads(d, T) for d in (dq, dk, dv))  # (B,T,H,D), (B,T,K,D) twice
    dqk = rope_backward(np.concatenate([dq, dk], axis=2), rot)
    dqkv = np.concatenate([dqk, dv], axis=2).reshape(B, T, -1)
    dx, dwqkv = linear_backward(dqkv, proj)
    return dx, dwqkv, dwo


# --------------------------------------------------------- the FFN, in four variants; `stem` is the paper


def glu_forward(a, u):
    """h = silu(a) * u: the gate a decides how much of u passes.  a (B,T,F), u (B,T,F) -> h (B,T,F)"""
    s = np.tanh(0.5 * a)  # sigmoid(a) = (1 + tanh(a/2)) / 2, which no a can overflow
    s *= 0.5
    s += 0.5
    return a * s * u, (a, s, u)


def glu_backward(dh, cache):
    """dh (B,T,F) -> da (B,T,F), du (B,T,F)"""
    a, s, u = cache
    g = a * s  # silu(a), recomputed: cheaper than keeping (B,T,F)
    da = dh * u * (s + g * (1 - s))  # silu'(a) = s + a s (1 - s)
    return da, dh * g


def dense_ffn_forward(x, w_gate, w_up, w_down):
    """SwiGLU, the baseline: out = (silu(x Wg) * (x Wu)) Wd

    x (B,T,C), w_gate (C,F), w_up (C,F), w_down (F,C) -> out (B,T,C)"""
    a, gate = linear_forward(x, w_gate)
    u, up = linear_forward(x, w_up)
    h, glu = glu_forward(a, u)
    out, down = linear_forward(h, w_down)
    return out, (gate, up, glu, down)


def dense_ffn_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dw_gate (C,F), dw_up (C,F), dw_down (F,C)"""
    gate, up, glu, down = cache
    dh, dw_down = linear_backward(dout, down)
    da, du = glu_backward(dh, glu)
    dx_up, dw_up = linear_backward(du, up)
    dx_gate, dw_gate = linear_backward(da, gate)
    return dx_gate + dx_up, dw_gate, dw_up, dw_down  # x went both ways: its gradients add


def stem_ffn_forward(x, slot, w_gate, block, w_down):
    """STEM: out = (silu(x Wg) * block[slot]) Wd          block: the table rows that this batch uses

    For ids [7,3,7] block has rows 3 and 7 of the table, and slot is [1,0,1].
    x (B,T,C), slot (B,T) int, w_gate (C,F), block (U,F), w_down (F,C) -> out (B,T,C)"""
    a, gate = linear_forward(x, w_gate)
    u = block[slot]  # (B,T,F)  STEM: the up-projection is a lookup, not x @ w_up
    h, glu = glu_forward(a, u)
    out, down = linear_forward(h, w_down)
    return out, (slot, len(block), gate, glu, down)


def stem_ffn_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dw_gate (C,F), dblock (U,F), dw_down (F,C)"""
    slot, U, gate, glu, down = cache
    dh, dw_down = linear_backward(dout, down)
    da, du = glu_backward(dh, glu)
    dblock = sum_rows(du, slot, U)  # the scatter-add; x gets nothing from u: u saw only ids
    dx, dw_gate = linear_backward(da, gate)
    return dx, dw_gate, dblock, dw_down


def gate_ffn_forward(x, slot, block, w_up, w_down):
    """Ablation, the table in the gate's place: out = (silu(block[slot]) * (x Wu)) Wd
    For a fixed token this is linear in x: nothing looks at the context and decides.

    x (B,T,C), slot (B,T) int, block (U,F), w_up (C,F), w_down (F,C) -> out (B,T,C)"""
    u, up = linear_forward(x, w_up)
    h, glu = glu_forward(block[slot], u)
    out, down = linear_forward(h, w_down)
    return out, (slot, len(block), up, glu, down)


def gate_ffn_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dblock (U,F), dw_up (C,F), dw_down (F,C)"""
    slot, U, up, glu, down = cache
    dh, dw_down = linear_backward(dout, down)
    da, du = glu_backward(dh, glu)
    dx, dw_up = linear_backward(du, up)
    return dx, sum_rows(da, slot, U), dw_up, dw_down


def additive_ffn_forward(x, slot, w_gate, w_up, block, w_down):
    """Ablation, the paper's dagger variant: out = (silu(x Wg) * (x Wu + block[slot])) Wd

    x (B,T,C), slot (B,T) int, w_gate (C,F), w_up (C,F), block (U,F), w_down (F,C) -> out (B,T,C)"""
    a, gate = linear_forward(x, w_gate)
    u, up = linear_forward(x, w_up)
    h, glu = glu_forward(a, u + block[slot])
    out, down = linear_forward(h, w_down)
    return out, (slot, len(block), gate, up, glu, down)


def additive_ffn_backward(dout, cache):
    """dout (B,T,C) -> dx (B,T,C), dw_gate (C,F), dw_up (C,F), dblock (U,F), dw_down (F,C)"""
    slot, U, gate, up, glu, down = cache
    dh, dw_down = linear_backward(dout, down)
    da, du = glu_backward(dh, glu)
    dx_up, dw_up = linear_backward(du, up)
    dx_gate, dw_gate = linear_backward(da, gate)
    return dx_gate + dx_up, dw_gate, dw_up, sum_rows(du, slot, U), dw_down


# kind -> forward, backward, and the names of the arrays they take after x, in order
FFN = {
    "dense": (dense_ffn_forward, dense_ffn_backward, ("w_gate", "w_up", "w_down")),
    "stem": (stem_ffn_forward, stem_ffn_backward, ("w_gate", "table", "w_down")),
    "gate": (gate_ffn_forward, gate_ffn_backward, ("table", "w_up", "w_down")),
    "additive": (additive_ffn_forward, additive_ffn_backward, ("w_gate", "w_up", "table", "w_down")),
}

# ------------------------------------------------------------------ output head and cross-entropy, as one


def head_loss_forward(x, head, targets, chunk=512, grads=True):
    """loss = mean over positions of -log softmax(x head)[target]

    x (B,T,C), head (C,V), targets (B,T) int -> loss (). The (B*T,V) logits are never all in memory: each
    chunk of positions turns its logits into its share of dx and dhead (unless grads=False), and forgets
    them."""
    xs, targets = flat(x), targets.reshape(-1, 1)
    N = len(xs)
    loss = np.zeros_like(x, shape=())
    dx, dhead = (np.empty_like(xs), np.zeros_like(head)) if grads else (None, None)
    for i in range(0, N, chunk):
        xc, t = xs[i : i + chunk], targets[i : i + chunk]  # (n,C), (n,1)
        e = xc @ head  # (n,V)  the logits ...
        e -= row_max(e)
        picked = np.take_along_axis(e, t, 1)  # (n,1)  the target's logit
        np.exp(e, out=e)  # ... and from here their exponentials
        z = row_sum(e)  # (n,1)
        loss += (np.log(z) - picked).sum()
        if not grads:
            continue
        # dlogits = (e / z - onehot(target)) / N. The factor 1/(z N) is one number per position, so it
        # goes on the small arrays beside e instead of on e itself:
        np.put_along_axis(e, t, np.take_along_axis(e, t, 1) - z, 1)
        dx[i : i + chunk] = (e @ head.T) / (z * N)
        dhead += (xc / (z * N)).T @ e
        del e  # or it would still be there beside the next chunk's
    return loss / N, (dx.reshape(x.shape), dhead) if grads else None


def head_loss_backward(dloss, cache):
    """dloss () -> dx (B,T,C), dhead (C,V)"""
    dx, dhead = cache
    return dloss * dx, dloss * dhead


# ------------------------------------------------------------------------------------- the transformer


def block_forward(h, i, params, config, batch, rot, mask, extend=None):
    """h = h + attention(rmsnorm(h)), then h = h + ffn(rmsnorm(h))          h (B,T,C) -> (B,T,C)"""
    at, eps = f"layers.{i}.", config.norm_eps
    n, norm1 = rmsnorm_forward(h, params[at + "norm1"], eps)
    wqkv, wo = params[at + "wqkv"], params[at + "wo"]
    out, attn = attention_forward(n, wqkv, wo, rot, mask, config.n_kv_heads, extend)
    h = h + out
    n, norm2 = rmsnorm_forward(h, params[at + "norm2"], eps)
    forward, _, names = FFN[config.ffn_kind(i)]
    weights = [batch.blocks[at + name] if name == "table" else params[at + name] for name in names]
    slot = [batch.slots[at + "table"]] if "table" in names else []
    out, ffn = forward(n, *slot, *weights)
    return h + out, (norm1, attn, norm2, ffn)


def block_backward(dh, i, config, cache):
    """dh (B,T,C) -> dh (B,T,C), and a dict with the gradient of each of the layer's arrays"""
    norm1, attn, norm2, ffn = cache
    at, (_, backward, names) = f"layers.{i}.", FFN[config.ffn_kind(i)]
    dn, *dweights = backward(dh, ffn)
    grads = {at + name: dw for name, dw in zip(names, dweights, strict=True)}
    dn, grads[at + "norm2"] = rmsnorm_backward(dn, norm2)
    dh = dh + dn  # residual: h went into the norm and straight on
    dn, grads[at + "wqkv"], grads[at + "wo"] = attention_backward(dh, attn)
    dn, grads[at + "norm1"] = rmsnorm_backward(dn, norm1)
    return dh + dn, grads


def trunk_forward(params, config, batch, kv_cache=None):
    """Everything below the output head.  batch (of tables.fetch) with B,T positions -> x (B,T,C)"""
    block, slot = batch.blocks["embed"], batch.slots["embed"]
    h = block[slot]  # (B,T,C)  the token embedding is one more table
    T, start = slot.shape[1], kv_cache.length if kv_cache else 0
    if kv_cache:  # which has these for a whole context
        rot, mask = kv_cache.rot[start : start + T], kv_cache.mask
    else:
        rot = rope_rotations(0, T, config.head_dim, config.rope_theta, like=h)
        mask = causal_mask(block_size(T, h), like=h)
    layers = []
    for i in range(config.n_layers):
        extend = kv_cache.extend(i) if kv_cache else None
        h, cache = block_forward(h, i, params, config, batch, rot, mask, extend)
        if not kv_cache:  # with one we are generating: no backward will come that needs the layer's cache
            layers.append(cache)
    x, norm = rmsnorm_forward(h, params["norm"], config.norm_eps)
    if kv_cache:
        kv_cache.length += T
    return x, (slot, len(block), layers, norm)


def trunk_backward(dx, config, cache):
    """dx (B,T,C) -> a dict with the gradient of every parameter and table block below the head"""
    slot, U, layers, norm = cache
    grads = {}
    dh, grads["norm"] = rmsnorm_backward(dx, norm)
    for i in reversed(range(config.n_layers)):
        dh, layer_grads = block_backward(dh, i, config, layers[i])
        grads |= layer_grads
    grads["embed"] = sum_rows(dh, slot, U)
    return grads


def forward(params, config, batch, kv_cache=None):
    """Inference: logits (B,T,V) at all positions. With a KVCache the batch continues what is in it."""
    x, _ = trunk_forward(params, config, batch, kv_cache)
    return linear_forward(x, params["head"])[0]


def loss_and_grads(params, config, batch, targets, threads=1):
    """Mean cross-entropy in nats per token, and its gradients.

    batch: tables.fetch(ids) for ids (B,T); targets (B,T) int, on the model's device.
    -> loss (), grads: an array for each dense parameter, a RowSparse for each table.
    threads > 1 splits the batch: NumPy lets go of the interpreter lock inside every operation, so each
    part runs on its own core, and the parts' gradients are added in order (same threads, same bits)."""
    B, n = len(targets), min(threads, len(targets))
    if targets.shape != batch.slots["embed"].shape:
        raise ValueError(f"targets {targets.shape} do not fit ids {batch.slots['embed'].shape}")
    if isinstance(targets, np.ndarray):  # elsewhere, looking at them would make the step wait for the device
        check_ids(targets, config.vocab_size)

    def part(j):
        start, stop = B * j // n, B * (j + 1) // n
        x, cache = trunk_forward(params, config, batch.part(start, stop))
        loss, head = head_loss_forward(x, params["head"], targets[start:stop])
        weight = (stop - start) / B  # the batch's mean is the weighted mean of the parts' means
        dx, dhead = head_loss_backward(weight, head)
        return loss * weight, trunk_backward(dx, config, cache) | {"head": dhead}

    (loss, grads), *others = parallel([partial(part, j) for j in range(n)], threads)
    loss = sum((other for other, _ in others), start=loss)

    def add(name):
        for _, other in others:
            grads[name] += other[name]

    parallel([partial(add, name) for name in grads], threads)
    for name, block in batch.blocks.items():
        grads[name] = RowSparse(batch.rows, grads[name], (config.vocab_size, block.shape[1]))
    return loss, grads
