"""What makes STEM STEM: the lookup, the rows, their gradient, and who moves when."""

import numpy as np
import pytest
from gradcheck import to_dense
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from test_model import IDS, TARGETS, small

from ministem.backend import sum_rows
from ministem.model import (
    dense_ffn_backward,
    dense_ffn_forward,
    loss_and_grads,
    stem_ffn_backward,
    stem_ffn_forward,
)
from ministem.optim import AdamW
from ministem.tables import RowSparse, Tables

U, C, F = 11, 5, 7
rng = np.random.default_rng(0)
x, w_gate, w_down = (rng.standard_normal(s) for s in ((2, 5, C), (C, F), (F, C)))
table, dout = rng.standard_normal((U, F)), rng.standard_normal((2, 5, C))
ONEHOT = np.eye(U)[IDS]


def test_stem_is_swiglu_with_a_one_hot_input_to_the_up_projection():
    """Give a dense FFN's up-projection the one-hot token instead of x, and it is the STEM FFN."""
    wide = np.concatenate([x, ONEHOT], axis=-1)
    gate = np.concatenate([w_gate, np.zeros((U, F))])
    up = np.concatenate([np.zeros((C, F)), table])
    expected, cache = dense_ffn_forward(wide, gate, up, w_down)
    out, stem_cache = stem_ffn_forward(x, IDS, w_gate, table, w_down)
    np.testing.assert_allclose(out, expected, rtol=1e-12)
    _, dgate, dup, ddown = dense_ffn_backward(dout, cache)
    dx, dw_gate, dtable, dw_down = stem_ffn_backward(dout, stem_cache)
    np.testing.assert_allclose(dtable, dup[C:], rtol=1e-10, atol=1e-14)
    np.testing.assert_allclose(dw_gate, dgate[:C], rtol=1e-10)
    np.testing.assert_allclose(dw_down, ddown, rtol=1e-10)


def test_x_gets_no_gradient_through_the_table():
    """With the gate's weights at zero, silu'(0) = 1/2 still passes dh on to the gate; cut that too (w_gate
    is what leads back to x) and nothing reaches x: the lookup saw only ids."""
    _, cache = stem_ffn_forward(x, IDS, np.zeros_like(w_gate), table, w_down)
    dx, *_ = stem_ffn_backward(dout, cache)
    assert not dx.any()


def test_a_batch_has_each_distinct_row_once():
    tables = Tables({"embed": rng.standard_normal((U, C)), "layers.0.table": table})
    batch = tables.fetch(IDS)
    assert batch.rows.tolist() == sorted(set(IDS.flat))
    for name in tables.names:
        assert batch.blocks[name].shape[0] == len(batch.rows)
        assert (batch.blocks[name][batch.slots[name]] == tables[name][IDS]).all()


def test_a_fetched_block_is_a_copy():
    tables = Tables({"embed": rng.standard_normal((U, C))})
    before = tables["embed"].copy()
    tables.fetch(IDS).blocks["embed"][...] = 0
    assert (tables["embed"] == before).all()


def test_a_batch_does_not_change_with_the_ids_that_it_was_fetched_for():
    """Of one token as of several."""
    for ids in (np.array([[3]]), np.array([[3, 3]])):
        batch = Tables({"embed": rng.standard_normal((U, C))}).fetch(ids)
        ids[...] = 4
        assert batch.rows.tolist() == [3] and not batch.slots["embed"].any()


@pytest.mark.parametrize("ids, message", [
    ([[0, 11]], "11 is outside the vocabulary of 11"), ([[-1, 3]], "-1 is outside"),
    ([[0.0, 1.0]], "float64"),
    ([1, 2], "shape"), (np.zeros((0, 3), int), "shape"), ([[True, False]], "bool"),
])  # fmt: skip
def test_ids_that_are_none_are_refused(ids, message):
    """A GPU would wrap an id out of range around without a word."""
    tables = Tables({"embed": rng.standard_normal((U, C))})
    with pytest.raises(ValueError, match=message):
        tables.fetch(ids)


def test_the_gradient_of_a_table_has_exactly_the_rows_of_the_batch():
    config, params, tables = small()
    _, grads = loss_and_grads(params, config, tables.fetch(IDS), TARGETS)
    for name in tables.names:
        assert isinstance(grads[name], RowSparse)
        assert grads[name].rows.tolist() == sorted(set(IDS.flat))
        assert grads[name].shape == tables[name].shape
        dense = to_dense(grads[name])
        absent = [t for t in range(11) if t not in IDS]
        assert not dense[absent].any() and dense[grads[name].rows].any(-1).all()


def test_rows_of_absent_tokens_do_not_move():
    """... and neither do their moments, over several steps, while all others do."""
    config, params, tables = small()
    before = {name: tables[name].copy() for name in tables.names}
    optimizer = AdamW(1e-2)
    for _ in range(3):
        _, grads = loss_and_grads(params, config, tables.fetch(IDS), TARGETS)
        optimizer.step(params, tables, grads)
    present = np.isin(np.arange(11), IDS)
    for name in tables.names:
        moved = (tables[name] != before[name]).any(-1)
        assert (moved == present).all()
        for moment in (optimizer.table_m[name], optimizer.table_v[name]):
            assert (moment.any(-1) == present).all()


@given(ids=arrays("int64", array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.integers(0, U - 1)))
def test_fetching_and_the_scatter_add_are_inverse_to_each_other(ids):
    """A batch gives every position its token's row; the gradient of that sums what its positions got."""
    tables = Tables({"embed": table})
    batch = tables.fetch(ids)
    assert (batch.blocks["embed"][batch.slots["embed"]] == table[ids]).all()
    d = np.arange(ids.size * F, dtype="float64").reshape(*ids.shape, F)
    grad = RowSparse(batch.rows, sum_rows(d, batch.slots["embed"], len(batch.rows)), table.shape)
    expected = np.zeros_like(table)
    np.add.at(expected, ids, d)
    assert (grad.to_dense() == expected).all()
