"""A dense model is a Llama: transformers' own implementation agrees, once the features stand in its order."""

import json

import numpy as np
import pytest

from ministem.config import Config, init_params
from ministem.convert.llama import from_llama, halves, llama_arguments, llama_config, pairs, to_llama
from ministem.model import forward

SIZES = dict(vocab_size=61, dim=48, n_layers=3, n_heads=6, ffn_dim=40, context=32, stem_layers=())


def model(**changes):
    config = Config(**SIZES | changes)
    params, tables = init_params(config, seed=3)
    rng = np.random.default_rng(4)
    for p in params.values():
        p += 0.1 * rng.standard_normal(p.shape).astype("float32")
    return params, tables, config


def test_pairs_become_halves_and_come_back():
    w = np.arange(2 * 6)[:, None] * np.ones((1, 3))
    assert halves(w, 6)[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert (pairs(halves(w, 6), 6) == w).all()


@pytest.mark.parametrize("n_kv_heads", [1, 3, 6])
def test_a_round_trip_gives_back_every_bit_and_the_config(n_kv_heads):
    params, tables, config = model(n_kv_heads=n_kv_heads, rope_theta=5e5, norm_eps=1e-6)
    how = llama_arguments(json.loads(json.dumps(llama_config(config))))
    params2, tables2, config2 = from_llama(to_llama(params, tables, config), **how)
    assert config2 == config and params2.keys() == params.keys()
    assert all((params2[name] == params[name]).all() for name in params)
    assert (tables2["embed"] == tables["embed"]).all()


@pytest.mark.parametrize("n_kv_heads, rope_theta", [(6, 1e4), (2, 5e5)])
def test_logits_agree_with_transformers(n_kv_heads, rope_theta):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    params, tables, config = model(n_kv_heads=n_kv_heads, rope_theta=rope_theta)
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (3, config.context))
    ours = forward(params, config, tables.fetch(ids))

    theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_config(config)))
    state = {name: torch.from_numpy(a) for name, a in to_llama(params, tables, config).items()}
    theirs.load_state_dict(state, strict=True)  # every name is there, and no other
    with torch.no_grad():
        logits = theirs.eval()(torch.from_numpy(ids)).logits.numpy()
    np.testing.assert_allclose(ours, logits, atol=1e-5 * np.abs(logits).max(), rtol=0)

    # and weights of theirs, drawn by their own code, read here
    drawn = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_config(config))).eval()
    how = llama_arguments(drawn.config.to_dict())
    read = from_llama({name: a.numpy() for name, a in drawn.state_dict().items()}, **how)
    with torch.no_grad():
        logits = drawn(torch.from_numpy(ids)).logits.numpy()
    ours = forward(read[0], read[2], read[1].fetch(ids))
    np.testing.assert_allclose(ours, logits, atol=1e-5 * np.abs(logits).max(), rtol=0)


def test_tied_weights_are_untied():
    state = to_llama(*model())
    del state["lm_head.weight"]
    params, tables, _ = from_llama(state, n_heads=6, context=32)
    assert (params["head"] == tables["embed"].T).all()
    assert not np.shares_memory(params["head"], tables["embed"])


def test_what_is_no_llama_or_no_dense_model_is_named():
    with pytest.raises(ValueError, match="layers 1, 2"):
        to_llama(*model(stem_layers=(1, 2)))
    state = to_llama(*model())
    for change, word in {
        "model.layers.0.self_attn.q_proj.bias": "q_proj.bias",
        "model.layers.0.self_attn.q_norm.weight": "q_norm",
        "model.layers.9.input_layernorm.weight": "missing",
    }.items():
        with pytest.raises(ValueError, match=word):
            from_llama(state | {change: np.ones(48, "float32")}, n_heads=6, context=32)
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(ValueError, match="q_proj"):
        from_llama(state | {name: np.ones(48, "float32")}, n_heads=6, context=32)
    good = llama_config(model()[2])
    for name, value in dict(model_type="qwen2", hidden_act="gelu", head_dim=10, attention_bias=True,
                            rope_scaling=dict(rope_type="llama3", factor=8.0)).items():  # fmt: skip
        with pytest.raises(ValueError, match=name):
            llama_arguments(good | {name: value})
