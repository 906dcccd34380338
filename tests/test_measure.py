"""Counting and judging: parameters and FLOPs against the arrays themselves, recall against generation."""

from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from ministem import backend
from ministem.config import Config, init_params
from ministem.generate import generate
from ministem.knowledge import measure
from ministem.model import forward, loss_and_grads
from results import measures

CONFIG = Config(31, dim=12, n_layers=3, n_heads=6, n_kv_heads=3, ffn_dim=20, context=9, stem_layers=(0, 2))


@pytest.mark.parametrize("ffn, stem_layers", [
    ("stem", (0, 2)), ("stem", ()), ("gate", (0, 1, 2)), ("additive", (1,)), ("dense", (0, 1)),
])  # fmt: skip
def test_counts_equal_the_arrays_and_the_products_that_are_made(ffn, stem_layers):
    config = replace(CONFIG, ffn=ffn, stem_layers=stem_layers)
    params, tables = init_params(config, 0)
    n = measure.count(config)
    sizes = {name: a.size for name, a in (params | tables.arrays).items()}
    rows = {name: tables[name].shape[1] for name in tables.names}
    assert n.total == sum(sizes.values())
    assert n.table_bytes == 3 * sum(tables[name].nbytes for name in tables.names)  # rows and two moments
    assert n.train_bytes - n.table_bytes == 4 * sum(p.nbytes for p in params.values())  # and a gradient
    assert n.active == sum((sizes | rows).values())

    T = config.context
    watched, batch, notes = measures.watch(params, tables.fetch(np.arange(T)[None]))
    forward(watched, config, batch)
    assert 2 * sum(adds for _, _, adds, _ in notes) / T == n.flops
    # every matrix is read once, and of every table one row for each position
    read = {name: numbers for _, name, _, numbers in notes if name}
    matrices = {name: a.size for name, a in params.items() if a.ndim == 2}
    assert read == matrices | {name: T * width for name, width in rows.items()}


@pytest.mark.parametrize("ffn", ["stem", "dense"])
def test_training_makes_three_times_the_products_of_a_forward_pass(ffn):
    config = replace(CONFIG, ffn=ffn)
    params, tables = init_params(config, 0)
    ids = np.random.default_rng(0).integers(0, 31, (2, config.context + 1))
    watched, batch, notes = measures.watch(params, tables.fetch(ids[:, :-1]))
    loss, grads = loss_and_grads(watched, config, batch, ids[:, 1:])
    plain, plain_grads = loss_and_grads(params, config, tables.fetch(ids[:, :-1]), ids[:, 1:])
    assert loss == plain and (grads["head"] == plain_grads["head"]).all()  # watching changes nothing
    assert 2 * sum(adds for _, _, adds, _ in notes) == 3 * measure.count(config).flops * 2 * config.context


def test_a_stem_layer_saves_a_third_of_its_ffn():
    C, F = CONFIG.dim, CONFIG.ffn_dim
    dense, one = (measure.count(replace(CONFIG, stem_layers=layers)) for layers in ((), (1,)))
    assert dense.flops - one.flops == 2 * C * F
    assert dense.active - one.active == C * F - F  # a matrix less, a row more


def test_angular_spread_equals_brute_force_without_zero_rows_or_a_vector_with_itself():
    vectors = np.random.default_rng(0).standard_normal((300, 24)) + 0.2
    vectors[7] = 0
    n = np.delete(vectors, 7, 0)
    n /= np.linalg.norm(n, axis=1, keepdims=True)
    cos = (n @ n.T)[np.triu_indices(299, 1)]
    for B in (50, 1000):
        found = measures.angular_spread(vectors, B)
        assert sum(found["counts"]) == len(cos) == 299 * 298 / 2
        assert abs(found["p95"] - np.quantile(abs(cos), 0.95)) < 3e-4
        assert abs(found["median"] - np.median(cos)) < 3e-4
        assert found["counts"] == np.histogram(cos, 200, (-1, 1))[0].tolist()


@pytest.mark.parametrize("vectors", [np.ones((1, 3)), np.zeros((4, 3)), np.eye(2) * [[1], [0]]])
def test_no_angle_without_two_vectors(vectors):
    with pytest.raises(ValueError, match="two vectors that are not zero"):
        measures.angular_spread(vectors)


def test_evaluate_is_the_mean_over_all_predictions():
    params, tables = init_params(CONFIG, 0)
    ids = np.random.default_rng(0).integers(0, 31, 40)
    losses = []
    for start in range(0, 39, 9):
        part = ids[start : start + 10]
        loss, _ = loss_and_grads(params, CONFIG, tables.fetch(part[None, :-1]), part[None, 1:])
        losses += [float(loss)] * (len(part) - 1)
    run = SimpleNamespace(params=params, tables=tables, config=CONFIG)
    assert len(losses) == 39
    for B in (1, 3, 7):
        np.testing.assert_allclose(measure.evaluate(run, ids, B), np.mean(losses), rtol=1e-5)


def test_recall_agrees_with_generation():
    """A question counts as right exactly if greedy generation gives all of its answer."""
    Question = namedtuple("Question", "relation prompt answer")
    params, tables = init_params(CONFIG, 1)
    params["head"] *= 40
    run = SimpleNamespace(params=params, tables=tables, config=CONFIG)
    run.tokenizer = SimpleNamespace(encode=lambda text: [int(word) for word in text.rstrip(".").split()])
    rng = np.random.default_rng(0)
    questions, expected = [], []
    for k in range(40):
        prompt = rng.integers(0, 31, rng.integers(1, 5)).tolist()
        answer = list(generate(params, tables, CONFIG, prompt, rng.integers(1, 4), temperature=0))
        if k % 2:  # one token of the answer, any one, is another
            at = rng.integers(len(answer))
            answer[at] = (answer[at] + 1 + rng.integers(30)) % 31
        words = [" ".join(map(str, ids)) for ids in (prompt, answer)]
        questions.append(Question("odd" if k % 2 else "even", *words))
        expected.append(not k % 2)
    shares, right = measure.recall(run, questions, B=7)
    assert right == expected and shares == {"even": 1.0, "odd": 0.0}


def test_the_device_of_arrays_is_kept():
    x = np.ones(3, "float32")
    assert backend.upload(x, like=x) is x and backend.download(x) is x


@pytest.mark.parametrize("policy, size, ids, hits", [
    ("lru", 2, "abbca", "..*.."),  # a leaves for c, then b for a
    ("lru", 2, "abaca", "..*.*"),  # a was asked for again, so c takes b's place
    ("lru", 1, "aabba", ".*.*."),
    ("lru", 3, "abcabc", "...***"),
    ("lru", 2, "abcabc", "......"),  # a loop that is one row too long for it
    ("lfu", 2, "aabcbca", ".*....*"),  # a twice: b and c push each other out
    ("lfu", 2, "abca", "...."),  # all once: the least recently used leaves, a for c, then b for a
    ("lfu", 2, "abbaca", "..**.*"),  # both twice, b less recently: b leaves
    ("lfu", 2, "aabbbcacb", ".*.**...*"),
    ("lfu", 2, "aaabbcbcb", ".**.*...."),  # b comes back as new: with its old count it would have stayed
    ("lfu", 9, "abcab", "...**"),
])  # fmt: skip
def test_hit_rates_are_those_found_by_hand(policy, size, ids, hits):
    """A star for each id that is in the cache when it is asked for."""
    assert measures.hit_rate(ids, size, policy) == hits.count("*") / len(ids)
    for n in range(1, len(ids)):  # and each of them, not only their number
        assert measures.hit_rate(ids[:n], size, policy) == hits[:n].count("*") / n


@pytest.mark.parametrize("policy", ["lru", "lfu"])
@pytest.mark.parametrize("size", [1, 2, 7, 30])
def test_hit_rates_are_those_of_a_slow_cache_that_searches_everything(policy, size):
    rng = np.random.default_rng(size)
    ids = np.minimum(rng.geometric(0.1, 600), 40).tolist()
    cache, hits = {}, 0  # id -> how often, when last
    for now, id in enumerate(ids):
        hits += id in cache
        if id not in cache and len(cache) == size:
            del cache[min(cache, key=lambda id: cache[id] if policy == "lfu" else cache[id][1])]
        cache[id] = cache.get(id, (0, 0))[0] + 1, now
    assert measures.hit_rate(ids, size, policy) == hits / len(ids)


def test_a_cache_that_there_cannot_be_is_refused():
    for size, policy in ((0, "lru"), (4, "fifo"), (1.5, "lru"), (float("nan"), "lfu")):
        with pytest.raises(ValueError, match="lru or lfu"):
            measures.hit_rate([1, 2], size, policy)
