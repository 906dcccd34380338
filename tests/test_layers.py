"""Every forward/backward pair of model.py against slopes, in float64; all sizes different, ids repeated."""

import tracemalloc

import numpy as np
import pytest
from gradcheck import check_backward

from ministem import model
from ministem.backend import row_max, sum_rows

B, T, C, F, U, V = 2, 5, 12, 7, 6, 11
H, K, D = 6, 3, 2  # two query heads share a key head
SLOT = np.array([[0, 3, 3, 1, 5], [2, 4, 0, 0, 3]])


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


ROT = model.rope_rotations(3, T, D, 100.0, like=normal(1))
MASK = model.causal_mask(2, like=normal(1))  # attention in three blocks of queries, the last a short one
ffn = dict(x=normal(B, T, C), w_gate=normal(C, F), w_up=normal(C, F, seed=1), w_down=normal(F, C))
table = dict(slot=SLOT, block=normal(U, F))


def pick(*names):
    return {name: (ffn | table)[name] for name in names}


LAYERS = {
    "linear": dict(x=normal(B, T, C), w=normal(C, F)),
    "rmsnorm": dict(x=normal(B, T, C), g=normal(C)),
    "rope": dict(x=normal(B, T, H, D), rot=ROT),
    "attention": dict(
        x=normal(B, T, C),
        wqkv=normal(C, (H + 2 * K) * D),
        wo=normal(H * D, C),
        rot=ROT,
        mask=MASK,
        n_kv_heads=K,
    ),
    "glu": dict(a=normal(B, T, F), u=normal(B, T, F, seed=1)),
    "dense_ffn": pick("x", "w_gate", "w_up", "w_down"),
    "stem_ffn": pick("x", "slot", "w_gate", "block", "w_down"),
    "gate_ffn": pick("x", "slot", "block", "w_up", "w_down"),
    "additive_ffn": pick("x", "slot", "w_gate", "w_up", "block", "w_down"),
    "head_loss": dict(x=normal(B, T, C), head=normal(C, V), targets=SLOT + V - U, chunk=4),
}


def pair(name):
    return getattr(model, name + "_forward"), getattr(model, name + "_backward")


def arrays(nested):
    """All arrays in a nest of tuples, in order."""
    if isinstance(nested, tuple | list):
        return [a for part in nested for a in arrays(part)]
    return [nested] if isinstance(nested, np.ndarray) else []


def cast(args, dtype):
    to = {"f": dtype, "c": "complex64" if dtype == "float32" else "complex128"}
    return {
        k: a.astype(to.get(a.dtype.kind, a.dtype)) if isinstance(a, np.ndarray) else a
        for k, a in args.items()
    }


def test_every_pair_in_the_file_is_here():
    pairs = {n.removesuffix("_backward") for n in dir(model) if n.endswith("_backward")}
    assert pairs - {"block", "trunk"} == set(LAYERS)  # those two: test_model.py


@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_equal_slopes(layer):
    rng = np.random.default_rng(0)
    check_backward(*pair(layer), LAYERS[layer], rng, tol=1e-8, eps=2e-4, constants=("mask",))


@pytest.mark.parametrize("layer", LAYERS)
def test_float32_stays_float32(layer):
    """One stray float64 number would double the memory and halve the speed of all that follows."""
    forward, backward = pair(layer)
    out, cache = forward(**cast(LAYERS[layer], "float32"))
    grads = backward(np.ones_like(out), cache)
    for a in arrays([out, cache, grads]):
        assert a.dtype in ("float32", "complex64") or a.dtype.kind == "i", a.dtype


@pytest.mark.parametrize("layer", LAYERS)
def test_backward_can_be_called_twice(layer):
    """... with the same answer, leaving its inputs as they were, and so does forward."""
    forward, backward = pair(layer)
    args = LAYERS[layer]
    before = [a.tobytes() for a in arrays(list(args.values()))]
    out, cache = forward(**args)
    dout = normal(*out.shape)
    kept = [a.tobytes() for a in arrays([out, cache, dout])]
    first = [a.tobytes() for a in arrays([backward(dout, cache)])]
    second = [a.tobytes() for a in arrays([backward(dout, cache)])]
    assert first == second
    assert kept == [a.tobytes() for a in arrays([out, cache, dout])]
    assert before == [a.tobytes() for a in arrays(list(args.values()))]


def test_rmsnorm_of_a_known_vector():
    out, _ = model.rmsnorm_forward(np.array([[[3.0, 4.0]]]), np.array([1.0, 2.0]), eps=0.0)
    np.testing.assert_allclose(out, [[[3 / 12.5**0.5, 8 / 12.5**0.5]]])


def test_rope_turns_pairs_and_scores_depend_on_distance_only():
    """The first pair turns by one radian a position; q(m) . k(n) is a function of m - n."""
    rot = model.rope_rotations(0, 9, 4, 10000.0, like=normal(1))
    x = np.tile([1.0, 0.0, 1.0, 0.0], (1, 9, 1, 1))
    out, _ = model.rope_forward(x, rot)
    np.testing.assert_allclose(out[0, 2, 0], [np.cos(2), np.sin(2), np.cos(0.02), np.sin(0.02)])
    q, k = (model.rope_forward(np.tile(normal(4, seed=s), (1, 9, 1, 1)), rot)[0] for s in (1, 2))
    scores = q[0, :, 0] @ k[0, :, 0].T
    np.testing.assert_allclose(
        scores[1:, 1:], scores[:-1, :-1], atol=1e-12
    )  # equal along diagonals
    assert np.ptp(scores[0]) > 0.1  # and different across them


EARLIER = normal(2, B, K, 3, D)  # keys and values of three earlier positions, as a KV cache holds them


def after_earlier(k, v):
    """`extend`, with those"""
    return [np.concatenate([kept, new], axis=2) for kept, new in zip(EARLIER, (k, v), strict=True)]


@pytest.mark.parametrize("extend", [None, after_earlier])
@pytest.mark.parametrize("block", [1, 2, 3, 5, 8])
def test_attention_in_blocks_of_any_size_equals_the_formula_with_all_scores_at_once(block, extend):
    """softmax(q k' / sqrt(D)) v, grouped heads and causality written out, one head at a time."""
    args = LAYERS["attention"] | dict(mask=model.causal_mask(block, like=normal(1)), extend=extend)
    heads = (args["x"] @ args["wqkv"]).reshape(B, T, H + 2 * K, D)
    turned = model.rope_forward(heads[:, :, : H + K], ROT)[0]
    k, v = turned[:, :, H:].swapaxes(1, 2), heads[:, :, H + K :].swapaxes(1, 2)  # (B,K,T,D)
    k, v = extend(k, v) if extend else (k, v)
    visible = np.tri(T, k.shape[2], k.shape[2] - T)
    y = np.zeros((B, T, H, D))
    for h in range(H):
        e = np.exp(turned[:, :, h] @ k[:, h // (H // K)].swapaxes(1, 2) / D**0.5) * visible
        y[:, :, h] = e / e.sum(-1, keepdims=True) @ v[:, h // (H // K)]
    out, _ = model.attention_forward(**args)
    np.testing.assert_allclose(out, y.reshape(B, T, H * D) @ args["wo"], rtol=1e-11)


@pytest.mark.parametrize("extend", [None, after_earlier])
@pytest.mark.parametrize("block", [1, 2, 3, 5, 8])
def test_attention_in_blocks_has_the_right_gradients(block, extend):
    """... whichever blocks see a key, and with earlier keys, which are constants."""
    args = LAYERS["attention"] | dict(mask=model.causal_mask(block, like=normal(1)), extend=extend)
    check_backward(*pair("attention"), args, np.random.default_rng(0), tol=1e-8, constants=("mask",))


def test_the_memory_of_attention_grows_with_the_length_not_with_its_square():
    """Bytes of all arrays at the peak of forward and backward, for 4 times the length: measured 4.1 times;
    with all probabilities kept it was 11."""

    def peak(T):
        x, rot = normal(1, T, C), model.rope_rotations(0, T, D, 100.0, like=normal(1))
        args = LAYERS["attention"] | dict(x=x, rot=rot, mask=model.causal_mask(16, like=x))
        tracemalloc.start()
        out, cache = model.attention_forward(**args)
        model.attention_backward(out, cache)
        bytes_ = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return bytes_

    assert peak(1024) < 5 * peak(256)


def test_attention_survives_huge_scores():
    """Scores of 1e4 and keys that differ wildly: probabilities stay finite, without a warning."""
    args = LAYERS["attention"] | dict(wqkv=100 * LAYERS["attention"]["wqkv"])
    out, cache = model.attention_forward(**args)
    assert np.isfinite(out).all()
    assert all(np.isfinite(g).all() for g in model.attention_backward(normal(*out.shape), cache))


def test_silu_survives_huge_gates():
    a = np.array([[[-1e4, -50.0, 0.0, 50.0, 1e4]]])
    h, cache = model.glu_forward(a, np.ones_like(a))
    np.testing.assert_allclose(h, np.maximum(a, 0), atol=1e-12)
    da, _ = model.glu_backward(np.ones_like(a), cache)
    np.testing.assert_allclose(da, [[[0, 0, 0.5, 1, 1]]], atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 3, 10, 256])
def test_the_chunked_loss_equals_the_plain_one(chunk):
    x, head, targets = normal(B, T, C), normal(C, V), SLOT + V - U
    logits = x @ head
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.log(np.take_along_axis(p, targets[..., None], -1)).mean()
    loss, _ = model.head_loss_forward(x, head, targets, chunk)
    np.testing.assert_allclose(loss, expected, rtol=1e-12)


def test_the_loss_survives_huge_logits():
    x, head = 1e3 * normal(B, T, C), normal(C, V)
    loss, cache = model.head_loss_forward(x, head, SLOT)
    assert np.isfinite(loss) and all(np.isfinite(a).all() for a in arrays(cache))


@pytest.mark.parametrize("shape", [(7,), (2, 1, 5), (4, 3, 2, 9)])
def test_row_max_is_the_maximum_also_beside_infinities_and_nan(shape):
    x = normal(*shape).astype("float32")
    x[..., 0] = -np.inf
    np.testing.assert_array_equal(row_max(x), x.max(-1, keepdims=True))
    x[..., -1] = np.nan
    assert np.isnan(row_max(x)).all() and row_max(x).dtype == "float32"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sum_rows_equals_the_transposed_one_hot_product(dtype):
    onehot = np.eye(U)[SLOT.reshape(-1)]
    values = normal(B, T, F).astype(dtype)
    summed = sum_rows(values, SLOT, U)
    assert summed.dtype == dtype and summed.shape == (U, F)
    np.testing.assert_allclose(summed, onehot.T @ values.reshape(-1, F), rtol=1e-6)


def test_sum_rows_of_a_strided_view_and_of_rows_that_nobody_reads():
    values = normal(T, B, F).transpose(1, 0, 2)
    summed = sum_rows(values, SLOT, U + 3)
    np.testing.assert_allclose(summed[:U], sum_rows(values.copy(), SLOT, U))
    assert not summed[U:].any()
