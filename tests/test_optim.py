"""AdamW against the formula written out, rows against dense, clipping, the schedule."""

import numpy as np
import pytest

from ministem.optim import PIECE, AdamW, cosine_schedule, global_norm
from ministem.tables import RowSparse, Tables

rng = np.random.default_rng(0)


def test_three_steps_equal_the_paper_written_out_for_one_number():
    """Loshchilov and Hutter's algorithm 2, in Python floats."""
    w, m, v, lr, b1, b2, eps, decay = 0.7, 0.0, 0.0, 0.1, 0.9, 0.95, 1e-8, 0.1
    params, tables = {"w": np.array([[w]])}, Tables({})
    optimizer = AdamW(lr, (b1, b2), eps, decay, clip=None)
    for t, g in enumerate([0.3, -0.2, 0.5], start=1):
        optimizer.step(params, tables, {"w": np.array([[g]])})
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = w - lr * decay * w - lr * (m / (1 - b1**t)) / ((v / (1 - b2**t)) ** 0.5 + eps)
        np.testing.assert_allclose(params["w"], [[w]], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_with_every_row_present_rows_equal_dense_bit_for_bit(dtype):
    V, F = 400, 170  # more numbers than one PIECE
    assert V * F > PIECE
    start = rng.standard_normal((V, F)).astype(dtype)
    dense, tables = {"w": start.copy()}, Tables({"w": start.copy()})
    one, other = AdamW(1e-2, weight_decay=0.0), AdamW(1e-2, weight_decay=0.0)
    for _ in range(4):
        g = rng.standard_normal((V, F)).astype(dtype)
        one.step(dense, Tables({}), {"w": g})
        other.step({}, tables, {"w": RowSparse(np.arange(V), g, (V, F))})
    assert dense["w"].tobytes() == tables["w"].tobytes() and (dense["w"] != start).all()


def test_threads_change_no_bit():
    shapes = {"a": (700, 200), "b": (3, 5), "c": (9,)}
    grads = {n: rng.standard_normal(s).astype("float32") for n, s in shapes.items()}
    grads["t"] = RowSparse(np.array([1, 4]), rng.standard_normal((2, 6)).astype("float32"), (8, 6))
    results = []
    for threads in (1, 2, 3):
        params = {n: np.ones(s, "float32") for n, s in shapes.items()}
        tables = Tables({"t": np.ones((8, 6), "float32")})
        optimizer = AdamW(1e-2, threads=threads)
        for _ in range(3):
            optimizer.step(params, tables, grads)
        results.append(
            [a.tobytes() for a in [*params.values(), tables["t"], *optimizer.state().values()]]
        )
    assert results[0] == results[1] == results[2]


def test_arrays_of_any_layout_are_updated():
    """A transposed view, as weights from elsewhere often are: updating a copy of it would do nothing."""
    plain, turned = {"w": np.ones((300, 400))}, {"w": np.ones((400, 300)).T}
    g = rng.standard_normal((300, 400))
    for params in (plain, turned):
        AdamW().step(params, Tables({}), {"w": g})
    assert (plain["w"] == turned["w"]).all() and (plain["w"] != 1).all()


def test_decay_is_for_matrices_only():
    """With a zero gradient a matrix shrinks by lr * decay; norms and table rows stay."""
    params, tables = {"matrix": np.ones((2, 3)), "norm": np.ones(3)}, Tables({"t": np.ones((4, 2))})
    grads = {n: np.zeros_like(p) for n, p in params.items()}
    grads["t"] = RowSparse(np.array([1, 2]), np.zeros((2, 2)), (4, 2))
    AdamW(0.1, weight_decay=0.5).step(params, tables, grads)
    np.testing.assert_allclose(params["matrix"], 1 - 0.1 * 0.5)
    assert (params["norm"] == 1).all() and (tables["t"] == 1).all()


def test_table_lr_multiplies_the_rate_of_tables():
    params, tables = {"p": np.zeros(2)}, Tables({"t": np.zeros((3, 2))})
    grads = {"p": np.ones(2), "t": RowSparse(np.array([0]), np.ones((1, 2)), (3, 2))}
    AdamW(0.1, table_lr=5.0).step(params, tables, grads)
    np.testing.assert_allclose(tables["t"][0], 5 * params["p"])


def test_clipping_is_by_one_norm_over_dense_and_rows():
    """(3) and (4) together have length 5: clip 1 divides both by 5, clip 10 and none leave them."""
    grads = {"p": np.array([3.0]), "t": RowSparse(np.array([1]), np.array([[4.0]]), (3, 1))}
    assert global_norm(grads) == 5
    for clip, scale in ((1.0, 1 / 5), (10.0, 1), (None, 1), (0, 1)):
        params, tables, optimizer = (
            {"p": np.zeros(1)},
            Tables({"t": np.zeros((3, 1))}),
            AdamW(clip=clip),
        )
        assert optimizer.step(params, tables, grads) == 5
        np.testing.assert_allclose(optimizer.m["p"], 0.1 * 3 * scale)
        np.testing.assert_allclose(optimizer.table_m["t"], [[0], [0.1 * 4 * scale], [0]])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e200])
def test_a_gradient_that_is_not_finite_changes_nothing(bad):
    params, tables = {"p": np.ones(2)}, Tables({"t": np.ones((3, 1))})
    optimizer = AdamW()
    optimizer.step(params, tables, {"p": np.ones(2)})
    before = params["p"].copy(), optimizer.m["p"].copy()
    with pytest.raises(FloatingPointError, match="step 2"):
        optimizer.step(params, tables, {"p": np.array([1.0, bad])})
    assert (
        (params["p"] == before[0]).all()
        and (optimizer.m["p"] == before[1]).all()
        and optimizer.t == 1
    )


@pytest.mark.parametrize("clip", [-1, -1e-9, float("nan")])
def test_a_limit_that_would_turn_the_gradients_round_is_refused(clip):
    with pytest.raises(ValueError, match="clip must be >= 0"):
        AdamW(clip=clip)


def test_state_and_load_go_on_exactly():
    def make():
        return {"p": np.ones((3, 2))}, Tables({"t": np.ones((4, 2))}), AdamW(0.1)

    steps = [
        {
            "p": rng.standard_normal((3, 2)),
            "t": RowSparse(np.array([s % 4]), rng.standard_normal((1, 2)), (4, 2)),
        }
        for s in range(6)
    ]
    params, tables, optimizer = make()
    for grads in steps:
        optimizer.step(params, tables, grads)
    p, t, first = make()
    for grads in steps[:3]:
        first.step(p, t, grads)
    _, _, second = make()
    second.start(p, t)
    second.load({n: a.copy() for n, a in first.state().items()}, first.t)
    for grads in steps[3:]:
        second.step(p, t, grads)
    assert (p["p"] == params["p"]).all() and (t["t"] == tables["t"]).all()


def test_the_schedule_rises_in_a_line_and_falls_along_a_cosine():
    rates = [cosine_schedule(s, 110, 2.0, warmup=10) for s in range(1, 111)]
    np.testing.assert_allclose(rates[:10], 0.2 * np.arange(1, 11))
    np.testing.assert_allclose(rates[59], 2.0 * 0.55)  # half way down
    np.testing.assert_allclose(rates[-1], 0.2)
    assert all(a > b for a, b in zip(rates[9:], rates[10:], strict=False))
    assert cosine_schedule(1, 5, 2.0) <= 2.0 and cosine_schedule(9, 5, 2.0) == pytest.approx(0.2)
