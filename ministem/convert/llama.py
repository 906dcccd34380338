"""Dense models to and from Hugging Face's Llama: its names, and its order of features in queries and keys.

A model without tables is a Llama, but for one thing. RoPE turns pairs of features: here (and in the official
STEM code) 2j and 2j+1 are a pair, in Hugging Face's code j and j + D/2 are. The rows of wq and wk that make
these features therefore stand in another order there; scores, sums over pairs, come out the same. The names
go by way of lingua.py. Left out: what Llama-shaped models may have besides (biases, scaled RoPE, a head
width of its own), which is refused by name.
"""

import numpy as np

from ..run.checkpoint import write_json
from ..tokenizer import STOCK
from .lingua import from_lingua, to_lingua

PRINTABLE = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that stand for themselves
OTHERS = sorted({*range(256)} - {*PRINTABLE})
CHARACTERS = dict(zip(PRINTABLE + OTHERS, map(chr, [*PRINTABLE, *range(256, 324)]), strict=True))
NAMES = {
    "tok_embeddings": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj",
    "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "feed_forward.w1": "mlp.gate_proj",
    "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj",
    "norm": "model.norm",
    "output": "lm_head",
}


def halves(w, head_dim):
    """w (heads*D, C), features of a head in pairs 0,1,2,3,... -> in halves 0,2,4,..., 1,3,5,..."""
    w = w.reshape(-1, head_dim // 2, 2, w.shape[1])
    return np.ascontiguousarray(w.swapaxes(1, 2)).reshape(-1, w.shape[-1])


def pairs(w, head_dim):
    """Undoes halves."""
    w = w.reshape(-1, 2, head_dim // 2, w.shape[1])
    return np.ascontiguousarray(w.swapaxes(1, 2)).reshape(-1, w.shape[-1])


def renamed(name):
    """"layers.3.attention.wq.weight" -> "model.layers.3.self_attn.q_proj.weight" """
    name = name.removesuffix(".weight")
    if not name.startswith("layers."):
        return NAMES[name] + ".weight"
    _, i, what = name.split(".", 2)
    return f"model.layers.{i}.{NAMES[what]}.weight"


def to_llama(params, tables, config):
    """-> {name in LlamaForCausalLM.state_dict(): array}. ValueError if a layer has a table."""
    if len(tables.names) > 1:
        layers = ", ".join(map(str, config.stem_layers))
        raise ValueError(f"Llama has no tables, and layers {layers} have one: only dense models go there")
    state = {}
    for name, a in to_lingua(params, tables, config).items():
        name = name.removeprefix("lm_transformer.")
        state[renamed(name)] = halves(a, config.head_dim) if name.endswith(("wq.weight", "wk.weight")) else a
    return state


def from_llama(state, n_heads, context, norm_eps=1e-5, rope_theta=10000.0):
    """state: LlamaForCausalLM.state_dict() as arrays -> params, tables, config.

    Without lm_head.weight the head is the token embedding (tied weights), as a copy. Raises ValueError."""
    official = {v: k for k, v in NAMES.items()}
    if "lm_head.weight" not in state and "model.embed_tokens.weight" in state:
        state = state | {"lm_head.weight": state["model.embed_tokens.weight"]}
    renamed_state = {}
    for name, a in state.items():
        at, what = "", name.removesuffix(".weight")
        if name.startswith("model.layers."):
            _, _, i, what = what.split(".", 3)
            at = f"layers.{i}."
        if what not in official or not name.endswith(".weight"):
            raise ValueError(f"not a Llama that can be read here: it has {name}")
        if official[what] in ("attention.wq", "attention.wk"):
            head_dim = a.shape[-1] // n_heads if a.ndim == 2 else 0
            if not head_dim or len(a) % head_dim or head_dim % 2:
                raise ValueError(f"{name} {a.shape} does not divide into heads of width {head_dim}")
            a = pairs(a, head_dim)
        renamed_state[f"lm_transformer.{at}{official[what]}.weight"] = a
    return from_lingua(renamed_state, n_heads, context, norm_eps, rope_theta)


def llama_config(config, eot):
    """config.json of a Hugging Face model folder, as a dict. eot: the id of <|endoftext|>"""
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu",
        vocab_size=config.vocab_size, hidden_size=config.dim, intermediate_size=config.ffn_dim,
        num_hidden_layers=config.n_layers, num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_kv_heads, head_dim=config.head_dim,
        max_position_embeddings=config.context, rms_norm_eps=config.norm_eps, rope_theta=config.rope_theta,
        tie_word_embeddings=False, attention_bias=False, mlp_bias=False, dtype="float32",
        bos_token_id=eot, eos_token_id=eot, pad_token_id=None,  # Llama's own, 1 and 2, are bytes here
    )  # fmt: skip


def llama_tokenizer(tokenizer, context, folder):
    """Write the tokenizer.json that gives our ids -> [], or a list of one sentence why there is none."""
    if tokenizer.encoding.name in STOCK:
        return [f'no tokenizer.json: AutoTokenizer has "{tokenizer.encoding.name}" itself']
    try:
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers
    except ModuleNotFoundError:
        return ["no tokenizer.json, which takes the package tokenizers: pip install tokenizers, export again"]
    ranks = tokenizer.encoding._mergeable_ranks
    vocabulary = {characters(token): rank for token, rank in ranks.items()}
    merges = [
        (characters(token[:i]), characters(token[i:]))
        for token in sorted(ranks, key=ranks.get)
        for i in range(1, len(token))
        if token[:i] in ranks and token[i:] in ranks
    ]
    # ignore_merges: a piece that is a token, like a name, is looked up before anything is merged
    new = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=True))
    new.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(tokenizer.encoding._pat_str), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    new.decoder = decoders.ByteLevel()
    new.add_special_tokens(["<|endoftext|>"])
    new.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", dict(
        tokenizer_class="PreTrainedTokenizerFast", model_max_length=context, eos_token="<|endoftext|>",
        split_special_tokens=True,  # in a text, "<|endoftext|>" is text
        clean_up_tokenization_spaces=False, model_input_names=["input_ids", "attention_mask"],
    ))  # fmt: skip
    return []


def characters(token):
    """bytes -> a string of one printable character per byte, GPT-2's way to write them in JSON"""
    return "".join(map(CHARACTERS.__getitem__, token))


def llama_arguments(content):
    """config.json of a Hugging Face model folder -> from_llama's arguments. Raises ValueError."""
    n_heads = content["num_attention_heads"]
    rope = dict(content.get("rope_parameters") or content.get("rope_scaling") or {})
    for name, why in {
        "model_type": content.get("model_type") != "llama",
        "hidden_act": content.get("hidden_act", "silu") != "silu",
        "head_dim": content.get("head_dim") not in (None, content["hidden_size"] // n_heads),
        "attention_bias": content.get("attention_bias"),
        "mlp_bias": content.get("mlp_bias"),
        "rope_scaling": rope.get("rope_type", rope.get("type", "default")) != "default",
    }.items():
        if why:
            raise ValueError(f"not a Llama that can be read here: its {name} is {content.get(name)}")
    return dict(
        n_heads=n_heads, context=content["max_position_embeddings"],
        norm_eps=content.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta", content.get("rope_theta", 10000.0))),
    )  # fmt: skip
