"""What can be tried of the GPU benchmarks without a GPU: on the stand-in, and PyTorch on the CPU."""

import ctypes
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

SIDES = ["ministem", "ministem-tf32", "ministem-host", "products"]
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def benchmarks(monkeypatch, gpu):
    """-> benchmarks/gpu.py and gpu_questions.py, on the stand-in"""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu as measured
    import gpu_questions as questions

    monkeypatch.setattr(measured, "launches", lambda take, wait: (take() and None, None))  # no profiler here
    monkeypatch.setattr(questions, "QUICK", True)
    return measured, questions


@pytest.mark.parametrize("script", ["gpu.py", "gpu_questions.py"])
def test_without_a_gpu_they_end_in_one_clear_line(script):
    if find_spec("cupy"):
        pytest.skip("CuPy is installed")
    done = subprocess.run([sys.executable, ROOT / "benchmarks" / script], capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1 and "nothing to measure: --device gpu: CuPy is not" in done.stderr


def test_the_sides_take_the_same_steps(benchmarks, monkeypatch):
    measured, _ = benchmarks
    counts = dict(size="tiny", warmup=1, steps=2, rounds=1)
    found = {side: measured.work(side, **counts) for side in SIDES}
    assert found["products"]["losses"] == [None] * 3 and found["products"]["ms"][0] > 0
    results = {side: [of_side] for side, of_side in found.items()}
    if find_spec("torch"):
        import torch

        monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda precision: None)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # its threads spin: on a busy machine they wait for each other
        take = measured.torch_side(*measured.task("tiny"), tf32=False, compiled=False, device="cpu")
        losses = [float(take()) for _ in range(3)]
        torch.set_num_threads(threads)
        results["torch"] = [dict(ms=[1.0], losses=losses, launches=100, busy=0.5)]
        results["torch"][0]["losses"][-1] *= 1.001
        with pytest.raises(AssertionError, match="do not compute the same thing: 1.0e-03 apart"):
            measured.check_losses({side: of_side["losses"] for side, (of_side,) in results.items()})
        results["torch"][0]["losses"][-1] /= 1.001
    assert set(measured.report("tiny", results, {"torch-compile": "no"})) == set(results)


def test_the_products_multiply_nothing_that_was_never_filled(benchmarks):
    """... for what lies in such memory may overflow, now and then (it did, in this suite)."""
    import step

    for a, b, out in step.products(*measured_task(benchmarks)):
        for operand in (a, b, out):
            assert 0.5 < operand.std() < 2


def measured_task(benchmarks):
    config, ((ids, _),) = benchmarks[0].task("tiny")
    return config, len(ids)


def test_questions_are_answered_one_by_one(benchmarks, gpu, capsys):
    """... and one that cannot be answered is no reason not to ask the next."""
    _, questions = benchmarks
    answers = questions.answer("abhk", gpu)
    out = capsys.readouterr().out
    assert all(f"({name}) " in out for name in "abhk")
    assert answers["b"]["found"].keys() == {"sum(0)", "ones @ x"}
    assert all(len(pair) == 2 for pair in answers["a"]["found"].values())
    assert "AttributeError" in answers["h"]["found"]["failed"]  # the stand-in has no `full`
    assert json.loads(json.dumps(answers)) and set(questions.QUESTIONS) == set("abcdefghijklm")


def columns_first(handle, ta, tb, m, n, k, alpha, A, kind_a, lda, step_a, B, kind_b, ldb, step_b, beta, C,
                  kind_c, ldc, step_c, count, compute, algorithm):  # fmt: skip
    """cuBLAS's product of batches as its manual has it: arrays are read by columns, ld apart."""

    def matrix(address, i, step, ld, rows, columns):
        pointer = ctypes.cast(address + 4 * i * step, ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (columns, ld))[:, :rows].T

    assert (handle, kind_a, kind_b, kind_c) == ("handle", 0, 0, 0)
    for i in range(count):
        a = matrix(A, i, step_a, lda, k, m).T if ta else matrix(A, i, step_a, lda, m, k)
        b = matrix(B, i, step_b, ldb, n, k).T if tb else matrix(B, i, step_b, ldb, k, n)
        matrix(C, i, step_c, ldc, m, n)[...] = a @ b


@pytest.mark.parametrize("ta, tb", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_batched_product_asks_cublas_for_the_right_thing(benchmarks, gpu, monkeypatch, ta, tb):
    _, questions = benchmarks
    cublas = SimpleNamespace(gemmStridedBatchedEx=columns_first)
    monkeypatch.setitem(sys.modules, "cupy.cuda", SimpleNamespace(cublas=cublas))
    monkeypatch.setattr(gpu.cuda, "get_cublas_handle", lambda: "handle", raising=False)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((3, 5, 4) if ta else (3, 4, 5), dtype="float32")
    b = rng.standard_normal((3, 6, 5) if tb else (3, 5, 6), dtype="float32")
    ours = questions.bmm(gpu, gpu.asarray(a), gpu.asarray(b), ta, tb)
    expected = (a.swapaxes(1, 2) if ta else a) @ (b.swapaxes(1, 2) if tb else b)
    np.testing.assert_allclose(ours.get(), expected, rtol=1e-5, atol=1e-6)
