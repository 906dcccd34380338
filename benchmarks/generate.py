"""How fast does a model write, token by token, and how fast does it read a prompt?

    python benchmarks/generate.py                      # four sizes, every side
    python benchmarks/generate.py --sizes small long --threads 1 --json results/generate.json

The sides, all with the same weights, greedy, so that all must write the same tokens:

    ministem        generate.generate, as sample.py calls it
    torch           the same with a KV cache as a good PyTorch user would write it: eager, inference_mode,
                    scaled_dot_product_attention, F.rms_norm, weights stored (in, out) as ours are, which
                    is about twice as fast for one token as ...
    torch-linear    ... F.linear, with weights (out, in)

A text starts from one token and fills the context, so the time per token can be compared between its first
and its last quarter: what grows is attention over the cache, and nothing else should. The prompt is as long
as the context, read in one go, up to the first new token. Tables are in memory. Beside greedy choice, which
costs nothing, the last columns show what it costs to draw a token from logits, at temperature 0.8.
"""

import statistics
import time
from functools import partial

import common
import numpy as np

from ministem import backend
from ministem.config import Config, init_params, shapes
from ministem.generate import generate, sample

SIDES = ["ministem", "torch", "torch-linear"]
SIZES = {
    "tiny": dict(vocab_size=64, dim=16, n_layers=2, n_heads=2, n_kv_heads=1, ffn_dim=32, context=16),
    "small": dict(vocab_size=2048, dim=128, n_layers=4, n_heads=4, ffn_dim=384, context=128),
    "large": dict(vocab_size=8192, dim=384, n_layers=6, n_heads=6, ffn_dim=1024, context=256),
    "long": dict(vocab_size=8192, dim=384, n_layers=6, n_heads=6, ffn_dim=1024, context=1024),
    "d288": dict(vocab_size=32000, dim=288, n_layers=6, n_heads=6, ffn_dim=768, context=256),
}
DRAWS = {"plain": (None, None), "top-k 50": (50, None), "top-p 0.9": (None, 0.9)}  # top_k, top_p


class TorchWriter:
    """torch_model.Model's weights, used for one text at a time, with a KV cache."""

    def __init__(self, config, params, tables, in_out):
        import torch
        import torch.nn.functional as F
        from torch_model import Model, rope

        self.torch, self.F, self.rope, self.config = torch, F, rope, config
        model = Model(config).load(params | {name: tables[name] for name in tables.names})
        self.turn, self.linear = model.turn, torch.matmul if in_out else F.linear

        def weight(linear):
            return linear.weight.T.contiguous() if in_out else linear.weight

        self.layers = [
            dict(norm1=layer.norm1, wqkv=weight(layer.attention.wqkv), wo=weight(layer.attention.wo),
                 norm2=layer.norm2, w_gate=weight(layer.ffn.w_gate), table=layer.ffn.table.weight,
                 w_down=weight(layer.ffn.w_down))
            for layer in model.requires_grad_(False).layers
        ]  # fmt: skip
        self.embed, self.norm, self.head = model.embed.weight, model.norm, weight(model.head)
        shape = config.n_layers, config.n_kv_heads, config.context, config.head_dim
        self.keys, self.values = torch.empty(shape), torch.empty(shape)

    def logits(self, ids, start):
        """(V,): what follows ids (T,), which stand at positions start ... (T is 1, or start 0)"""
        c, F = self.config, self.F
        T, H, K, D = len(ids), c.n_heads, c.n_kv_heads, c.head_dim
        S = start + T
        h = self.embed[ids]  # (T,C): one text needs no axis for it
        for w, keys, values in zip(self.layers, self.keys, self.values, strict=True):
            n = F.rms_norm(h, (c.dim,), w["norm1"], c.norm_eps)
            qk, v = self.linear(n, w["wqkv"]).view(T, H + 2 * K, D).split([H + K, K], dim=1)
            qk = self.rope(qk, self.turn[start:S]).transpose(0, 1)  # (H+K,T,D)
            keys[:, start:S], values[:, start:S] = qk[H:], v.transpose(0, 1)
            y = F.scaled_dot_product_attention(qk[None, :H], keys[None, :, :S], values[None, :, :S],
                                               is_causal=T > 1, enable_gqa=K != H)  # fmt: skip
            h = h + self.linear(y[0].transpose(0, 1).reshape(T, H * D), w["wo"])
            n = F.rms_norm(h, (c.dim,), w["norm2"], c.norm_eps)
            h = h + self.linear(F.silu(self.linear(n, w["w_gate"])) * w["table"][ids], w["w_down"])
        return self.linear(F.rms_norm(h[-1:], (c.dim,), self.norm, c.norm_eps), self.head)[0]

    def write(self, ids, n):
        """Yields n tokens that follow ids, always the likeliest."""
        with self.torch.inference_mode():
            new, start = self.torch.tensor(ids), 0
            for _ in range(n):
                new, start = self.logits(new, start).argmax()[None], start + len(new)
                yield new.item()


def torch_sample(logits, temperature, top_k, top_p):
    import torch

    if top_k is None and top_p is None:
        return int(torch.multinomial(torch.softmax(logits / temperature, 0), 1))
    logits, order = logits.topk(min(top_k, len(logits))) if top_k else logits.sort(descending=True)
    p = torch.softmax(logits / temperature, 0)
    if top_p is not None:
        p = p * (p.cumsum(0) - p < top_p)
    return int(order[torch.multinomial(p, 1)])


def work(side, size, threads, seconds):
    """What a worker process does -> a dict for the parent."""
    config = Config(**SIZES[size])
    params, tables = init_params(config, seed=0)
    if side == "ministem":
        backend.keep_freed_memory()

        def write(ids, n):
            return generate(params, tables, config, ids, n, temperature=0)
    else:
        import torch

        torch.set_num_threads(threads)
        write = TorchWriter(config, params, tables, in_out=side == "torch").write
    T = config.context
    prompt = np.random.default_rng(1).integers(0, config.vocab_size, T).tolist()
    text = list(write(prompt[:1], T))  # warms up, too
    token_ms, prompt_ms, until = [], [], time.perf_counter() + seconds
    while not token_ms or time.perf_counter() < until:
        times = [time.perf_counter()]
        times += [time.perf_counter() for _ in write(prompt[:1], T)]
        token_ms.append((1e3 * np.diff(times)).tolist())
        prompt_ms.append(common.timed(lambda: list(write(prompt, 1)), times=3))
    logits = 3 * np.random.default_rng(2).standard_normal(config.vocab_size, "float32")
    if side == "ministem":
        choose = partial(sample, rng=np.random.default_rng(3))
    else:
        choose, logits = torch_sample, torch.from_numpy(logits)
    draw_ms = {name: common.timed(choose, logits, 0.8, *how, times=30) for name, how in DRAWS.items()}
    at = np.median(token_ms, 0)  # (T,) for each position
    quarter = T // 4
    return dict(
        text=[*text, *write(prompt, 1)],
        token_ms=float(np.median(at)),
        first_ms=float(np.median(at[:quarter])),
        last_ms=float(np.median(at[-quarter:])),
        prompt_ms=statistics.median(prompt_ms),
        **{f"draw {name}": ms for name, ms in draw_ms.items()},
    )


def report(size, sides, results):
    """-> {side: {what: median ms}}"""
    config = Config(**SIZES[size])
    dense, tables = shapes(config)
    used = sum(np.prod(shape) for shape in dense.values()) + sum(shape[1] for shape in tables.values())
    print(f"\n{size}: C={config.dim} L={config.n_layers} H={config.n_heads} F={config.ffn_dim} "
          f"V={config.vocab_size} T={config.context}", end="; ")  # fmt: skip
    print(f"a token uses {used * 4 / 2**20:.1f} MiB of weights")
    print(f"{'':<14}tokens/s  ms/token  x torch   GB/s  first 1/4  last 1/4  prompt ms  tokens/s  x torch"
          + "".join(f"{name:>11}" for name in DRAWS))  # fmt: skip
    keys = ["token_ms", "first_ms", "last_ms", "prompt_ms", *(f"draw {name}" for name in DRAWS)]
    found = {side: {key: common.median(results[f"{size} {side}"], key) for key in keys}
             for side in sides if f"{size} {side}" in results}  # fmt: skip
    for side, ms in found.items():
        token, first, last, prompt, *draws = ms.values()
        ratio = {key: f"{ms[key] / found['torch'][key]:.2f}" if "torch" in found else "-" for key in keys}
        print(f"{side:<14}{1e3 / token:8.0f}{token:10.3f}{ratio['token_ms']:>9}{used * 4 / token / 1e6:7.1f}"
              f"{first:11.3f}{last:10.3f}{prompt:11.2f}{1e3 * config.context / prompt:10.0f}"
              f"{ratio['prompt_ms']:>9}" + "".join(f"{ms:11.3f}" for ms in draws))  # fmt: skip
    texts = {tuple(r["text"]) for side in found for r in results[f"{size} {side}"]}
    assert len(texts) <= 1, f"the sides do not write the same text: {texts}"
    if texts:
        print(f"all wrote the same {len(texts.pop())} tokens")
    return found


def main():
    parser = common.options(__doc__, rounds=5)
    add = parser.add_argument
    add("--sizes", nargs="+", choices=SIZES, help="default: small large long d288")
    add("--sides", nargs="+", choices=SIDES, default=SIDES)
    add("--seconds", type=float, default=3, help="timed in each process (default 3; at least one text)")
    args = common.parse(parser, work)
    sizes = args.sizes or (["tiny"] if args.quick else ["small", "large", "long", "d288"])
    about = common.machine(args.threads, "torch")

    def job(size, side):
        work = dict(side=side, size=size, threads=args.threads, seconds=args.seconds)
        return work, common.environment(args.threads, torch="torch" in side)

    jobs = {f"{size} {side}": job(size, side) for size in sizes for side in args.sides}
    results, errors = common.take_turns(__file__, jobs, args)
    found = {size: report(size, args.sides, results) for size in sizes}
    common.print_weather(results, errors)
    common.write_json(args, about, median_ms=found, errors=errors, results=results)


if __name__ == "__main__":
    main()
