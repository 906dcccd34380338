"""The same model as a good PyTorch user would write it: the opponent in the speed benchmarks.

Fused everything PyTorch offers on a CPU: one qkv Linear, scaled_dot_product_attention, F.rms_norm,
F.cross_entropy, fused AdamW. Tables are nn.Embedding: dense (every row gets a gradient and moves)
or sparse=True with SparseAdam. It starts from ministem's own weights, so that the losses can be
compared. (tests/torch_reference.py is the slow and plain one, for checking gradients.)
"""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.H, self.K = config.n_heads, config.n_kv_heads or config.n_heads
        self.D = config.dim // self.H
        self.wqkv = nn.Linear(config.dim, (self.H + 2 * self.K) * self.D, bias=False)
        self.wo = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, x, turn):
        B, T, C = x.shape
        H, K, D = self.H, self.K, self.D
        qk, v = self.wqkv(x).view(B, T, H + 2 * K, D).split([H + K, K], dim=2)
        qk = rope(qk, turn)  # queries and keys turn together
        q, k, v = (a.transpose(1, 2) for a in (qk[:, :, :H], qk[:, :, H:], v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=K != H)
        return self.wo(out.transpose(1, 2).reshape(B, T, C))


def rope(x, turn):
    """x (B,T,heads,D) with features 2i and 2i+1 one complex number; turn: see Model.rotation"""
    pairs = x.reshape(*x.shape[:-1], -1, 2)
    if turn.is_complex():
        return torch.view_as_real(torch.view_as_complex(pairs) * turn).flatten(-2)
    cos, sin = turn  # torch.compile knows no complex
    a, b = pairs.unbind(-1)
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class FFN(nn.Module):
    def __init__(self, config, kind, sparse):
        super().__init__()
        C, width = config.dim, config.ffn_dim
        self.kind = kind
        self.w_gate = nn.Linear(C, width, bias=False) if kind != "gate" else None
        self.w_up = nn.Linear(C, width, bias=False) if kind != "stem" else None
        self.w_down = nn.Linear(width, C, bias=False)
        self.table = (
            nn.Embedding(config.vocab_size, width, sparse=sparse) if kind != "dense" else None
        )

    def forward(self, x, ids):
        if self.kind == "dense":
            return self.w_down(F.silu(self.w_gate(x)) * self.w_up(x))
        u = self.table(ids)
        if self.kind == "stem":
            return self.w_down(F.silu(self.w_gate(x)) * u)
        if self.kind == "gate":
            return self.w_down(F.silu(u) * self.w_up(x))
        return self.w_down(F.silu(self.w_gate(x)) * (self.w_up(x) + u))


class Block(nn.Module):
    def __init__(self, config, kind, sparse):
        super().__init__()
        self.norm1 = nn.Parameter(torch.ones(config.dim))
        self.norm2 = nn.Parameter(torch.ones(config.dim))
        self.attention, self.ffn = Attention(config), FFN(config, kind, sparse)
        self.eps = config.norm_eps

    def forward(self, h, ids, turn):
        h = h + self.attention(F.rms_norm(h, self.norm1.shape, self.norm1, self.eps), turn)
        return h + self.ffn(F.rms_norm(h, self.norm2.shape, self.norm2, self.eps), ids)


class Model(nn.Module):
    """config: anything with ministem.Config's fields. forward(ids, targets) is the mean loss."""

    def __init__(self, config, sparse=False, complex_rope=True):
        super().__init__()
        self.eps = config.norm_eps
        self.embed = nn.Embedding(config.vocab_size, config.dim, sparse=sparse)
        self.layers = nn.ModuleList(
            Block(config, config.ffn if i in config.stem_layers else "dense", sparse)
            for i in range(config.n_layers)
        )
        self.norm = nn.Parameter(torch.ones(config.dim))
        self.head = nn.Linear(config.dim, config.vocab_size, bias=False)
        D = config.dim // config.n_heads
        rates = config.rope_theta ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
        angles = (torch.arange(config.context)[:, None] * rates)[:, None]  # (T, 1, D/2)
        turn = (
            torch.polar(torch.ones_like(angles), angles).to(torch.complex64)
            if complex_rope
            else torch.stack([angles.cos(), angles.sin()]).float()
        )
        self.register_buffer("turn", turn, persistent=False)

    def logits(self, ids):
        T = ids.shape[1]
        turn = self.turn[:T] if self.turn.is_complex() else self.turn[:, :T]
        h = self.embed(ids)
        for layer in self.layers:
            h = layer(h, ids, turn)
        return self.head(F.rms_norm(h, self.norm.shape, self.norm, self.eps))

    def forward(self, ids, targets):
        return F.cross_entropy(self.logits(ids).flatten(0, 1), targets.flatten())

    def load(self, arrays):
        """Take ministem's params and tables, one dict of NumPy arrays under its names."""
        theirs = {
            "wqkv": "attention.wqkv",
            "wo": "attention.wo",
            "w_gate": "ffn.w_gate",
            "w_up": "ffn.w_up",
            "w_down": "ffn.w_down",
            "table": "ffn.table",
        }
        state = {}
        for name, a in arrays.items():
            path, _, last = name.rpartition(".")
            last = theirs.get(last, last)
            name = f"{path}.{last}" if path else last
            is_table = last in ("embed", "ffn.table")
            a = torch.tensor(a if a.ndim == 1 or is_table else a.T).contiguous()
            state[name if a.ndim == 1 else name + ".weight"] = a
        self.load_state_dict(state)
        return self


class Training:
    """Clipping by one global norm, AdamW (fused), decay on matrices but not on norms and tables."""

    def __init__(
        self, model, lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0, compiled=False
    ):
        self.parameters, self.clip = list(model.parameters()), clip
        self.eps, self.beta2, self.steps = eps, betas[1], 0
        tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
        sparse = model.embed.sparse
        dense = [p for p in self.parameters if not any(p is t for t in tables)]
        groups = [
            {"params": [p for p in dense if p.ndim == 2], "weight_decay": weight_decay},
            {
                "params": [p for p in dense if p.ndim == 1] + ([] if sparse else tables),
                "weight_decay": 0.0,
            },
        ]
        self.optimizers = [torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=True)]
        if sparse:
            self.optimizers.append(torch.optim.SparseAdam(tables, lr=lr, betas=betas, eps=eps))
        self.loss = torch.compile(model) if compiled else model

    def step(self, ids, targets):
        return self.update(ids, targets).item()

    def update(self, ids, targets):
        """-> the loss, not waited for (on a GPU)"""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
        loss = self.loss(ids, targets)
        loss.backward()
        self.clip_gradients()
        self.steps += 1
        if len(self.optimizers) == 2:
            # SparseAdam adds eps before it corrects for the zeros the moments started from, AdamW
            # after: with an eps that shrinks alike, the two take the same steps
            self.optimizers[1].param_groups[0]["eps"] = (
                self.eps * (1 - self.beta2**self.steps) ** 0.5
            )
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.detach()

    def clip_gradients(self):
        if len(self.optimizers) == 1:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
            return
        # clip_grad_norm_ refuses sparse gradients: sum their rows first, then it is the same thing
        for p in self.parameters:
            if p.grad.is_sparse:
                p.grad = p.grad.coalesce()
        values = [p.grad._values() if p.grad.is_sparse else p.grad for p in self.parameters]
        norm = torch.nn.utils.get_total_norm(values)
        torch._foreach_mul_(values, torch.clamp(self.clip / (norm + 1e-6), max=1.0))
