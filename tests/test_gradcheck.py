"""The gradient checker itself: it must accept a right backward pass and reject broken ones."""

import numpy as np
import pytest
from gradcheck import check_backward

from ministem.backend import sum_rows
from ministem.model import stem_ffn_backward, stem_ffn_forward

B, T, C, F, U = 2, 5, 3, 4, 6


@pytest.fixture
def args():
    rng = np.random.default_rng(0)
    return dict(
        x=rng.standard_normal((B, T, C)),
        slot=np.array([[0, 3, 3, 1, 5], [2, 4, 0, 0, 3]]),  # repeats, in one text and across texts
        w_gate=rng.standard_normal((C, F)),
        block=rng.standard_normal((U, F)),
        w_down=rng.standard_normal((F, C)),
    )


def break_gradient(index, how):
    def backward(dout, cache):
        grads = list(stem_ffn_backward(dout, cache))
        grads[index] = how(grads[index])
        return tuple(grads)

    return backward


def test_it_accepts_the_right_backward(args):
    check_backward(stem_ffn_forward, stem_ffn_backward, args, np.random.default_rng(1))


MISTAKES = {
    "a thousandth too large": lambda g: g * 1.001,
    "zero": np.zeros_like,
    "sign flipped": np.negative,
    "rows shifted": lambda g: np.roll(g, 1, axis=0),
    "one number wrong": lambda g: g + (np.arange(g.size) == 0).reshape(g.shape) * 0.01,
    "nan": lambda g: g * np.nan,
    "another shape": lambda g: g[..., None],
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("index", range(4), ids=["dx", "dw_gate", "dblock", "dw_down"])
def test_it_rejects_a_broken_backward(args, index, mistake):
    broken = break_gradient(index, MISTAKES[mistake])
    with pytest.raises(AssertionError):
        check_backward(stem_ffn_forward, broken, args, np.random.default_rng(1))


def test_it_rejects_lost_repeats(args):
    """`dblock[slot] += du` keeps one of several rows of a repeated token: the classic mistake."""

    def forward(block, slot):
        return block[slot], (slot, len(block))

    def lossy(dout, cache):
        slot, n = cache
        dblock = np.zeros((n, dout.shape[-1]))
        dblock[slot] += dout
        return dblock

    def right(dout, cache):
        return sum_rows(dout, *cache)

    args = dict(block=args["block"], slot=args["slot"])
    check_backward(forward, right, args, np.random.default_rng(1))
    with pytest.raises(AssertionError, match="dblock"):
        check_backward(forward, lossy, args, np.random.default_rng(1))


def test_it_rejects_a_missing_gradient(args):
    def backward(dout, cache):
        return stem_ffn_backward(dout, cache)[:3]

    with pytest.raises(AssertionError, match="3 gradients"):
        check_backward(stem_ffn_forward, backward, args, np.random.default_rng(1))
