"""--device gpu without a GPU: everything on the strict stand-in of fake_cupy.py, and what can go wrong.

This shows that our code asks CuPy for nothing it would refuse. What a GPU makes of it is for test_gpu.py."""

import builtins
import ctypes
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace

import fake_cupy
import numpy as np
import pytest

import train
from ministem import backend, model, optim
from ministem.config import Config, init_params
from ministem.devices import gpu as devices_gpu
from ministem.devices.host import HostTables
from ministem.knowledge import inside, measure, naming
from ministem.model import loss_and_grads
from ministem.optim import AdamW
from ministem.run.checkpoint import load_checkpoint, place
from ministem.tables import RowSparse, Tables

TINY = ["--dim", "16", "--layers", "2", "--heads", "2", "--context", "8", "--batch", "4", "--warmup", "2",
        "--vocab-size", "300", "--threads", "1"]  # fmt: skip
TEXT = "The quick brown fox jumps over the lazy dog. " * 60
CONFIG = Config(vocab_size=50, dim=16, n_layers=2, n_heads=4, n_kv_heads=2, context=12)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """-> a function: run train.py or sample.py in this process, in a folder of its own -> stdout, stderr"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train.report, "sample", lambda *args: None)  # writing has tests of its own
    (tmp_path / "fox.txt").write_text(TEXT)

    def call(script, *args, code=0):
        monkeypatch.setattr(sys, "argv", [f"{script}.py", *map(str, args)])
        try:
            __import__(script).main()
        except SystemExit as end:
            assert end.code == code, capsys.readouterr().err
        else:
            assert code == 0
        return capsys.readouterr()

    return call


def start(like, config=CONFIG, seed=0):
    params, tables = init_params(config, seed)
    params = {name: backend.upload(p, like) for name, p in params.items()}
    tables = Tables({name: backend.upload(tables[name], like) for name in tables.names})
    optimizer = AdamW(1e-2)
    optimizer.start(params, tables)
    return params, tables, optimizer


def step(params, tables, optimizer, ids, config=CONFIG):
    """What train.py does in a step -> loss, norm: on the device, not waited for"""
    batch = tables.fetch(ids[:, :-1], ids[:, 1:])
    loss, grads = loss_and_grads(params, config, batch, batch.targets)
    return loss, optimizer.step(params, tables, grads)


IDS = np.random.default_rng(0).integers(0, 50, (3, 13))

# ------------------------------------------------------------------------------- the whole cycle


def arrays(path):
    from safetensors.numpy import load_file

    return load_file(path / "model.safetensors") | load_file(path / "optimizer.safetensors")


@pytest.mark.parametrize(
    "variant", ["", "--ffn gate --stem-layers 1 --kv-heads 1", "--ffn additive --clip 0", "--ffn dense"]
)
def test_a_run_on_the_device_learns_what_a_run_on_the_cpu_does(gpu, command, tmp_path, variant):
    """Train, evaluate, clip, checkpoint: same losses (1e-5 relative), same weights and moments."""
    args = ["--data", "fox.txt", *TINY, *variant.split(), "--steps", 6, "--eval-every", 2]
    command("train", *args, "--out", "cpu")
    command("train", *args, "--out", "gpu", "--device", "gpu")
    losses = []
    for name in ("cpu", "gpu"):
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        losses.append([[line["train_loss"], line["val_loss"]] for line in lines])
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert losses[0][0][0] > losses[0][-1][0]
    one, other = (arrays(tmp_path / name / "step-000006") for name in ("cpu", "gpu"))
    for name in one:
        size = np.abs(one[name]).max()
        np.testing.assert_allclose(other[name], one[name], rtol=0, atol=3e-4 * size, err_msg=name)


def test_a_resumed_run_on_the_device_equals_an_uninterrupted_one(gpu, command, tmp_path):
    args = ["--data", "fox.txt", *TINY, "--eval-every", 2, "--device", "gpu"]
    command("train", *args, "--steps", 6, "--out", "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "step-000006")
    command("train", "--resume", "part")
    for file in ("model.safetensors", "optimizer.safetensors", "state.json"):
        one, other = ((tmp_path / name / "step-000006" / file).read_bytes() for name in ("whole", "part"))
        assert one == other


@pytest.fixture(scope="module")
def fox(tmp_path_factory):
    """A run made on the CPU, of the text about the fox."""
    folder = tmp_path_factory.mktemp("fox")
    (folder / "fox.txt").write_text(TEXT)
    root = os.path.dirname(os.path.dirname(__file__))
    args = ["--data", "fox.txt", *TINY, "--steps", "30", "--out", "run"]
    subprocess.run([sys.executable, f"{root}/train.py", *args], cwd=folder, check=True, capture_output=True)
    return folder / "run"


@pytest.mark.parametrize(
    "options",
    [
        ["--temperature", 0, "--tokens", 30],
        ["--top-k", 5, "--top-p", 0.9, "--seed", 3, "--samples", 2, "--tokens", 9],
        ["--edit", "fox=dog", "--edit-how", "average", "--edit-layers", "1", "--edit-all", "--tokens", 9],
        ["--edit", "fox=dog", "--edit", "dog=fox", "--edit-rows", "--tokens", 9],
    ],
)
def test_samples_and_edits_on_the_device_are_those_of_the_cpu(gpu, command, fox, options):
    args = ["--run", fox, "--prompt", "The quick fox and the dog", *options]
    cpu = command("sample", *args)
    before = gpu.counts.uploads
    on_gpu = command("sample", *args, "--device", "gpu")
    assert gpu.counts.uploads > before
    assert on_gpu == cpu and len(cpu.out) > 30


def test_questions_and_looks_inside_are_answered_alike(gpu, fox):
    """What measure.recall, edit_rates and inspect do with a run."""
    found = []
    for device in ("cpu", "gpu"):
        run = load_checkpoint(fox)
        place(run, "ram", backend.device_array(device))
        ids = run.tokenizer.encode("The quick brown fox jumps over the lazy dog.")
        changes = [naming.plan(run.tokenizer, "The quick fox", [("fox", "dog")]), []]
        prompts = [run.tokenizer.encode(text) for text in ("The quick fox", "The")]
        alike = inside.nearest(run.tables, ids[:1], 3)["embed"]
        gates = inside.gate(run, ids[:5], 4, ids[1:7], 3)
        found.append((measure.recites(run, [(ids[:8], 2), (ids[:5], 3)]), [id for id, _ in alike],
                      measure.go_on(run, prompts, changes, max_new_tokens=4), [g.share_x for g in gates]))
    assert found[0] == found[1]


def test_patches_are_made_and_applied_on_the_device(gpu, command, fox, tmp_path):
    args = ["--init-from", fox, "--tables-only", "--data", "fox.txt", "--steps", 3, "--batch", 2]
    for rows in ([], ["--rows", "fox,dog"]):
        sizes = []
        for device in ("cpu", "gpu"):
            where = ["--out", f"{device}{len(rows)}", "--save-patch", f"{device}.safetensors"]
            command("train", *args, *rows, *where, "--device", device)
            sizes.append((tmp_path / f"{device}.safetensors").stat().st_size)
        assert sizes[0] == sizes[1]
    args = ["--run", fox, "--patch", "gpu.safetensors", "--prompt", "The fox", "--tokens", 5]
    assert command("sample", *args, "--device", "gpu") == command("sample", *args)


def test_a_model_that_blows_up_on_the_device_is_not_saved_either(gpu, command, tmp_path):
    """Nobody waits for the norm of a step there: that it was not finite is seen when the loss is read."""
    args = ["--data", "fox.txt", *TINY, "--steps", 6, "--eval-every", 3, "--warmup", 0, "--device", "gpu"]
    err = command("train", *args, "--lr", "1e20", code=2).err
    assert "at step 2" in err.splitlines()[-1] and "Lower --lr" in err
    assert not list(tmp_path.rglob("step-*"))


def test_a_stopped_run_looks_at_its_losses_before_it_saves(gpu, command, tmp_path, monkeypatch):
    """Ctrl-C right after a step that blew up."""
    schedule = optim.cosine_schedule

    def stop_at_3(step, *rest):
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return schedule(step, *rest)

    monkeypatch.setattr(train, "cosine_schedule", stop_at_3)
    args = ["--data", "fox.txt", *TINY, "--steps", 6, "--eval-every", 6, "--warmup", 0, "--device", "gpu"]
    err = command("train", *args, "--lr", "1e20", code=2).err
    assert "at step 2" in err.splitlines()[-1] and not list(tmp_path.rglob("step-*"))


def test_tf32_is_asked_for_before_the_first_product(gpu, command):
    _, err = command("train", "--tf32", "--data", "fox.txt", code=2)
    assert "--tf32 is for --device gpu" in err
    seen, probe = [], gpu.ones

    def ones(*args, **kwargs):
        seen.append(os.environ.get("CUPY_TF32"))
        return probe(*args, **kwargs)

    gpu.ones = ones
    try:
        backend.device_array("gpu")
        backend.device_array("gpu", tf32=True)
    finally:
        del gpu.ones
    assert seen == [None, "1"]


# ------------------------------------------------------------------ what a step costs, and planted defects


def check_step(gpu):
    """A training step waits for nothing and sends its ids in one piece -> how many kernels it launched"""
    state = start(backend.device_array("gpu"))
    step(*state, IDS)
    gpu.reset(forbid_sync=True)
    step(*state, IDS)
    counts = gpu.counts
    assert (counts.syncs, counts.uploads, counts.downloads) == (0, 1, 0), counts
    assert set(counts.slow) == {"a copy for a product"}, counts.slow
    return counts.launches


def test_a_step_makes_one_upload_and_no_synchronisation(gpu, capsys):
    launches = check_step(gpu)
    with capsys.disabled():
        print(f"\nlaunches in a step of {CONFIG.n_layers} layers: {launches}")
    assert launches < 600


def test_a_longer_text_launches_no_more_kernels(gpu):
    """... for attention takes it in one block, up to 1,024 positions."""
    config, launches = replace(CONFIG, context=200), []
    for T in (12, 200):
        state = start(backend.device_array("gpu"), config)
        ids = np.random.default_rng(0).integers(0, 50, (1, T + 1))
        gpu.reset()
        step(*state, ids, config)
        launches.append(gpu.counts.launches)
    assert launches[0] == launches[1]


def test_several_blocks_of_attention_give_the_same_on_the_device(gpu, monkeypatch):
    losses = []
    for device, block in (("cpu", 12), ("cpu", 5), ("gpu", 5)):
        monkeypatch.setattr(model, "block_size", lambda T, like, block=block: min(T, block))
        state = start(backend.device_array(device))
        losses.append([float(step(*state, IDS)[0]) for _ in range(4)])
    np.testing.assert_allclose(losses[1:], losses[:1] * 2, rtol=1e-5)
    assert losses[0][3] < losses[0][0]


def a_mask_of_numpy(monkeypatch):
    monkeypatch.setattr(model, "causal_mask", lambda T, like: np.zeros((T, T), "float32"))
    return pytest.raises(TypeError, match="Unsupported type <class 'numpy.ndarray'>")


def an_item_in_the_step(monkeypatch):
    norm = optim.global_norm
    monkeypatch.setattr(optim, "global_norm", lambda grads: norm(grads).item())
    return pytest.raises(AssertionError, match="item waits for the device")


def a_condition_in_the_step(monkeypatch):
    norm = optim.global_norm
    monkeypatch.setattr(optim, "global_norm", lambda grads: norm(grads) if norm(grads) > 0 else 0)
    return pytest.raises(AssertionError, match="__bool__ waits for the device")


def targets_by_themselves(monkeypatch):
    fetch = Tables.fetch

    def apart(self, ids, targets):
        return replace(fetch(self, ids), targets=backend.upload(targets, self["embed"]))

    monkeypatch.setattr(Tables, "fetch", apart)
    return pytest.raises(AssertionError, match="uploads=2")


@pytest.mark.parametrize(
    "planted",
    [a_mask_of_numpy, an_item_in_the_step, a_condition_in_the_step, targets_by_themselves],
)
def test_defects_that_numpy_would_not_mind_are_caught(gpu, monkeypatch, planted):
    with planted(monkeypatch):
        check_step(gpu)


@pytest.mark.parametrize("bad", [-1, 50])
def test_an_id_outside_the_vocabulary_is_refused_before_it_gets_there(gpu, bad):
    """The GPU itself would take row 0 for id V, and say nothing."""
    like = backend.device_array("gpu")
    _, tables, _ = start(like)
    wrong = IDS.copy()
    wrong[0, 2] = bad
    for ids, targets in ((wrong, IDS), (IDS, wrong)):
        with pytest.raises(ValueError, match=f"token id {bad} is outside"):
            tables.fetch(ids, targets)
    on_device = backend.upload(wrong, like)
    with pytest.raises(IndexError):  # and where ours does not look, the stand-in does
        tables["embed"][on_device]
    with pytest.raises(IndexError):
        np.take_along_axis(tables["embed"].T, on_device[:1], 1)


def test_ids_of_a_large_vocabulary_get_there_as_they_are(gpu):
    """More than 16 bits of them, in a batch, as targets, and on the way to the scatter-add."""
    like, V = backend.device_array("gpu"), 70_000
    table = np.arange(2.0 * V, dtype="float32").reshape(V, 2)
    ids = np.array([[69_999, 3, 32_768], [65_536, 3, 40_000]])
    batch = Tables({"embed": backend.upload(table, like)}).fetch(ids, ids[::-1])
    assert (batch.blocks["embed"].get()[batch.slots["embed"].get()] == table[ids]).all()
    assert (batch.rows.get() == np.unique(ids)).all() and (batch.targets.get() == ids[::-1]).all()
    sums = backend.sum_rows(backend.upload(table[:6], like), backend.upload(ids.reshape(-1), like), V)
    assert sums.get()[69_999].tolist() == table[0].tolist() and sums.get()[3].tolist() == [10, 12]


def test_rows_are_summed_to_the_bits_of_the_cpu(gpu):
    """The kernel (here its twin) and SciPy add in one order: that of the positions."""
    rng, like = np.random.default_rng(1), backend.device_array("gpu")
    for dtype in ("float32", "float64"):
        values, slot = rng.standard_normal((700, 300)).astype(dtype), rng.integers(0, 9, 700)
        on_cpu = backend.sum_rows(values, slot, 11)
        on_gpu = backend.sum_rows(backend.upload(values, like), backend.upload(slot, like), 11)
        assert on_gpu.get().tobytes() == on_cpu.tobytes() and on_cpu.dtype == dtype


def test_a_batch_without_any_of_the_rows_wanted_changes_nothing():
    """--rows Spain, and no Spain in the batch: an update of no rows is no division by zero."""
    tables, none = Tables({"t": np.ones((3, 2))}), RowSparse(np.arange(0), np.ones((0, 2)), (3, 2))
    assert AdamW().step({}, tables, {"t": none}) == 0 and (tables["t"] == 1).all()


# ------------------------------------------------------------------------- tables in the host's memory


def test_tables_on_the_host_learn_to_the_bit_what_tables_with_the_model_do(gpu, command, tmp_path):
    """... resumed, too, and resumed with the tables elsewhere."""
    args = ["--data", "fox.txt", *TINY, "--steps", 6, "--eval-every", 2, "--device", "gpu"]
    command("train", *args, "--out", "ram")
    command("train", *args, "--out", "host", "--tables", "host")
    for name, where in (("part", "host"), ("other", "ram")):
        shutil.copytree(tmp_path / "host", tmp_path / name)
        shutil.rmtree(tmp_path / name / "step-000006")
        command("train", "--resume", name, "--tables", where)
    for file in ("model.safetensors", "optimizer.safetensors"):
        wanted = (tmp_path / "ram" / "step-000006" / file).read_bytes()
        for name in ("host", "part", "other"):
            assert (tmp_path / name / "step-000006" / file).read_bytes() == wanted, f"{name} {file}"
    folders = [tmp_path / name / "step-000006" for name in ("ram", "host", "part", "other")]
    losses = [json.loads((folder / "state.json").read_text())["losses"] for folder in folders]
    assert all(some == losses[0] for some in losses)
    err = command("train", "--data", "fox.txt", "--tables", "host", code=2).err
    assert "--tables host is for --device gpu" in err
    for flags in (["--tf32"], ["--tables", "host"]):
        err = command("train", "--resume", "ram", "--device", "cpu", *flags, code=2).err
        assert " ".join(flags) + " is for --device gpu" in err


def on_host(gpu):
    like = backend.device_array("gpu")
    params, tables = init_params(CONFIG, 0)
    params = {name: backend.upload(p, like) for name, p in params.items()}
    tables, optimizer = HostTables(tables.arrays), AdamW(1e-2)
    optimizer.start(params, tables)
    return params, tables, optimizer


def test_rows_that_a_step_updates_after_they_were_prefetched_are_read_again(gpu):
    """The hazard: batch two is fetched while step one runs, which then changes half of its rows."""
    params, tables, optimizer = on_host(gpu)
    one, two = np.arange(8).reshape(1, 8), np.arange(4, 12).reshape(1, 8)
    batch = tables.fetch(one, one)
    _, grads = loss_and_grads(params, CONFIG, batch, batch.targets)
    tables.prefetch(two, two)
    with tables.stream:
        early = {name: block.get() for name, block in tables.ahead[1].blocks.items()}
    optimizer.step(params, tables, grads)
    block = tables.fetch(two, two).blocks
    for name in tables.names:
        now = block[name].get()
        assert (now == tables[name][4:12]).all()
        assert (early[name][:4] != now[:4]).all() and (early[name][4:] == now[4:]).all()


def test_what_was_prefetched_is_used_for_that_batch_only(gpu):
    _, tables, _ = on_host(gpu)
    tables.fetch(IDS, IDS)
    for wanted in ((IDS + 1) % 50, IDS):
        tables.prefetch(IDS, IDS)
        gpu.reset()
        batch = tables.fetch(wanted, wanted)
        assert gpu.counts.uploads == (0 if wanted is IDS else 1)
        assert (batch.targets.get() == wanted).all() and tables.ahead is None
    tables.fetch(np.array([[49]]))
    tables.prefetch(IDS, IDS)
    row = IDS[0, :1]
    assert row != 49
    tables.write("embed", row, np.ones((1, 16), "float32"))  # an edit: of any row
    batch = tables.fetch(IDS, IDS)
    assert (batch.blocks["embed"].get()[batch.slots["embed"].get()[0, 0]] == 1).all()


def test_what_was_prefetched_for_other_ids_or_other_targets_is_not_used(gpu):
    """Each for itself: the same ids may come again with other targets."""
    other = (IDS + 1) % 50
    for ids, targets in ((IDS, other), (other, IDS), (other, other), (IDS, IDS)):
        _, tables, _ = on_host(gpu)
        tables.prefetch(IDS, IDS)
        batch = tables.fetch(ids, targets)
        assert (batch.targets.get() == targets).all()
        assert (batch.rows.get()[batch.slots["embed"].get()] == ids).all()
    tables.prefetch(IDS, IDS)
    assert tables.fetch(IDS).targets is None


def test_a_step_with_tables_on_the_host_does_not_wait_either(gpu):
    params, tables, optimizer = on_host(gpu)
    inputs, targets = IDS[:, :-1], IDS[:, 1:]
    for turn in range(3):
        batch = tables.fetch(inputs, targets)
        loss, grads = loss_and_grads(params, CONFIG, batch, batch.targets)
        tables.prefetch(inputs, targets)
        optimizer.step(params, tables, grads)
        if turn == 1:
            gpu.reset(forbid_sync=True)
    assert (gpu.counts.uploads, gpu.counts.downloads) == (2, 0)  # ids, and which rows to read again
    with pytest.raises(AssertionError, match="waits"):  # to look at a whole table, somebody has to
        tables["embed"]


@pytest.mark.parametrize("forgotten", ["the second stream", "the first stream"])
def test_a_stream_that_does_not_wait_for_the_other_is_caught(gpu, monkeypatch, forgotten):
    params, tables, optimizer = on_host(gpu)
    step(params, tables, optimizer, IDS)
    tables.fetch(IDS[:, :-1], IDS[:, 1:])
    if forgotten == "the second stream":
        monkeypatch.setattr(tables.stream, "wait_event", lambda event: None)
    else:
        monkeypatch.setattr(devices_gpu, "wait_for", lambda event: None)
    with pytest.raises(AssertionError, match="has to wait"):
        tables.prefetch(IDS[:, :-1], IDS[:, 1:])
        step(params, tables, optimizer, IDS)


def test_tables_on_the_host_take_no_memory_of_the_gpu(gpu):
    """A step with tables of 20,000 rows; the GPU has room for a tenth of them."""
    config = replace(CONFIG, vocab_size=20_000)
    arrays = init_params(config, 0)[1].arrays
    gpu.reset(memory=sum(a.nbytes for a in arrays.values()) / 10)
    tables = HostTables(arrays)
    moments = tables.zeros(), tables.zeros()
    batch = tables.fetch(IDS)
    for kept in (tables, *moments):
        kept.write("embed", batch.rows, batch.blocks["embed"])
    assert (moments[1]["embed"][np.unique(IDS)] == arrays["embed"][np.unique(IDS)]).all()
    with pytest.raises(MemoryError):
        backend.upload(arrays["layers.0.table"], batch.blocks["embed"])


# --------------------------------------------------------------------------------- what can be missing


class CUDARuntimeError(RuntimeError):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class CompileException(Exception):
    pass


class DynamicLibNotFoundError(RuntimeError):
    pass


NOTHING = ModuleNotFoundError("No module named 'cupy'", name="cupy")
HALF = ModuleNotFoundError("No module named 'cuda'", name="cuda")
BANNER = """
================================================================
Failed to import CuPy.

If you installed CuPy via wheels, make sure that the package matches with the version of CUDA installed.

Original error:
  ImportError: libcudart.so.12: cannot open shared object file
================================================================
"""
DRIVER = CUDARuntimeError(35, "cudaErrorInsufficientDriver: CUDA driver version is insufficient")
HEADERS = "a.cu(1): note\na.cu(2): catastrophic error: cannot open source file vector_types.h"


@pytest.mark.parametrize(
    "error, driver, words",
    [
        (NOTHING, None, ['".[gpu]"', ".[gpu-cuda12]"]),
        (HALF, None, ["pip install cuda-pathfinder"]),
        (ImportError(BANNER), None, ["ImportError: libcudart.so.12", "reinstall"]),
        (DRIVER, 0, ["no NVIDIA driver found"]),
        (DRIVER, 12080, ["CUDA 12.8", "needs 13.x", "install cupy-cuda12x", "update the driver"]),
        (DRIVER, 11040, ["CUDA 11.4", "needs 13.x: update the driver"]),
        (CUDARuntimeError(100, "cudaErrorNoDevice"), 13000, ["no GPU visible (CUDA_VISIBLE_DEVICES=7)"]),
        (CUDARuntimeError(802, "cudaErrorSystemNotReady"), 13000, ["NotReady", "nvidia-smi"]),
        (CUDARuntimeError(803, "cudaErrorSystemDriverMismatch"), 13000, ["Mismatch", "nvidia-smi"]),
        (CUDARuntimeError(46, "cudaErrorDevicesUnavailable"), 13000, ["Unavailable", "nvidia-smi"]),
        (DynamicLibNotFoundError("Failure finding libnvrtc.so.13"), 13000, ["libnvrtc.so.13", "[ctk]"]),
        (ImportError("libcublasLt.so.13: cannot open"), 13000, ["libcublasLt.so.13", "[ctk]"]),
        (CompileException(HEADERS), 13000, ["vector_types.h", "headers", "[ctk]"]),
        (fake_cupy.OutOfMemoryError("Out of memory allocating 512 bytes"), 13000, ["512 b", "nvidia-smi"]),
        (RuntimeError("line one\nline two"), 13000, ["cannot be used (line one)"]),
        (RuntimeError("line one\nline two"), None, ["loaded (RuntimeError: line one)", "reinstall"]),
        (AttributeError("module 'cupy' has no attribute 'cuda'"), None, ["a part of CuPy", "reinstall"]),
        (SystemError("initialization of _core failed"), None, ["do not fit", "_core failed", "reinstall"]),
    ],
)
def test_each_thing_that_can_be_missing_is_said_in_one_line(monkeypatch, error, driver, words):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    runtime = SimpleNamespace(driverGetVersion=lambda: driver, runtimeGetVersion=lambda: 13000)
    line = devices_gpu.explain(error, runtime if driver is not None else None)
    assert "\n" not in line and all(word in line for word in words), line


@pytest.mark.parametrize("script", ["train", "sample"])
@pytest.mark.parametrize(
    "name, result, words",
    [
        ("import", None, "CuPy is not installed"),
        ("getDeviceCount", CUDARuntimeError(35, "..."), "CUDA 12.8 and this CuPy needs 13.x"),
        ("getDeviceCount", 0, "no GPU visible"),
        ("ones", DynamicLibNotFoundError("libnvrtc.so.13"), "CUDA libraries are missing"),
        ("ones", CompileException(HEADERS), "CUDA headers are missing"),
        ("ones", 3.0, "the GPU says that 4 x (2 + 1) is 76.0"),
    ],
)
def test_a_gpu_that_cannot_be_used_ends_a_command_before_any_data_is_read(
    gpu, command, monkeypatch, tmp_path, script, name, result, words
):
    """... in one line, with exit code 2. Nobody falls back to the CPU, and there is no run folder."""

    def broken(*args, **kwargs):
        if isinstance(result, Exception):
            raise result
        return gpu.zeros(*args, **kwargs) + result if name == "ones" else result

    if name == "import":
        monkeypatch.setitem(sys.modules, "cupy", None)
    else:
        monkeypatch.setattr(gpu.runtime, "driverGetVersion", lambda: 12080)
        monkeypatch.setattr(gpu if name == "ones" else gpu.runtime, name, broken, raising=False)
    source = ["--data", "missing.txt"] if script == "train" else ["--run", "missing"]
    err = command(script, *source, "--device", "gpu", code=2).err
    assert err.count("\n") == 1 and words in err and err.endswith("; or use --device cpu\n"), err
    assert os.listdir(tmp_path) == ["fox.txt"]


@pytest.mark.parametrize("init, cuda", [
    (None, None), ("", None), ("import cupy.cuda", None), ("", ""), ("1 / 0", None), ("x = = 1", None),
    ("raise SystemError('bad call')", None), ("raise AttributeError('no bool8')", None), ("\0", None),
    ("from cupy import cuda", "runtime = 1"),
])  # fmt: skip
def test_half_a_cupy_is_one_line(tmp_path, monkeypatch, init, cuda):
    """What an installation that broke off leaves: an empty folder, a file without the rest, versions that do
    not fit."""
    (tmp_path / "cupy").mkdir()
    for name, content in (("__init__", init), ("cuda", cuda)):
        if content is not None:
            (tmp_path / "cupy" / f"{name}.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)

    def ours():
        return [name for name in sys.modules if name.split(".")[0] == "cupy"]

    for name in ours():
        monkeypatch.delitem(sys.modules, name)
    try:
        with pytest.raises(ValueError, match="^--device gpu: .*CuPy.*install.*; or use --device cpu$"):
            backend.device_array("gpu")
    finally:
        for name in ours():
            del sys.modules[name]


def test_an_error_of_ours_is_not_explained_away(gpu, monkeypatch):
    monkeypatch.setattr(gpu, "ones", lambda *a, **k: 1 / 0, raising=False)
    with pytest.raises(ZeroDivisionError):
        backend.device_array("gpu")


def test_too_little_memory_in_the_midst_of_training_is_one_line(gpu, command, tmp_path, monkeypatch):
    """... with CuPy's numbers in it, and the checkpoint before it stays."""
    schedule = optim.cosine_schedule

    def shrink(step, *rest):
        gpu.counts.memory = 10_000 if step == 4 else math.inf
        return schedule(step, *rest)

    monkeypatch.setattr(train, "cosine_schedule", shrink)
    args = ["--data", "fox.txt", *TINY, "--steps", 6, "--eval-every", 2, "--device", "gpu", "--out", "run"]
    err = command("train", *args, code=2).err.splitlines()[-1]
    assert "not enough memory (Out of memory allocating" in err and "--batch or the text smaller" in err
    assert (tmp_path / "run" / "step-000002").is_dir() and not (tmp_path / "run" / "step-000004").exists()


def test_the_cpu_never_imports_cupy(command, fox, monkeypatch):
    load = builtins.__import__

    def no_cupy(name, *rest):
        assert name.split(".")[0] not in ("cupy", "cupyx"), f"import {name}"
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_cupy)
    command("train", "--data", "fox.txt", *TINY, "--steps", 2, "--out", "run")
    command("sample", "--run", fox, "--prompt", "The fox", "--edit", "fox=dog", "--tokens", 3)


# ------------------------------------------------------------------------------ the stand-in is strict


def refused(error, match="."):
    return pytest.raises(error, match=match)


def test_the_stand_in_refuses_what_cupy_refuses(gpu):
    host = np.ones((2, 3), "float32")
    a, ids = gpu.asarray(host), gpu.asarray(np.array([0, 1]))
    for mixed in (lambda: a + host, lambda: host + a, lambda: np.add(a, host), lambda: a @ host.T,
                  lambda: host @ a, lambda: a == host):  # fmt: skip
        with refused(TypeError, "Unsupported type|no implementation"):
            mixed()
    with refused(TypeError, "Implicit conversion"):
        np.asarray(a)
    with refused(TypeError):
        host[...] = a
    with refused(TypeError):
        a[...] = host
    with refused(TypeError):
        np.concatenate([a, host])
    with refused(TypeError, "CuPy 14.* has no vecdot"):
        np.vecdot(a, a)
    for call in (lambda: a.sum(where=True), lambda: a.max(initial=0), lambda: np.exp(a, where=True),
                 lambda: np.triu(a, dtype=int), lambda: a.argmax(0, None, None, True, 1)):  # fmt: skip
        with refused(TypeError):
            call()
    with refused(AttributeError, "has no ndarray.tostring"):
        a.tostring()
    with refused(TypeError):
        range(ids)
    with refused(ValueError):
        a[:, ::2].view("complex64")


def test_the_stand_in_refuses_what_a_gpu_does_wrong_or_slowly(gpu):
    a, twice = gpu.zeros((3, 2)), gpu.asarray(np.array([1, 1]))
    with refused(ValueError, "repeated place"):
        a[twice] = 1.0
    for index in (np.array([0]), [0], np.array([True, False, True])):
        with refused(TypeError, "as an index"):
            a[index]
    for out in (3, -1):
        with refused(IndexError, "outside 0..2"):
            a[gpu.asarray(np.array([out]))]
    assert np.isnan(np.empty_like(a).get()).all() and (gpu.empty(3, int).get() == -77).all()
    gpu.reset(forbid_sync=True)
    for read in (float, int, bool, lambda x: x.item(), lambda x: x.get(), lambda x: x.tolist(),
                 lambda x: np.unique(x), lambda x: x[x > 0]):  # fmt: skip
        with refused(AssertionError, "waits for the device"):
            read(a[:1, 0])
    with refused(TypeError):
        list(a)


def test_the_stand_in_counts(gpu):
    a = gpu.asarray(np.ones((4, 4), "float32"))
    gpu.reset()
    a.T[:, :2].reshape(-1, 4)[...]  # views, and a reshape that has to copy
    assert gpu.counts.launches == 1
    (a @ a.T + 1).sum()
    assert gpu.counts.launches == 4 and gpu.counts.syncs == gpu.counts.uploads == gpu.counts.downloads == 0
    gpu.asarray(a.get())
    assert (gpu.counts.syncs, gpu.counts.downloads, gpu.counts.uploads) == (1, 1, 1)


def test_the_stand_in_has_nothing_that_cupy_does_not_have():
    known = {*fake_cupy.API["ndarray"], *fake_cupy.API["dunders"], *dir(object), "__module__", "__dict__",
             "__weakref__", "__getattr__", "_host", "_of", "__annotations__", "__firstlineno__",
             "__static_attributes__"}  # fmt: skip
    assert set(dir(fake_cupy.ndarray)) <= known


def test_the_record_is_that_of_the_cupy_that_is_installed():
    cupy = pytest.importorskip("cupy", reason="CuPy is not installed: nothing to compare the record with")
    from gen_cupy_api import record

    if cupy.__version__ == fake_cupy.API["cupy"]:
        assert record(cupy) == fake_cupy.API


# ---------------------------------------------------------------------------------------- the kernel


def nvrtc():
    """-> NVIDIA's compiler as a library; it needs no GPU."""
    try:
        files = next(metadata.files(name) for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"))
        path = next(f.locate() for f in files if f.name.startswith("libnvrtc.so"))
    except (metadata.PackageNotFoundError, StopIteration, TypeError):
        pytest.skip("NVIDIA's compiler is not installed: pip install nvidia-cuda-nvrtc")
    return ctypes.CDLL(str(path))


def compiled(source, *options):
    """-> "" or the compiler's complaints"""
    lib, program, size = nvrtc(), ctypes.c_void_p(), ctypes.c_size_t()
    assert lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"a.cu", 0, None, None) == 0
    flags = [option.encode() for option in ("-arch=sm_90", *options)]
    failed = lib.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
    lib.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    lib.nvrtcGetProgramLog(program, log)
    return log.value.decode() if failed else ""


def test_the_kernel_compiles_for_a_gpu():
    for number in ("float", "double"):
        assert compiled(devices_gpu.SUM_ROWS, f"-DNUMBER={number}") == ""
    assert "undefined" in compiled(devices_gpu.SUM_ROWS.replace("blockIdx.x", "blockIdy.x"), "-DNUMBER=float")


# A GPU runs 32 threads together, a warp, and knows nothing of how fast one warp is beside another: only a
# barrier makes them wait. Here each thread is a fibre (a stack of its own), and the order decides who goes on
# when: each goes as far as it can before the next has its turn, from the first warp or from the last one on.
# So if a barrier is missing, somebody comes too early or too late, every time.
EMULATION = """
#include <strings.h>
#include <ucontext.h>
#define __global__
#define __shared__ static
enum { THREADS = 256, WARP = 32, STACK = 1 << 16 };
struct Place { int x, y; } blockIdx, threadIdx;
struct Barrier { int arrived, round; unsigned votes, result; };
static Barrier block, warps[THREADS / WARP];
static ucontext_t scheduler, fibres[THREADS];
static char stacks[THREADS][STACK];
static bool ended[THREADS];
static int now;

unsigned wait_at(Barrier& barrier, int threads, unsigned vote) {  // -> what all of them voted, as bits
  int round = barrier.round;
  barrier.votes |= vote;
  if (++barrier.arrived == threads) {
    barrier.result = barrier.votes;
    barrier.arrived = barrier.votes = 0;
    barrier.round++;
  }
  while (barrier.round == round) swapcontext(&fibres[now], &scheduler);
  return barrier.result;
}
void __syncthreads() { wait_at(block, THREADS, 0); }
int __syncthreads_or(bool mine) { return wait_at(block, THREADS, mine); }
unsigned __ballot_sync(unsigned, bool mine) {
  return wait_at(warps[threadIdx.x / WARP], WARP, unsigned(mine) << threadIdx.x % WARP);
}
int __ffs(unsigned bits) { return ffs(bits); }
KERNEL
static struct { const NUMBER* values; const int* slot; NUMBER* out; int N, D; } job;
void be_a_thread() {
  sum_rows(job.values, job.slot, job.out, job.N, job.D);
  ended[now] = true;
}
extern "C" int run(const NUMBER* values, const int* slot, NUMBER* out, int N, int D, int rows, bool back) {
  job = {values, slot, out, N, D};
  for (int b = 0; b < rows * ((D + 255) / 256); b++) {
    blockIdx = {b % rows, b / rows};
    for (int i = 0; i < THREADS; i++) {
      getcontext(&fibres[i]);
      fibres[i].uc_stack.ss_sp = stacks[i];
      fibres[i].uc_stack.ss_size = STACK;
      fibres[i].uc_link = &scheduler;
      makecontext(&fibres[i], be_a_thread, 0);
      ended[i] = false;
    }
    for (int left = THREADS, turns = 0; left; turns++) {
      if (turns > 1000 + 8 * N) return 1;  // some wait at a barrier that others never come to
      for (int i = 0; i < THREADS; i++) {
        now = back ? THREADS - 1 - i : i;
        if (ended[now]) continue;
        threadIdx.x = now;
        swapcontext(&scheduler, &fibres[now]);
        left -= ended[now];
      }
    }
  }
  return 0;
}
"""
BARRIER = "    __syncthreads();"


def emulated(folder, source, number="float"):
    """The kernel, compiled for the CPU -> a function: values, slot, rows, backwards -> their sums, or None if
    it never ends. Behind each array comes what must not be read or written."""
    (folder / "kernel.cpp").write_text(EMULATION.replace("KERNEL", source))
    build = f"g++ -std=c++17 -O1 -shared -fPIC -DNUMBER={number} kernel.cpp -o kernel.so"
    subprocess.run(build.split(), cwd=folder, check=True)
    kernel = ctypes.CDLL(str(folder / "kernel.so")).run

    def call(values, slot, rows, backwards):
        N, D = values.shape
        values = np.concatenate([values, np.full((300, D), 1e9, values.dtype)])
        slot = np.concatenate([slot, np.zeros(300, "int32")])
        out = np.full((rows + 300, D), -77, values.dtype)
        places = (ctypes.c_void_p(a.ctypes.data) for a in (values, slot, out))
        if kernel(*places, N, D, rows, backwards):
            return None
        assert (out[rows:] == -77).all(), "written behind the end"
        return out[:rows]

    return call


def cases(dtype):
    """Rows of many positions and of none, in more than one part of 256 positions and of 256 columns."""
    rng = np.random.default_rng(2)
    for N, D, rows in ((600, 257, 5), (256, 3, 4), (1, 1, 1), (513, 2, 300)):
        values, slot = rng.standard_normal((N, D)).astype(dtype), rng.integers(0, rows, N).astype("int32")
        for backwards in (False, True):
            yield values, slot, rows, backwards


compiler = pytest.mark.skipif(not shutil.which("g++"), reason="no g++ to compile the kernel for the CPU")


@compiler
@pytest.mark.parametrize("number, dtype", [("float", "float32"), ("double", "float64")])
def test_the_kernel_itself_adds_in_the_order_of_positions(tmp_path, number, dtype):
    """Compiled for the CPU, in any order of warps: the bits of SciPy's sum. The twin is not asked."""
    kernel = emulated(tmp_path, devices_gpu.SUM_ROWS, number)
    for values, slot, rows, backwards in cases(dtype):
        out = kernel(values, slot, rows, backwards)
        assert out.tobytes() == backend.sum_rows(values, slot, rows).tobytes()


KERNEL_FAULTS = {
    "the last barrier is lost": (BARRIER, "    "),
    "one slot too far": ("i < N &&", "i <= N &&"),
    "a column too far": ("if (column < D) out", "if (column <= D) out"),
    "no wait before reading": ("__syncthreads_or(mine) &&", "mine &&"),
    "every other warp is left out": ("warp < 8; warp++", "warp < 8; warp += 2"),
    "only the lowest bit of a warp": ("bits &= bits - 1", "bits = 0"),
    "the next thread's slot": ("start + threadIdx.x", "start + threadIdx.x + 1"),
    "sums in float": ("NUMBER sum", "float sum"),
    "starts at one": ("sum = 0", "sum = 1"),
    "some have left where others wait": ("NUMBER sum = 0;", "NUMBER sum = 0; if (column > 99) return;"),
}  # fmt: skip


@compiler
@pytest.mark.parametrize("fault", KERNEL_FAULTS)
def test_a_fault_in_the_kernel_is_seen(tmp_path, fault):
    old, new = KERNEL_FAULTS[fault]
    assert devices_gpu.SUM_ROWS.count(old) == 1
    kernel = emulated(tmp_path, devices_gpu.SUM_ROWS.replace(old, new), "double")
    for values, slot, rows, backwards in cases("float64"):
        try:
            out = kernel(values, slot, rows, backwards)
        except AssertionError:
            return
        if out is None or out.tobytes() != backend.sum_rows(values, slot, rows).tobytes():
            return
    pytest.fail("nobody noticed")
