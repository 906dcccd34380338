"""Sampling: the cache changes nothing, the filters keep what they should, the settings are checked."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ministem.config import Config, init_params
from ministem.generate import generate, sample, window_start

CONFIG = Config(31, dim=16, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=20, context=8, rope_theta=30.0)


def model():
    params, tables = init_params(CONFIG, 1)
    params["head"] *= 50  # an opinionated model: chances far from equal
    tables["layers.0.table"][...] *= 50
    return params, tables


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("options", [
    dict(temperature=0), dict(temperature=0.7), dict(temperature=1.0, top_k=5),
    dict(temperature=1.3, top_p=0.8), dict(temperature=1.0, top_k=9, top_p=0.9),
])  # fmt: skip
@pytest.mark.parametrize("prompt", [[3], [1, 2, 3, 4, 5, 6, 7], list(range(20))])
def test_cached_and_recomputed_texts_are_the_same(options, prompt):
    """... also beyond the context, where the window moves on, and for prompts longer than it."""
    params, tables = model()
    for seed in range(3):
        texts = [list(generate(params, tables, CONFIG, prompt, 30, seed=seed, cached=cached, **options))
                 for cached in (True, False)]  # fmt: skip
        assert texts[0] == texts[1] and len(texts[0]) == 30
        assert len(set(texts[0])) > 3  # not a loop that any model would give


def test_seeds():
    params, tables = model()
    one, same, other = (list(generate(params, tables, CONFIG, [3], 20, seed=s)) for s in (1, 1, 2))
    assert one == same != other


def test_no_tokens_asked_for_none_given_and_no_prompt_refused():
    params, tables = model()
    assert list(generate(params, tables, CONFIG, [3], 0)) == []
    with pytest.raises(ValueError, match="no tokens"):
        next(generate(params, tables, CONFIG, [], 5))


def test_the_window_is_never_longer_than_the_context_and_moves_by_halves():
    for context in (1, 2, 7, 8):
        starts = [window_start(n, context) for n in range(1, 40)]
        assert all(1 <= n - start <= context for n, start in enumerate(starts, 1))
        assert starts[:context] == [0] * context
        jumps = {b - a for a, b in zip(starts, starts[1:], strict=False)}
        assert jumps == ({0, context // 2} if context > 1 else {1})


def draws(logits, n=4000, **options):
    options = dict(temperature=1.0, top_k=None, top_p=None, rng=np.random.default_rng(0)) | options
    ids = [sample(np.array(logits), **options) for _ in range(n)]
    return np.bincount(ids, minlength=len(logits)) / n


def test_sampling_follows_the_probabilities():
    p = np.array([0.1, 0.5, 0.15, 0.25])
    np.testing.assert_allclose(draws(np.log(p)), p, atol=0.03)
    warm = p**0.5 / (p**0.5).sum()
    np.testing.assert_allclose(draws(np.log(p), temperature=2.0), warm, atol=0.03)


def test_top_k_keeps_the_k_likeliest():
    p = np.array([0.1, 0.5, 0.15, 0.25])
    np.testing.assert_allclose(draws(np.log(p), top_k=2), [0, 2 / 3, 0, 1 / 3], atol=0.03)
    assert draws(np.log(p), top_k=1).tolist() == [0, 1, 0, 0]
    for k in (4, 5, 1000):
        np.testing.assert_allclose(draws(np.log(p), top_k=k), p, atol=0.03)


def test_top_p_keeps_the_token_that_crosses_it():
    p = np.array([0.1, 0.5, 0.15, 0.25])
    np.testing.assert_allclose(draws(np.log(p), top_p=0.6), [0, 2 / 3, 0, 1 / 3], atol=0.03)
    assert draws(np.log(p), top_p=0.01).tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(draws(np.log(p), top_p=1.0), p, atol=0.03)


def test_temperature_zero_takes_the_likeliest_and_tiny_ones_do_too():
    logits = np.array([1.0, 3.0, 3.0, 2.0], "float32")
    assert draws(logits, 10, temperature=0).tolist() == [0, 1, 0, 0]
    close = np.array([1.0, 3.1, 3.0, 2.0], "float32")
    assert draws(close, 10, temperature=1e-300).tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(draws(close, temperature=1e300), 1 / 4, atol=0.03)


@pytest.mark.parametrize("options, message", [
    (dict(temperature=-1), "temperature must be >= 0, got -1"), (dict(temperature=float("nan")), "got nan"),
    (dict(top_k=0), "top_k must be >= 1, got 0"), (dict(top_p=0.0), "top_p"), (dict(top_p=1.1), "1.1"),
    (dict(top_p=float("nan")), "nan"),
])  # fmt: skip
def test_nonsense_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        draws([1.0, 2.0], 1, **options)


class Always:
    """A random generator that always gives u."""

    def __init__(self, u):
        self.u = u

    def random(self):
        return self.u


@given(
    logits=st.lists(st.floats(-40, 40, width=32), min_size=1, max_size=9),
    temperature=st.one_of(st.floats(0, exclude_min=True, allow_infinity=False), st.floats(0.05, 5)),
    top_k=st.one_of(st.none(), st.integers(1, 12)),
    top_p=st.one_of(st.none(), st.floats(0, 1, exclude_min=True)),
    u=st.floats(0, 1, exclude_max=True),
)
def test_what_is_drawn_is_what_the_definition_says(logits, temperature, top_k, top_p, u):
    """Of the top k, the shortest beginning that reaches top p; of these the one at which, in the order of
    ids, the share u has been reached. Where rounding decides, the neighbours are right too."""
    x = np.array(logits, "float32")
    likeliest = sorted(range(len(x)), key=lambda i: (-x[i], i))[:top_k]
    with np.errstate(over="ignore"):
        p = dict(enumerate(np.exp((x.astype("float64") - x.max()) / temperature)))
    right = set()
    for limit in (1 - 1e-9, 1, 1 + 1e-9):
        enough = (top_p or 1) * limit * sum(p[i] for i in likeliest)
        n = next((n for n in range(1, len(likeliest)) if sum(p[i] for i in likeliest[:n]) >= enough), None)
        kept = sorted(likeliest[:n] if top_p else likeliest)
        total, reached = sum(p[i] for i in kept), 0.0
        for i in kept:
            if reached - 1e-9 * total <= u * total <= reached + p[i] + 1e-9 * total and p[i]:
                right.add(i)
            reached += p[i]
    assert sample(x, temperature, top_k, top_p, Always(u)) in right
    assert sample(x, 0, top_k, top_p, Always(u)) == likeliest[0]


def texts(**options):
    params, tables = model()
    return [list(generate(params, tables, CONFIG, [3], 40, seed=seed, **options)) for seed in range(4)]


@pytest.mark.parametrize("options", [dict(top_k=31), dict(top_k=32), dict(top_k=10**9), dict(top_p=1.0),
                                     dict(top_p=1), dict(top_k=31, top_p=1.0)])  # fmt: skip
def test_a_filter_that_keeps_every_token_changes_no_text(options):
    assert texts(**options) == texts()


def test_a_filter_that_keeps_what_would_be_drawn_anyway_changes_no_draw():
    """Ids 0 and 2 have next to no chance: without them, too, each random number gives the same id."""
    logits = np.array([-50.0, 2, -50, 3, 2.5], "float32")
    drawn = [[sample(logits, 1.0, *filters, Always(u)) for u in np.arange(0.005, 1, 0.01)]
             for filters in ((None, None), (3, None), (None, 0.99))]  # fmt: skip
    assert drawn[0] == drawn[1] == drawn[2] == sorted(drawn[0]) and set(drawn[0]) == {1, 3, 4}
