"""Weights survive the trip to the official names and layouts and back, bit for bit."""

import numpy as np
import pytest

from ministem.lingua import from_lingua, to_lingua
from ministem.model import Config, init_params

SIZES = dict(vocab_size=11, dim=24, n_layers=3, n_heads=4, ffn_dim=20, context=9)


def model(**changes):
    config = Config(**{**SIZES, **changes})
    params, tables = init_params(config, seed=3)
    rng = np.random.default_rng(4)
    for name in params:  # norms start at one: swapped ones would go unnoticed
        params[name][...] = rng.standard_normal(params[name].shape)
    return params, tables, config


def there_and_back(state, config):
    return from_lingua(
        state,
        n_heads=config.n_heads,
        context=config.context,
        norm_eps=config.norm_eps,
        rope_theta=config.rope_theta,
    )


@pytest.mark.parametrize("stem_layers", [(), (0,), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("n_kv_heads", [1, 2, 4])
def test_a_round_trip_gives_back_every_bit_and_the_config(stem_layers, n_kv_heads):
    params, tables, config = model(
        stem_layers=stem_layers, n_kv_heads=n_kv_heads, norm_eps=1e-6, rope_theta=5e5
    )
    params2, tables2, config2 = there_and_back(to_lingua(params, tables, config), config)
    assert config2 == config
    assert params2.keys() == params.keys() and set(tables2.names) == set(tables.names)
    for name in params:
        np.testing.assert_array_equal(params2[name], params[name], err_msg=name)
        assert params2[name].dtype == params[name].dtype and params2[name].flags.c_contiguous
    for name in tables.names:
        np.testing.assert_array_equal(tables2[name], tables[name], err_msg=name)


def test_ffn_dense_in_the_stem_layers_is_a_model_without_tables_on_both_sides():
    """Then stem_layers says nothing, and it comes back empty: the same model, described shorter."""
    params, tables, config = model(ffn="dense", stem_layers=(1, 2))
    params2, tables2, config2 = there_and_back(to_lingua(params, tables, config), config)
    assert config2.stem_layers == () and tables2.names == ["embed"]
    assert params2.keys() == params.keys()
    for name in params:
        np.testing.assert_array_equal(params2[name], params[name], err_msg=name)


def test_every_matrix_is_out_by_in_and_contiguous_and_heads_stand_in_order():
    """The layouts, spelled out once by hand for the one STEM layer of a three-layer model."""
    params, tables, config = model(stem_layers=(1,), n_kv_heads=2)
    state = to_lingua(params, tables, config)
    layer = "lm_transformer.layers.1."
    wqkv = params["layers.1.wqkv"]  # (24, 24 + 12 + 12)
    for name, ours in {
        layer + "attention.wq.weight": wqkv[:, :24].T,
        layer + "attention.wk.weight": wqkv[:, 24:36].T,
        layer + "attention.wv.weight": wqkv[:, 36:].T,
        layer + "attention.wo.weight": params["layers.1.wo"].T,
        layer + "feed_forward.w1.weight": params["layers.1.w_gate"].T,
        layer + "feed_forward.w2.weight": params["layers.1.w_down"].T,
        layer + "attention_norm.weight": params["layers.1.norm1"],
        layer + "ffn_norm.weight": params["layers.1.norm2"],
        "lm_transformer.layers.2.feed_forward.w3.weight": params["layers.2.w_up"].T,
        "lm_transformer.tok_embeddings.weight": tables["embed"],
        "lm_transformer.norm.weight": params["norm"],
        "lm_transformer.output.weight": params["head"].T,
        "stem_embeddings.0.weight": tables["layers.1.table"],
    }.items():
        np.testing.assert_array_equal(state[name], ours, err_msg=name)
    assert layer + "feed_forward.w3.weight" not in state
    assert all(a.flags.c_contiguous for a in state.values())
    assert not any(np.shares_memory(a, params[name]) for a in state.values() for name in params)


@pytest.mark.parametrize("ffn", ["gate", "additive"])
def test_variants_the_official_code_lacks_are_refused_by_name(ffn):
    with pytest.raises(ValueError, match=ffn):
        to_lingua(*model(ffn=ffn, stem_layers=(1,)))


def test_what_does_not_fit_is_named():
    params, tables, config = model(stem_layers=(1, 2), n_kv_heads=2)
    good = to_lingua(params, tables, config)

    def refused(state, *words, n_heads=4):
        with pytest.raises(ValueError) as error:
            from_lingua(state, n_heads=n_heads, context=9)
        assert all(word in str(error.value) for word in words), str(error.value)

    for name in good:
        without = {k: a for k, a in good.items() if k != name}
        # one w3 fewer reads as one STEM layer more, so there it is the table that is missed
        refused(without, "missing", "stem_embeddings.2.weight" if ".w3." in name else name)
    refused(
        {**good, "lm_transformer.layers.1.attention.bias": good["stem_embeddings.0.weight"]},
        "unexpected lm_transformer.layers.1.attention.bias",
    )
    refused(
        {**good, "stem_embeddings.7.weight": good["stem_embeddings.0.weight"]},
        "unexpected stem_embeddings.7.weight",
    )
    read = (
        "lm_transformer.tok_embeddings.weight",
        "lm_transformer.layers.0.attention.wk.weight",
        "lm_transformer.layers.0.feed_forward.w1.weight",
    )
    for name in good:
        shape = (good[name].shape[0] + 4, *good[name].shape[1:])
        # sizes are read from these three: if one of them is wrong, it is the others that misfit
        blamed = "" if name in read else f"{name} is {shape}"
        refused({**good, name: np.zeros(shape)}, "expected", blamed)
        refused({**good, name: np.zeros(())}, name)
    refused(good, "24", "5", n_heads=5)
    refused({}, "tok_embeddings")
