"""ministem against two models it did not write: autograd's, and the official STEM code.

torch_reference.py is the same model in PyTorch without any backward of its own. The stored file
official_stem.npz holds what the official code, run unmodified, answered on one small batch; it is
looked for in $MINISTEM_SHARED, then in ../shared/data beside the repository.
Compared is always the norm of the difference over the norm, parameter by parameter: small weights
cannot hide behind an absolute tolerance, nor one wrong parameter behind many right ones.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from ministem.config import Config, init_params
from ministem.convert.lingua import from_lingua, to_lingua
from ministem.model import forward, loss_and_grads
from ministem.optim import AdamW

# all sizes different, four query heads share two key/value heads; nothing left at its default
SIZES = dict(
    vocab_size=13,
    dim=24,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    ffn_dim=20,
    context=9,
    norm_eps=1e-2,
    rope_theta=50.0,
)
CASES = [
    ("dense", ()),
    ("stem", (0, 1, 2)),
    ("stem", (1,)),
    ("stem", (1, 2)),
    ("gate", (0, 2)),
    ("gate", (0, 1, 2)),
    ("additive", (0, 1, 2)),
    ("additive", (2,)),
]
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-10}


def relative(ours, theirs):
    return np.linalg.norm(np.asarray(ours) - theirs) / np.linalg.norm(theirs)


def dense(grad):
    return grad.to_dense() if hasattr(grad, "to_dense") else grad


def example(ffn, stem_layers, dtype, n_kv_heads=2):
    """A model whose every part matters, and a batch in which tokens repeat and some never occur."""
    config = Config(**{**SIZES, "n_kv_heads": n_kv_heads}, ffn=ffn, stem_layers=stem_layers)
    params, tables = init_params(config, seed=1, dtype=dtype)
    rng = np.random.default_rng(2)
    for w in params.values():  # what flows is O(1): gains around one, matrices fan_in^-0.5
        w[...] = (
            1 + 0.5 * rng.standard_normal(w.shape)
            if w.ndim == 1
            else rng.standard_normal(w.shape) * len(w) ** -0.5
        )
    for name in tables.names:
        tables[name][...] = rng.standard_normal(tables[name].shape)
    ids = rng.integers(0, 9, (3, 7))  # rows 9 to 12 are never asked for
    ids[0, :4] = 5  # and one is asked for four times running
    return config, params, tables, ids, rng.integers(0, 13, (3, 7))


def reference():
    torch = pytest.importorskip("torch", reason="PyTorch is the other side of this comparison")
    import torch_reference

    return torch, torch_reference


def both(config, params, tables, ids, targets, threads=1):
    """(logits, loss, gradients) from ministem, and again from the PyTorch reference."""
    torch, ref = reference()
    arrays = params | {name: tables[name] for name in tables.names}
    p = ref.to_torch(arrays, torch.float64 if params["norm"].dtype == np.float64 else torch.float32)
    theirs = (
        ref.logits(p, config, torch.tensor(ids)).detach().numpy(),
        *ref.loss_and_grads(p, config, torch.tensor(ids), torch.tensor(targets)),
    )
    batch = tables.fetch(ids)
    loss, grads = loss_and_grads(params, config, batch, targets, threads=threads)
    return (forward(params, config, batch), loss, grads), theirs


def check(ours, theirs, tol):
    logits, loss, grads = ours
    assert relative(logits, theirs[0]) < tol
    assert abs(loss - theirs[1]) < tol * abs(theirs[1])
    assert grads.keys() == theirs[2].keys()
    wrong = {name: relative(dense(grads[name]), g) for name, g in theirs[2].items()}
    assert max(wrong.values()) < tol, {name: e for name, e in wrong.items() if not e < tol}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ffn, stem_layers", CASES)
def test_logits_loss_and_every_gradient_agree_with_pytorch(ffn, stem_layers, dtype):
    check(*both(*example(ffn, stem_layers, dtype)), TOLERANCE[dtype])


@pytest.mark.parametrize("n_kv_heads", [1, 4])
def test_any_sharing_of_key_value_heads_agrees_with_pytorch(n_kv_heads):
    check(*both(*example("stem", (0, 2), np.float64, n_kv_heads)), 1e-10)


def test_a_batch_split_over_threads_agrees_with_pytorch():
    """Three sequences on two threads: parts of unequal size, each with rows the other lacks."""
    check(*both(*example("stem", (0, 2), np.float64), threads=2), 1e-10)


# Adam divides a gradient by its own size, so one that is mostly rounding moves its weight by a whole step in
# a direction that depends on the machine's BLAS. A larger eps, on both sides, keeps float32 comparable.
@pytest.mark.parametrize("dtype, eps, tol", [(np.float32, 1e-3, 1e-5), (np.float64, 1e-8, 1e-11)])
@pytest.mark.parametrize(
    "ffn, stem_layers", [("dense", ()), ("stem", (0, 2)), ("gate", (1,)), ("additive", (0, 1, 2))]
)
def test_ten_training_steps_track_pytorch(ffn, stem_layers, dtype, eps, tol):
    """Other tokens in every batch, so a lazy row now stands still and now moves."""
    torch, ref = reference()
    config, params, tables, _, _ = example(ffn, stem_layers, dtype)
    p = ref.to_torch(
        params | {name: tables[name] for name in tables.names},
        torch.float64 if dtype == np.float64 else torch.float32,
    )
    settings = dict(lr=1e-2, betas=(0.9, 0.95), eps=eps, weight_decay=0.1, table_lr=3.0, clip=1.0)
    ours, theirs = AdamW(**settings), ref.Trainer(p, tables.names, **settings)
    rng = np.random.default_rng(5)
    losses, norms = [], []
    for _ in range(10):
        ids = rng.choice(13, (3, 7), p=np.arange(13, 0, -1) / 91)  # high ids are rare
        targets = (ids + 1) % 13  # something that can be learnt
        batch = tables.fetch(ids)
        loss, grads = loss_and_grads(params, config, batch, targets)
        ours.step(params, tables, grads)
        their_loss, norm = theirs.step(config, torch.tensor(ids), torch.tensor(targets))
        losses.append((loss, their_loss))
        norms.append(norm)
    assert max(norms) > 1, "nothing was clipped, so clipping was not compared"
    assert losses[-1][0] < losses[0][0], "nothing was learnt"
    for step, (loss, their_loss) in enumerate(losses):
        assert abs(loss - their_loss) < tol * their_loss, f"step {step}: {loss} and {their_loss}"
    for name, w in (params | {name: tables[name] for name in tables.names}).items():
        assert relative(w, p[name].detach().numpy()) < tol, name


def official():
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    path = Path(os.environ.get("MINISTEM_SHARED", beside)) / "official_stem.npz"
    if not path.exists():
        pytest.skip(f"{path} is not there; MINISTEM_SHARED names the folder that has it")
    stored = np.load(path)
    ids, targets = stored["ids"], stored["targets"]
    params, grads = (
        {name.removeprefix(kind): stored[name] for name in stored.files if name.startswith(kind)}
        for kind in ("param/", "grad/")
    )
    return ids, targets, stored["logits"], float(stored["loss"]), params, grads


@pytest.mark.parametrize("threads", [1, 2])
def test_logits_loss_and_every_gradient_agree_with_the_official_code(threads):
    ids, targets, logits, loss, state, their_grads = official()
    params, tables, config = from_lingua(state, n_heads=4, context=16)
    assert (config.dim, config.n_kv_heads, config.ffn_dim) == (64, 2, 256)
    assert config.stem_layers == (1, 2)
    batch = tables.fetch(ids)
    our_loss, grads = loss_and_grads(params, config, batch, targets, threads=threads)
    # a gradient has its parameter's name and shape, so it translates by the same function
    grads = {name: dense(g) for name, g in grads.items()}
    ours = to_lingua(grads, grads, config)
    check((forward(params, config, batch), our_loss, ours), (logits, loss, their_grads), 1e-5)


def test_the_official_weights_come_back_bit_for_bit():
    *_, state, _ = official()
    again = to_lingua(*from_lingua(state, n_heads=4, context=16))
    assert again.keys() == state.keys()
    for name in state:
        np.testing.assert_array_equal(again[name], state[name], err_msg=name)
