"""The model on a device against the model on the CPU: on a real GPU (pytest -m gpu), and on the stand-in.

The tests marked gpu are skipped, with the reason, where there is none. On the stand-in the same tests show
no more than that they work. As of now they have not been run on a GPU by anybody."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_device import TEXT, TINY, start, step

from ministem import backend
from ministem.config import Config, init_params
from ministem.devices.host import HostTables
from ministem.generate import generate
from ministem.model import causal_mask, loss_and_grads, rope_forward, rope_rotations
from ministem.optim import AdamW

CONFIG = Config(vocab_size=300, dim=32, n_layers=3, n_heads=4, n_kv_heads=2, context=24, stem_layers=(0, 2))
CPU = np.empty(0, "float32")
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(params=["stand-in", pytest.param("gpu", marks=pytest.mark.gpu)])
def like(request):
    """-> an empty array on the device"""
    if request.param == "stand-in":
        request.getfixturevalue("gpu")
    try:
        return backend.device_array("gpu")
    except ValueError as why:
        pytest.skip(str(why))


def batches(n, B=4):
    """Ids (B,T+1) for n steps, with tokens that occur again and again."""
    rng = np.random.default_rng(3)
    return [(300 * rng.random((B, CONFIG.context + 1)) ** 3).astype(int) for _ in range(n)]


def losses(like, steps):
    """-> the losses of a training, and the weights it ends with"""
    state = start(like, CONFIG)
    read = [step(*state, ids, CONFIG)[0] for ids in batches(steps)]
    params, tables, optimizer = state
    arrays = {**params, **tables.arrays, **optimizer.state()}
    return backend.download(np.stack(read)), {name: backend.download(a) for name, a in arrays.items()}


def test_fifty_steps_have_the_losses_of_the_cpu(like):
    steps = 10 if "fake" in sys.modules["cupy"].__version__ else 50  # a step of the stand-in takes long
    ours, _ = losses(like, steps)
    cpu, _ = losses(CPU, steps)
    np.testing.assert_allclose(ours, cpu, rtol=1e-4)
    assert cpu[-1] < cpu[0]


def test_two_runs_are_equal_to_the_bit(like):
    one, other = losses(like, 3), losses(like, 3)
    assert one[0].tobytes() == other[0].tobytes()
    assert all(one[1][name].tobytes() == other[1][name].tobytes() for name in one[1])


def test_tables_in_the_hosts_memory_change_no_bit(like):
    """... fetched on a second stream while the step before runs, and updated across the bus."""
    with_model, _ = losses(like, 6)
    params, tables = init_params(CONFIG, 0)
    params = {name: backend.upload(p, like) for name, p in params.items()}
    tables, optimizer, read, ids = HostTables(tables.arrays), AdamW(1e-2), [], batches(7)
    for now, following in zip(ids, ids[1:], strict=False):
        batch = tables.fetch(now[:, :-1], now[:, 1:])
        loss, grads = loss_and_grads(params, CONFIG, batch, batch.targets)
        tables.prefetch(following[:, :-1], following[:, 1:])
        optimizer.step(params, tables, grads)
        read.append(loss)
    assert backend.download(np.stack(read)).tobytes() == with_model.tobytes()


def test_gradients_are_those_of_the_cpu(like):
    """Every one of them, 1e-4 of its largest number."""
    (ids,), grads = batches(1), []
    for place in (CPU, like):
        params, tables, _ = start(place, CONFIG)
        batch = tables.fetch(ids[:, :-1], ids[:, 1:])
        found = loss_and_grads(params, CONFIG, batch, batch.targets)[1]
        grads.append({name: backend.download(getattr(g, "values", g)) for name, g in found.items()})
    for name, grad in grads[0].items():
        np.testing.assert_allclose(grads[1][name], grad, rtol=0, atol=1e-4 * abs(grad).max(), err_msg=name)


def test_a_step_does_not_wait(like):
    """CuPy itself raises at whatever reads a number back."""
    import cupyx

    state = start(like, CONFIG)
    first, second = batches(2)
    step(*state, first, CONFIG)
    with cupyx.allow_synchronize(False):
        loss, norm = step(*state, second, CONFIG)
        with pytest.raises(Exception, match="ynchroniz|waits"):
            float(loss)
    assert np.isfinite(float(loss)) and np.isfinite(float(norm))


OPERATIONS = {
    "row_dot": lambda x, i: backend.row_dot(x, x),
    "row_sum": lambda x, i: backend.row_sum(x),
    "sum_rows": lambda x, i: backend.sum_rows(x, i, 20),
    "gather": lambda x, i: x[i],
    "take_along_axis": lambda x, i: np.take_along_axis(x, i[:, None], 1),
    "rope": lambda x, i: rope_forward(x.reshape(1, 50, 4, 10), rope_rotations(3, 50, 10, 10000.0, x))[0],
    "mask": lambda x, i: causal_mask(5, x),
    "exp": lambda x, i: np.exp(x),
    "tanh": lambda x, i: np.tanh(0.5 * x),
    "log": lambda x, i: np.log(x * x + 1),
    "root": lambda x, i: (x * x + 1e-5) ** -0.5,
    "max": lambda x, i: x.max(-1, keepdims=True),
    "vdot": lambda x, i: np.vdot(x, x),
    "product": lambda x, i: x @ x.T,
    "batched": lambda x, i: x.reshape(5, 10, 40) @ x.reshape(5, 10, 40).swapaxes(1, 2),
    "concatenate": lambda x, i: np.concatenate([x, x], axis=1),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_gives_what_numpy_gives(like, name):
    """1e-5 of the largest number; the scatter-add to the bit."""
    rng = np.random.default_rng(4)
    x, i = rng.standard_normal((50, 40), dtype="float32"), rng.integers(0, 20, 50)
    cpu = OPERATIONS[name](x, i)
    ours = backend.download(OPERATIONS[name](backend.upload(x, like), backend.upload(i, like)))
    assert ours.shape == cpu.shape and ours.dtype == cpu.dtype
    if name in ("sum_rows", "gather", "mask", "max", "concatenate", "take_along_axis"):
        assert ours.tobytes() == cpu.tobytes()
    else:
        np.testing.assert_allclose(ours, cpu, rtol=0, atol=1e-5 * np.abs(cpu).max())


def test_the_scatter_add_gives_the_bits_of_the_cpu_at_any_size(like):
    rng = np.random.default_rng(5)
    for N, D, rows in ((1, 1, 1), (255, 3, 7), (257, 256, 40), (2048, 384, 533), (3000, 1, 2)):
        values, slot = rng.standard_normal((N, D), dtype="float32"), rng.integers(0, rows, N)
        ours = backend.sum_rows(backend.upload(values, like), backend.upload(slot, like), rows)
        assert backend.download(ours).tobytes() == backend.sum_rows(values, slot, rows).tobytes()


def test_the_likeliest_text_is_that_of_the_cpu(like):
    texts = []
    for place in (CPU, like):
        params, tables, _ = start(place, CONFIG)
        texts.append(list(generate(params, tables, CONFIG, [5, 9, 2], 40, temperature=0)))
    assert texts[0] == texts[1]


@pytest.mark.gpu
@pytest.mark.parametrize("options", [[], ["--tf32"]])
def test_a_resumed_command_equals_an_uninterrupted_one(tmp_path, options):
    try:
        backend.device_array("gpu")
    except ValueError as why:
        pytest.skip(str(why))
    (tmp_path / "fox.txt").write_text(TEXT)

    def train(*args):
        command = [sys.executable, str(ROOT / "train.py"), *map(str, args)]
        subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | {"CUPY_CACHE_DIR": str(tmp_path)})

    args = ["--data", "fox.txt", *TINY, "--device", "gpu", *options, "--eval-every", 3]
    train(*args, "--steps", 6, "--out", "whole")
    train(*args, "--steps", 6, "--out", "part")
    shutil.rmtree(tmp_path / "part" / "step-000006")
    train("--resume", "part")
    for file in ("model.safetensors", "optimizer.safetensors", "state.json"):
        one, other = ((tmp_path / name / "step-000006" / file).read_bytes() for name in ("whole", "part"))
        assert one == other
