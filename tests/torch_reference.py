"""The same model once more, in PyTorch, written to be obviously right and for nothing else.

ministem writes every backward by hand; here there is none at all, autograd does it. Nothing is
imported from ministem, nothing is fast: attention is one head at a time under an explicit mask,
rope is torch's own complex numbers, the optimizer updates a table row after row. What the two
agree on can only be wrong if both are, in the same way. Used by test_reference.py.

Weights come as NumPy arrays under ministem's names, stored (in, out). Sizes: B batch, T time,
C width, H query heads, K key/value heads, D head width, F ffn width, V vocabulary.
"""

import torch
import torch.nn.functional as F

torch.set_num_threads(1)  # arrays this small lose by being shared among cores


def to_torch(arrays, dtype):
    """Copies of a dict of NumPy arrays, as leaves that autograd gives a .grad to."""
    return {name: torch.tensor(a, dtype=dtype, requires_grad=True) for name, a in arrays.items()}


def rmsnorm(x, g, eps):
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * g


def rope(x, theta):
    """Turn features (2i, 2i+1) of position t by t * theta^(-2i/D).      x (B,T,heads,D)"""
    B, T, heads, D = x.shape
    rates = theta ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)  # (D/2,)
    angles = torch.arange(T, dtype=torch.float64)[:, None] * rates  # (T, D/2)
    turn = torch.polar(torch.ones_like(angles), angles)  # (T, D/2) complex
    pairs = torch.view_as_complex(x.reshape(B, T, heads, D // 2, 2))
    turned = pairs * turn.to(pairs.dtype)[None, :, None, :]
    return torch.view_as_real(turned).reshape(B, T, heads, D)


def attention(x, wqkv, wo, config):
    B, T, C = x.shape
    H = config.n_heads
    K = config.n_kv_heads or H
    D = C // H
    q, k, v = (x @ wqkv).split([H * D, K * D, K * D], dim=-1)
    q = rope(q.reshape(B, T, H, D), config.rope_theta)
    k = rope(k.reshape(B, T, K, D), config.rope_theta)
    v = v.reshape(B, T, K, D)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    heads = []
    for h in range(H):
        kv = h // (H // K)  # neighbouring query heads share a key/value head
        scores = q[:, :, h] @ k[:, :, kv].transpose(1, 2) / D**0.5  # (B,T,T)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        heads.append(weights @ v[:, :, kv])  # (B,T,D)
    return torch.cat(heads, -1) @ wo


def ffn(x, ids, p, layer, config):
    """The four variants side by side; `u` is the row of the token itself, whatever its context."""
    kind = config.ffn if layer in config.stem_layers else "dense"
    name = f"layers.{layer}."
    w_gate, w_up = p.get(name + "w_gate"), p.get(name + "w_up")
    u = p[name + "table"][ids] if kind != "dense" else None  # (B,T,F)
    if kind == "dense":
        h = F.silu(x @ w_gate) * (x @ w_up)
    elif kind == "stem":
        h = F.silu(x @ w_gate) * u
    elif kind == "gate":
        h = F.silu(u) * (x @ w_up)
    elif kind == "additive":
        h = F.silu(x @ w_gate) * (x @ w_up + u)
    else:
        raise ValueError(f"no such ffn: {kind}")
    return h @ p[name + "w_down"]


def logits(p, config, ids):
    """p: what to_torch made of params and tables together; ids (B,T) -> logits (B,T,V)"""
    h = p["embed"][ids]
    for i in range(config.n_layers):
        n = rmsnorm(h, p[f"layers.{i}.norm1"], config.norm_eps)
        h = h + attention(n, p[f"layers.{i}.wqkv"], p[f"layers.{i}.wo"], config)
        n = rmsnorm(h, p[f"layers.{i}.norm2"], config.norm_eps)
        h = h + ffn(n, ids, p, i, config)
    return rmsnorm(h, p["norm"], config.norm_eps) @ p["head"]


def loss_and_grads(p, config, ids, targets):
    """Mean cross-entropy as a float, and every gradient as a dense NumPy array."""
    for t in p.values():
        t.grad = None
    out = logits(p, config, ids)
    loss = F.cross_entropy(out.flatten(0, 1), targets.flatten())
    loss.backward()
    return loss.item(), {name: t.grad.numpy() for name, t in p.items()}


class Trainer:
    """One global-norm clip, torch's AdamW for the dense weights, a lazy Adam for table rows.

    Lazy: a row the batch does not use is not touched, nor are its two moments; a row it does
    use is corrected by the number of steps taken so far, not by how often it was seen.
    Weight decay: matrices yes, norms and tables no.
    """

    def __init__(
        self,
        p,
        table_names,
        lr,
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.1,
        table_lr=1.0,
        clip=1.0,
    ):
        self.p, self.lr, self.betas, self.eps, self.clip = p, lr, betas, eps, clip
        self.table_lr = table_lr
        dense = [t for name, t in p.items() if name not in table_names]
        self.dense = torch.optim.AdamW(
            [
                {"params": [t for t in dense if t.ndim == 2], "weight_decay": weight_decay},
                {"params": [t for t in dense if t.ndim == 1], "weight_decay": 0.0},
            ],
            lr=lr,
            betas=betas,
            eps=eps,
        )
        self.tables = {name: p[name] for name in table_names}
        self.m = {name: torch.zeros_like(t) for name, t in self.tables.items()}
        self.v = {name: torch.zeros_like(t) for name, t in self.tables.items()}
        self.steps = 0

    def step(self, config, ids, targets):
        loss, _ = loss_and_grads(self.p, config, ids, targets)
        with torch.no_grad():
            norm = sum((t.grad**2).sum() for t in self.p.values()) ** 0.5
            scale = min(1.0, self.clip / norm.item())
            for t in self.p.values():
                t.grad *= scale
            self.dense.step()
            self.steps += 1
            b1, b2 = self.betas
            for name, table in self.tables.items():
                m, v = self.m[name], self.v[name]
                for row in sorted(set(ids.flatten().tolist())):
                    g = table.grad[row]
                    m[row] = b1 * m[row] + (1 - b1) * g
                    v[row] = b2 * v[row] + (1 - b2) * g**2
                    m_hat = m[row] / (1 - b1**self.steps)
                    v_hat = v[row] / (1 - b2**self.steps)
                    table[row] -= self.lr * self.table_lr * m_hat / (v_hat.sqrt() + self.eps)
        return loss, norm.item()
