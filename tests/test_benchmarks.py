"""The benchmarks run and print their tables. No test here looks at a clock: times are for people to judge."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
needs_torch = pytest.mark.skipif(not find_spec("torch"), reason="PyTorch, the opponent, is not installed")


def run(script, *args):
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "did not run" not in done.stdout, done.stdout
    assert "numpy" in done.stdout.splitlines()[0]  # versions come first
    return done.stdout


@pytest.fixture
def in_process(monkeypatch):
    """For what a worker does, called in this process instead: PyTorch takes long to import."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import torch

    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def table(out, first_word):
    """-> {first column: its cells} of the table whose rows start with one of these"""
    lines = (line.split() for line in out.splitlines())
    return {cells[0]: cells[1:] for cells in lines if cells and cells[0] in first_word}


def test_all_scatter_adds_run_and_agree(tmp_path):
    """... with the float64 sum: the script checks that before it measures."""
    out = run("scatter.py", "--quick", "--json", tmp_path / "found.json")
    assert "64 rows of 8 floats into" in out and "all ways agree" in out
    (found,) = json.loads((tmp_path / "found.json").read_text())["found"]
    assert len(found["ms"]) == 9 and min(found["ms"].values()) > 0


def test_a_wrong_scatter_add_is_found(monkeypatch):
    """`out[slot] = values` loses repeated tokens, and one lost is enough."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import scatter

    def lossy(values, slot, U):
        out = np.zeros_like(values, shape=(U, values.shape[1]))
        out[slot] += values
        return out

    values, slot, block = scatter.task(64, 8, 50)
    scatter.check(values, slot, len(block))
    monkeypatch.setitem(scatter.WAYS, "lossy", lossy)
    with pytest.raises(AssertionError, match="lossy is wrong"):
        scatter.check(values, slot, len(block))


def test_vocabulary_sizes_are_compared(tmp_path):
    out = run("vocab.py", "--quick", "--sides", "rows", "step", "--threads", 2,
              "--json", tmp_path / "a.json")  # fmt: skip
    rows = table(out, {"64", "256"})
    assert len(rows) == 2 and rows["64"][2] == "1.00x"
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["command"].startswith("python benchmarks/vocab.py --quick")
    assert set(found["median_ms"]) == {"rows", "step"}


@needs_torch
@pytest.mark.parametrize("side", ["torch", "torch-sparse"])
def test_pytorch_embeddings_take_part(side, in_process):
    from vocab import work

    assert work(side, V=64, threads=1, quick=True, seconds=0)["ms"] > 0


def test_generation_is_measured():
    out = run("generate.py", "--quick", "--sides", "ministem", "--threads", 1)
    assert len(table(out, {"ministem"})["ministem"]) == 12
    assert "all wrote the same 17 tokens" in out


@needs_torch
def test_pytorch_with_a_cache_writes_the_same_text():
    """... with grouped heads, too: the script compares the tokens."""
    out = run("generate.py", "--quick", "--sides", "ministem", "torch", "--threads", 1)
    assert len(table(out, {"ministem", "torch"})) == 2
    assert "all wrote the same 17 tokens" in out


@needs_torch
def test_weights_stored_either_way_write_the_same_text(in_process):
    from generate import work

    texts = [work(side, "tiny", threads=1, seconds=0)["text"] for side in ("torch", "torch-linear")]
    assert texts[0] == texts[1] and len(set(texts[0])) > 3


def test_memory_is_measured_twice_and_logits_are_never_all_there(tmp_path):
    out = run("memory.py", "--size", "quick", "tiny", "--rounds", 1, "--json", tmp_path / "memory.json")
    peaks = json.loads((tmp_path / "memory.json").read_text())["peaks"]
    assert peaks["quick"]["traced"] > peaks["tiny"]["traced"] > peaks["tiny"]["needed"] > 0
    for line in ("activations kept", "needed, in all", "peak, resident pages", "peak, arrays (tracemalloc)"):
        assert line in out
    assert "there cannot have been" in out


def test_the_products_of_blocks_are_counted(monkeypatch):
    """By hand: C=32, F=64, V=64, 64 positions; attention's six products see T(T+Q)/2 of its T*T scores."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import step

    config, ids, _ = step.task("tiny", "stem")
    C, F, T, V, L = 32, 64, 16, 64, 2
    weights = L * (4 * C * C + 2 * C * F) + C * V

    def counted(block):
        return sum(2 * a.size * b.shape[-1] for a, b, _ in step.products(config, len(ids), block))

    for block, scores in ((16, T * T), (8, 16 * 8 + 8 * 8), (1, T * (T + 1) // 2)):
        assert counted(block) == 6 * weights * ids.size + L * 6 * 2 * len(ids) * scores * C
    assert step.flops(config, len(ids)) == counted(64)


def test_views_are_counted_once(monkeypatch):
    """Two views of one array are one array, however deep they are nested."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from memory import owners

    a, b = np.zeros(10), np.zeros(4)
    cache = (a[2:], [a.reshape(2, 5).T, (b, None, 3.0)], a)
    assert {id(x) for x in owners(cache)} == {id(a), id(b)}


def test_products_and_ministem_take_a_step(tmp_path):
    """... in all sizes asked for; a record says on which machine, by which command."""
    out = run("step.py", "--size", "tiny", "small", "--sides", "products", "ministem", "--rounds", 1,
              "--warmup", 1, "--steps", 1, "--threads", 1, "--json", tmp_path / "step.json")  # fmt: skip
    assert "tiny, stem:" in out and "tiny, dense:" in out and "small, stem:" in out and "STEM / dense" in out
    found = json.loads((tmp_path / "step.json").read_text())
    assert found["command"].startswith("python benchmarks/step.py --size tiny small")
    assert {"date", "cpu", "cores", "threads", "versions"} <= found.keys()
    assert found["median_ms"]["small"]["stem"].keys() == {"products", "ministem"}


@needs_torch
def test_pytorch_takes_the_same_step():
    out = run("step.py", "--size", "tiny", "--sides", "ministem", "torch-sparse", "--variants", "stem",
              "--rounds", 1, "--steps", 2, "--threads", 1)  # fmt: skip
    assert "largest relative difference between the sides' losses" in out


def test_a_side_that_computes_something_else_is_found(monkeypatch):
    """... from any of its losses, from the first ones all the more."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import step

    ours = np.linspace(8, 6, 12)
    for at, by, right in ((7, 5e-5, True), (2, 1e-6, True), (7, 2e-4, False), (5, -2e-5, False)):
        theirs = ours.copy()
        theirs[at] *= 1 + by
        results = {"ministem": [dict(losses=ours)], "torch": [dict(losses=ours), dict(losses=theirs)]}
        if right:
            step.check_losses(results)
        else:
            with pytest.raises(AssertionError, match="do not compute the same"):
                step.check_losses(results)
