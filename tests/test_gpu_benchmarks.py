"""What can be tried of the GPU benchmarks without a GPU: on the stand-in, and PyTorch on the CPU."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SIDES = ["ministem", "ministem-tf32", "ministem-host", "products"]
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def benchmarks(monkeypatch, gpu):
    """-> benchmarks/gpu.py, on the stand-in"""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import gpu as measured

    monkeypatch.setattr(measured, "launches", lambda take, wait: (take() and None, None))  # no profiler here
    return measured


@pytest.mark.parametrize("options", [[], ["--parts"]])
def test_without_a_gpu_it_ends_in_one_clear_line(options):
    if find_spec("cupy"):
        pytest.skip("CuPy is installed")
    command = [sys.executable, ROOT / "benchmarks" / "gpu.py", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.count("\n") == 1 and "nothing to measure: --device gpu: CuPy is not" in done.stderr


def test_the_sides_take_the_same_steps(benchmarks, monkeypatch):
    measured = benchmarks
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
    config, ((ids, _),) = benchmarks.task("tiny")
    return config, len(ids)


def test_other_ways_to_do_a_part_are_timed_one_by_one(benchmarks, gpu, capsys):
    """... and one that CuPy refuses is no reason not to time the next: the stand-in has no add.at."""
    found = benchmarks.measure_parts(gpu, [(benchmarks.scatter_add, 50, 64, 8)], times=2)
    out = capsys.readouterr().out
    ways = found["scatter_add [50, 64, 8]"]
    assert all(f"    {way} " in out for way in ways) and ways["add.at"].startswith("AttributeError: add")
    assert all(len(ways[way]) == 2 for way in ("ours", "one-hot product"))
    assert json.loads(json.dumps(found)) == found
