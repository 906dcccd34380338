"""The whole transformer: every gradient, causality, threads, the KV cache, first loss, learning."""

import tracemalloc
from dataclasses import fields, replace

import numpy as np
import pytest
from gradcheck import check_slope, to_dense
from hypothesis import given, settings
from hypothesis import strategies as st

from ministem import model
from ministem.config import Config, init_dense, init_params, initial_rows, shapes
from ministem.generate import KVCache
from ministem.model import FFN, forward, loss_and_grads
from ministem.optim import AdamW
from ministem.tables import CHUNK, Tables

VARIANTS = [
    ("stem", (0, 1, 2)),
    ("stem", (1,)),
    ("gate", (0, 2)),
    ("additive", (0, 1, 2)),
    ("dense", ()),
]
# all sizes different; tokens repeat within and across texts, and some never occur
IDS = np.array([[0, 3, 3, 1, 5], [2, 10, 0, 0, 3]])
TARGETS = np.array([[3, 3, 1, 5, 8], [10, 0, 0, 3, 2]])


def small(ffn="stem", stem_layers=None, dtype="float64", **more):
    """A model with weights of order one, so that every part of it matters; all sizes differ, and no number
    is the default one. (The head width is 4: with 2, RoPE's theta plays no part.)"""
    more = dict(rope_theta=50.0, norm_eps=0.01) | more
    config = Config(11, dim=24, n_layers=3, n_heads=6, n_kv_heads=3, ffn_dim=7, context=9,
                    ffn=ffn, stem_layers=stem_layers, **more)  # fmt: skip
    params, tables = init_params(config, 0, dtype)
    rng = np.random.default_rng(1)
    for name in tables.names:
        tables[name][...] = rng.standard_normal(tables[name].shape)
    for p in params.values():
        if p.ndim == 1:
            p[...] = rng.standard_normal(p.shape) + 2
    return config, params, tables


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("ffn, stem_layers", VARIANTS)
def test_every_gradient_equals_the_slope_of_the_loss(ffn, stem_layers):
    config, params, tables = small(ffn, stem_layers)
    rng = np.random.default_rng(0)
    batch = tables.fetch(IDS)
    _, grads = loss_and_grads(params, config, batch, TARGETS)
    assert grads.keys() == params.keys() | set(tables.names)

    for name in grads:
        is_table = name in tables.names

        def loss(x, name=name, is_table=is_table):
            p, t = dict(params), Tables(tables.arrays)
            (t.arrays if is_table else p)[name] = x
            return loss_and_grads(p, config, t.fetch(IDS), TARGETS)[0]

        value = tables[name] if is_table else params[name]
        check_slope(loss, value, to_dense(grads[name]), rng, name, tol=1e-7, eps=2e-5)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("ffn, stem_layers", VARIANTS)
def test_logits_do_not_see_the_future(ffn, stem_layers):
    """Changing token t leaves every logit before t as it was, bit for bit, and changes those from t on."""
    config, params, tables = small(ffn, stem_layers)
    before = forward(params, config, tables.fetch(IDS))
    for t in range(IDS.shape[1]):
        changed = IDS.copy()
        changed[:, t] = (changed[:, t] + 4) % 11
        after = forward(params, config, tables.fetch(changed))
        assert (before[:, :t] == after[:, :t]).all()
        assert (before[:, t:] != after[:, t:]).any(-1).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("ffn, stem_layers", VARIANTS)
def test_no_array_changes_precision(ffn, stem_layers, dtype):
    config, params, tables = small(ffn, stem_layers, dtype)
    x, cache = model.trunk_forward(params, config, tables.fetch(IDS))
    loss, grads = loss_and_grads(params, config, tables.fetch(IDS), TARGETS, threads=2)
    kept = [x, loss, *[g.values if hasattr(g, "values") else g for g in grads.values()]]

    def walk(part):
        for a in part if isinstance(part, tuple | list) else [part]:
            if isinstance(a, tuple | list):
                walk(a)
            elif isinstance(a, np.ndarray):
                kept.append(a)

    walk(cache)
    optimizer = AdamW()
    optimizer.step(params, tables, grads)
    kept += [*params.values(), *tables.arrays.values(), *optimizer.state().values()]
    complex_of = {"float32": "complex64", "float64": "complex128"}
    assert len(kept) > 80
    for a in kept:
        assert a.dtype in (dtype, complex_of[dtype]) or a.dtype.kind == "i", a.dtype


def test_threads_change_the_order_of_sums_and_nothing_else():
    config, params, tables = small()
    ids = np.random.default_rng(0).integers(0, 11, (5, 8))
    batch, targets = tables.fetch(ids[:, :-1]), ids[:, 1:]
    loss, grads = loss_and_grads(params, config, batch, targets)
    for threads in (2, 3, 5, 8):
        for _ in range(2):
            again, parts = loss_and_grads(params, config, batch, targets, threads)
            np.testing.assert_allclose(again, loss, rtol=1e-12)
            for name, grad in grads.items():
                np.testing.assert_allclose(
                    to_dense(parts[name]), to_dense(grad), rtol=1e-9, atol=1e-12
                )


@pytest.mark.parametrize("threads", [1, 2])
def test_two_runs_with_one_seed_are_bit_equal(threads):
    def run():
        config, params, tables = small(dtype="float32")
        optimizer = AdamW(1e-2, threads=threads)
        for _ in range(5):
            _, grads = loss_and_grads(params, config, tables.fetch(IDS), TARGETS, threads)
            optimizer.step(params, tables, grads)
        arrays = params | tables.arrays | optimizer.state()
        return {name: a.tobytes() for name, a in arrays.items()}

    assert run() == run()


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("ffn, stem_layers", VARIANTS)
def test_the_kv_cache_gives_the_logits_of_the_full_pass(ffn, stem_layers):
    """Fed in pieces of 1, 3 and 2 tokens."""
    config, params, tables = small(ffn, stem_layers)
    ids = np.random.default_rng(0).integers(0, 11, (2, 6))
    full = forward(params, config, tables.fetch(ids))
    cache = KVCache(config, 2, like=params["head"])
    pieces = [
        forward(params, config, tables.fetch(p), cache) for p in np.split(ids, [1, 4], axis=1)
    ]
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), full, rtol=1e-10, atol=1e-12)
    assert cache.length == 6


@pytest.mark.parametrize("change", [dict(rope_theta=51.0), dict(norm_eps=0.02)])
@pytest.mark.parametrize("cached", [False, True])
def test_theta_and_eps_have_an_effect_with_a_cache_and_without(change, cached):
    ids, logits = np.random.default_rng(0).integers(0, 11, (2, 6)), []
    for more in ({}, change):
        config, params, tables = small(**more)
        cache = KVCache(config, 2, like=params["head"]) if cached else None
        logits.append(forward(params, config, tables.fetch(ids), cache))
    differ = (logits[0] != logits[1]).any(-1)
    # theta turns keys against queries: the first position, which sees itself alone, stays as it was
    assert differ[:, 1:].all() and differ[:, 0].any() == ("norm_eps" in change)


@pytest.mark.parametrize("vocab_size", [97, 1024, 8192])
@pytest.mark.parametrize("ffn, stem_layers", [("stem", None), ("stem", (1, 3)), ("dense", ())])
def test_the_first_loss_is_ln_v(vocab_size, ffn, stem_layers):
    """An untrained model knows nothing: every token is as likely as any other."""
    config = Config(vocab_size, context=32, ffn=ffn, stem_layers=stem_layers)
    params, tables = init_params(config, 0)
    ids = np.random.default_rng(0).integers(0, vocab_size, (4, 33))
    loss, _ = loss_and_grads(params, config, tables.fetch(ids[:, :-1]), ids[:, 1:])
    assert abs(loss / np.log(vocab_size) - 1) < 0.05


@pytest.mark.parametrize("ffn, stem_layers", VARIANTS)
def test_one_batch_is_learned_by_heart(ffn, stem_layers):
    config = Config(
        11, dim=12, n_layers=3, n_heads=6, n_kv_heads=3, ffn_dim=7, ffn=ffn, stem_layers=stem_layers
    )
    params, tables = init_params(config, 0)
    ids = np.random.default_rng(3).integers(0, 11, (2, 8))
    optimizer = AdamW(2e-2, weight_decay=0.0)
    for _ in range(300):
        loss, grads = loss_and_grads(params, config, tables.fetch(ids[:, :-1]), ids[:, 1:])
        optimizer.step(params, tables, grads)
    assert loss < 0.01


def test_init_is_deterministic_and_scaled_as_it_says():
    config = Config(2048, stem_layers=(1, 2))
    params, tables = init_params(config, 7)
    same, other = init_params(config, 7), init_params(config, 8)
    assert all((params[n] == same[0][n]).all() for n in params)
    assert (tables["embed"] != other[1]["embed"]).any()
    expected = {"layers.0.wqkv": 128**-0.5, "layers.0.w_up": 128**-0.5, "layers.3.wo": 128**-0.5 / 8**0.5,
                "layers.1.w_down": 384**-0.5 / 8**0.5, "head": 0.02}  # fmt: skip
    for name, std in expected.items():
        assert abs(params[name].std() / std - 1) < 0.02, name
    assert abs(tables["layers.2.table"].std() / 0.02 - 1) < 0.02
    assert abs(tables["embed"].std() / 128**-0.5 - 1) < 0.02
    assert (params["norm"] == 1).all()


def test_no_two_arrays_no_two_chunks_and_no_two_seeds_start_alike():
    """Not one number in a hundred is where another array, chunk of a table or seed has it."""
    config = Config(3 * CHUNK, dim=32, n_layers=3, n_heads=2, ffn_dim=32, stem_layers=(1, 2))
    drawn = []
    for seed in (0, 1):
        params, tables = init_params(config, seed)
        again = init_dense(config, seed)
        assert all((again[name] == p).all() for name, p in params.items())
        drawn += [p.reshape(-1)[:1024] / p.std() for p in params.values() if p.ndim == 2]
        for name in tables.names:
            for start in range(0, 3 * CHUNK, CHUNK):
                rows = initial_rows(config, seed, name, start)
                drawn.append(rows.reshape(-1)[:1024] / rows.std())
    assert len(drawn) == 2 * (3 * 4 + 1 + 1 + 3 * 3)
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            assert np.isclose(a, b, rtol=1e-3, atol=0).mean() < 0.01


def test_any_part_of_a_new_table_can_be_made_without_the_rest():
    config = Config(2 * CHUNK + 5, dim=8, n_layers=2, n_heads=2)
    tables = init_params(config, 3)[1]
    for name in tables.names:
        for start in (0, CHUNK, 2 * CHUNK):
            rows = initial_rows(config, 3, name, start)
            assert (rows == tables[name][start : start + CHUNK]).all() and len(rows) in (CHUNK, 5)
    assert (tables["layers.0.table"] != tables["layers.1.table"]).mean() > 0.99


def test_parameter_names_and_shapes_are_the_documented_ones():
    config = Config(11, dim=12, n_layers=2, n_heads=6, n_kv_heads=3, ffn_dim=7, stem_layers=(1,))
    dense, tables = shapes(config)
    assert dense == {
        "layers.0.norm1": (12,), "layers.0.wqkv": (12, 24), "layers.0.wo": (12, 12), "layers.0.norm2": (12,),
        "layers.0.w_gate": (12, 7), "layers.0.w_up": (12, 7), "layers.0.w_down": (7, 12),
        "layers.1.norm1": (12,), "layers.1.wqkv": (12, 24), "layers.1.wo": (12, 12), "layers.1.norm2": (12,),
        "layers.1.w_gate": (12, 7), "layers.1.w_down": (7, 12), "norm": (12,), "head": (12, 11),
    }  # fmt: skip
    assert tables == {"embed": (11, 12), "layers.1.table": (11, 7)}


@pytest.mark.parametrize("nonsense, names", [
    (dict(dim=10, n_heads=3), ("10", "3")), (dict(dim=9, n_heads=3), ("9 / 3", "even")),
    (dict(n_heads=4, n_kv_heads=3), ("4", "3")), (dict(n_layers=0), ("n_layers", "0")),
    (dict(vocab_size=-1), ("vocab_size", "-1")), (dict(stem_layers=(4,)), ("4", "0..3")),
    (dict(ffn="moe"), ("moe", "stem")), (dict(norm_eps=0.0), ("norm_eps",)), (dict(context=1.5), ("1.5",)),
    (dict(rope_theta=float("nan")), ("rope_theta", "nan")), (dict(stem_layers=(-1,)), ("-1",)),
])  # fmt: skip
def test_config_refuses_nonsense_by_name(nonsense, names):
    with pytest.raises(ValueError) as error:
        Config(**{"vocab_size": 11, **nonsense})
    assert all(name in str(error.value) for name in names), error.value


junk = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 12), st.floats(), st.text(max_size=3), st.just(10**30),
    st.lists(st.one_of(st.integers(-2, 5), st.text(max_size=1), st.floats(), st.none()), max_size=4),
    st.dictionaries(st.text(max_size=1), st.integers(), max_size=2), st.sampled_from(["stem", "dense"]),
)  # fmt: skip


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.dictionaries(st.sampled_from([f.name for f in fields(Config)]), junk, max_size=4))
def test_a_config_of_anything_at_all_is_a_config_or_a_value_error(values):
    """... as when it comes out of a file; and what is accepted has shapes that can be counted."""
    try:
        config = Config(**{"vocab_size": 11, **values})
    except ValueError as error:
        assert "\n" not in str(error)
    else:
        assert config == replace(config) and set(config.stem_layers) <= set(range(config.n_layers))
        sizes = [n for part in shapes(config) for shape in part.values() for n in shape]
        assert all(type(n) is int and n > 0 for n in sizes)


@pytest.mark.parametrize("bad, message", [
    ([[-1, 2, 3]], "-1 is outside the vocabulary of 11"), ([[1, 11, 3]], "11 is outside"),
    ([[1.0, 2, 3]], "float64"), ([[True, False, True]], "bool"), ([[1, 2]], "do not fit"),
])  # fmt: skip
def test_targets_that_are_no_tokens_are_refused(bad, message):
    """As an index, -1 would be the last token: a wrong loss without a word."""
    config, params, tables = small()
    with pytest.raises(ValueError, match=message):
        loss_and_grads(params, config, tables.fetch([[1, 2, 3]]), np.array(bad))


def test_a_loss_without_gradients_makes_no_room_for_them():
    """Evaluating: the gradient of the head alone would be four times as large as all that is needed."""
    x, head = np.ones((1, 8, 64), "float32"), np.ones((64, 5000), "float32")
    targets = np.arange(8).reshape(1, 8)
    tracemalloc.start()
    try:
        loss, cache = model.head_loss_forward(x, head, targets, grads=False)
        assert tracemalloc.get_traced_memory()[1] < head.nbytes / 2
    finally:
        tracemalloc.stop()
    assert cache is None and loss == model.head_loss_forward(x, head, targets)[0]


def test_every_variant_is_in_the_table_of_variants():
    assert set(FFN) == {"dense", "stem", "gate", "additive"}
