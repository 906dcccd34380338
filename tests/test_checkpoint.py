"""Run folders: what is saved comes back, whole or not at all, and damage is one clear line."""

import json
import os
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ministem.backend import device_array
from ministem.config import Config, init_params
from ministem.model import loss_and_grads
from ministem.optim import AdamW
from ministem.run import checkpoint
from ministem.run.checkpoint import Run, load_checkpoint, newest_run, save_checkpoint, start_run, step_folders
from ministem.tokenizer import train_bpe

CPU = device_array("cpu")
pytestmark = pytest.mark.usefixtures("known_encodings")


def make_run(run, steps=(1,), seed=0):
    tokenizer = train_bpe("low lower lowest " * 20, 270)
    config = Config(tokenizer.n_vocab, dim=8, n_layers=2, n_heads=2, ffn_dim=12, context=6, stem_layers=(1,))
    params, tables = init_params(config, seed)
    optimizer = AdamW(1e-2)
    run = Run(run, config, dict(lr=1e-2), tokenizer, params, tables, state=dict(corpus="x", t=0.1))
    start_run(run)
    ids = np.random.default_rng(0).integers(0, 256, (2, 7))
    for step in steps:
        _, grads = loss_and_grads(params, config, tables.fetch(ids[:, :-1]), ids[:, 1:])
        optimizer.step(params, tables, grads)
        run.step = step
        save_checkpoint(run, optimizer)
    return run, optimizer


def test_everything_comes_back_bit_for_bit(tmp_path):
    run, optimizer = make_run(tmp_path / "run", (1, 2))
    saved = load_checkpoint(tmp_path / "run", moments=True)
    assert (saved.config, saved.step, saved.settings, saved.state) == (run.config, 2, run.settings, run.state)
    assert saved.tokenizer.hash == run.tokenizer.hash
    for name, p in run.params.items():
        assert saved.params[name].tobytes() == p.tobytes()
    for name in run.tables.names:
        assert saved.tables[name].tobytes() == run.tables[name].tobytes()
    for name, moment in optimizer.state().items():
        assert saved.moments[name].tobytes() == moment.tobytes() and moment.any()


def test_what_comes_back_can_be_trained_on(tmp_path):
    """Arrays from a file may be read-only or views of one buffer: an update in place must still work."""
    make_run(tmp_path / "run")
    saved = load_checkpoint(tmp_path / "run", moments=True)
    optimizer = AdamW(1e-2)
    optimizer.start(saved.params, saved.tables)
    optimizer.load(saved.moments, saved.step)
    ids = np.array([[1, 2, 3, 4]])
    before = saved.params["head"].copy()
    _, grads = loss_and_grads(saved.params, saved.config, saved.tables.fetch(ids), ids)
    optimizer.step(saved.params, saved.tables, grads)
    assert (saved.params["head"] != before).any()


def test_the_last_two_steps_are_kept_and_each_can_be_named(tmp_path):
    make_run(tmp_path / "run", (5, 10, 15))
    assert [f.name for f in step_folders(tmp_path / "run")] == ["step-000010", "step-000015"]
    assert load_checkpoint(tmp_path / "run").step == 15
    assert load_checkpoint(tmp_path / "run" / "step-000010").step == 10


@pytest.mark.parametrize("at", ["save_arrays", "write_json", "files.sync", "files.write"])
def test_a_failure_while_saving_leaves_the_old_checkpoint_and_no_rubbish(tmp_path, monkeypatch, at):
    run, optimizer = make_run(tmp_path / "run", (1,))
    before = sorted(os.listdir(run.folder))

    def full(*_):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr(f"ministem.run.checkpoint.{at}", full)
    with pytest.raises(OSError):
        run.step = 2
        save_checkpoint(run, optimizer)
    assert sorted(os.listdir(run.folder)) == before
    assert load_checkpoint(run.folder, moments=True).step == 1


@pytest.mark.parametrize("error", [
    SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    OSError(28, "No space left on device", ".step-000002.tmp/model.safetensors"),
])  # fmt: skip
def test_a_full_disk_names_the_step_and_how_much_it_takes(tmp_path, monkeypatch, error):
    run, optimizer = make_run(tmp_path / "run", (1,))

    def full(*_):
        raise error

    monkeypatch.setattr(checkpoint, "save_file", full)
    run.step = 2
    with pytest.raises(OSError) as caught:
        save_checkpoint(run, optimizer)
    assert caught.value.filename == str(run.folder / "step-000002") and caught.value.errno == 28
    numbers = sum(a.size for a in (*run.params.values(), *run.tables.arrays.values()))
    mebibytes = round(3 * 4 * numbers / 2**20, 1)
    assert f"No space left on device; the checkpoint takes {mebibytes} MiB" in caught.value.strerror


def test_saving_a_step_again_replaces_it(tmp_path):
    run, optimizer = make_run(tmp_path / "run", (1,))
    run.params["norm"][...] = 7
    save_checkpoint(run, optimizer)
    assert (load_checkpoint(tmp_path / "run").params["norm"] == 7).all()


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def grow(path):
    path.write_bytes(path.read_bytes() + b"\0")


def hostile_header(path):
    path.write_bytes((1 << 62).to_bytes(8, "little") + path.read_bytes()[8:])


FILES = ["config.json", "vocab.tiktoken", "step-000001/model.safetensors",
         "step-000001/optimizer.safetensors", "step-000001/state.json",
         "step-000001/SHA256SUMS"]  # fmt: skip


@pytest.mark.parametrize("damage", [truncate, empty, os.unlink, hostile_header, grow])
@pytest.mark.parametrize("file", FILES)
def test_damage_is_one_line_that_names_the_file(tmp_path, file, damage):
    """... also where whoever did the damage has signed it."""
    make_run(tmp_path / "run")
    damage(tmp_path / "run" / file)
    if file.endswith("optimizer.safetensors") and damage is not os.unlink:
        signed(tmp_path / "run" / "step-000001")
    with pytest.raises((ValueError, OSError)) as error:
        load_checkpoint(tmp_path / "run", moments=True)
    named = file.removesuffix("/SHA256SUMS")  # of the sums, the step
    assert "\n" not in str(error.value) and named in str(error.value).replace(os.sep, "/")


def edit_config(run, key, **changes):
    content = json.loads((run / "config.json").read_text())
    content[key] |= changes
    (run / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize("key, name, value", [
    ("model", "stem_layers", [0, 1]), ("model", "ffn_dim", 16), ("model", "rope_theta", 9999.0),
    ("settings", "lr", 0.02), ("vocabulary", "size", 999),
])  # fmt: skip
def test_a_changed_configuration_is_refused_by_the_name_of_what_differs(tmp_path, key, name, value):
    """... also where the weights would still fit, and be a worse model without a word."""
    make_run(tmp_path / "run")
    was = json.loads((tmp_path / "run" / "config.json").read_text())[key][name]
    edit_config(tmp_path / "run", key, **{name: value})
    with pytest.raises(ValueError) as error:
        load_checkpoint(tmp_path / "run")
    assert all(str(part) in str(error.value) for part in ("config.json", name, value, was))


def signed(step, /, **changes):
    """Change a step's state.json as somebody would who makes SHA256SUMS anew; so too its other files."""
    state = json.loads((step / "state.json").read_text()) | changes
    (step / "state.json").write_text(json.dumps(state))
    (step / "SHA256SUMS").unlink()
    checkpoint.write_sums(step)


def test_a_file_of_another_model_is_refused_by_the_name_of_what_differs(tmp_path):
    make_run(tmp_path / "run")
    signed(tmp_path / "run" / "step-000001", run={})
    edit_config(tmp_path / "run", "model", stem_layers=[0, 1])
    with pytest.raises(ValueError, match=r"layers\.0\.(table is missing|w_up is not of this model)"):
        load_checkpoint(tmp_path / "run")
    edit_config(tmp_path / "run", "model", stem_layers=[1], ffn_dim=16)
    with pytest.raises(ValueError, match=r"\(8, 12\), the configuration needs float32 \(8, 16\)"):
        load_checkpoint(tmp_path / "run")


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json", "SHA256SUMS"])
def test_any_flipped_bit_in_a_checkpoint_is_noticed(tmp_path, file):
    """In a number, in a name, in white space: 30 random bits, one at a time."""
    make_run(tmp_path / "run")
    path, rng = tmp_path / "run" / "step-000001" / file, random.Random(0)
    whole = path.read_bytes()
    for _ in range(30):
        data, bit = bytearray(whole), rng.randrange(8 * len(whole))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        # of the sums themselves: the file that they name is damaged, or missing
        what = ".* is (damaged|missing)" if file == "SHA256SUMS" else f"{file}.* is damaged"
        with pytest.raises(checkpoint.Damaged, match=f"{what}.*; remove .*step-000001 to use"):
            load_checkpoint(tmp_path / "run", moments=True)
    path.write_bytes(whole)
    load_checkpoint(tmp_path / "run", moments=True)


def test_another_vocabulary_is_refused_with_both_sizes(tmp_path):
    make_run(tmp_path / "run")
    other = train_bpe("high higher highest " * 20, 264)
    other.save(tmp_path / "run" / "vocab.tiktoken")
    with pytest.raises(ValueError, match=r"264 tokens.*26\d tokens"):
        load_checkpoint(tmp_path / "run")


def test_a_run_is_never_started_over_another_or_in_somebody_elses_folder(tmp_path):
    make_run(tmp_path / "run")
    with pytest.raises(ValueError, match="--resume"):
        make_run(tmp_path / "run")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    for place in (tmp_path / "home", tmp_path / "home" / "letter.txt"):
        with pytest.raises(ValueError, match="no run folder"):
            make_run(place)
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_the_newest_run_is_that_with_the_youngest_checkpoint(tmp_path):
    with pytest.raises(ValueError, match="train one first"):
        newest_run(tmp_path)
    for age, name in ((300, "a"), (100, "b"), (200, "c")):
        make_run(tmp_path / name)
        stamp = 1e9 - age
        os.utime(tmp_path / name / "step-000001", (stamp, stamp))
    assert newest_run(tmp_path).name == "b"


def test_steps_are_ordered_as_numbers(tmp_path):
    """As names, step-1000000 would come before step-999999, and would be removed as the oldest."""
    make_run(tmp_path / "run", (999_998, 999_999, 1_000_000))
    assert [f.name for f in step_folders(tmp_path / "run")] == ["step-999999", "step-1000000"]
    assert load_checkpoint(tmp_path / "run").step == 1_000_000


def test_what_a_kill_left_half_written_is_cleared_by_the_next_save(tmp_path):
    run, optimizer = make_run(tmp_path / "run", (1,))
    for name in (".step-000007.tmp", ".step-000002.tmp"):  # the second is where step 2 will be written
        (run.folder / name).mkdir()
        (run.folder / name / "half").write_text("half")
    run.step = 2
    save_checkpoint(run, optimizer)
    assert [path.name for path in run.folder.glob(".*")] == [".lock"]


def test_weights_that_are_no_numbers_are_neither_saved_nor_loaded(tmp_path):
    run, optimizer = make_run(tmp_path / "run", (1,))
    run.params["norm"][0], run.step = np.nan, 2
    with pytest.raises(FloatingPointError, match="norm has numbers that are not finite"):
        save_checkpoint(run, optimizer)
    assert [path.name for path in run.folder.glob("*step*")] == ["step-000001"]
    path = run.folder / "step-000001" / "model.safetensors"
    save_file(load_file(path) | {"norm": run.params["norm"]}, path)
    signed(path.parent)
    with pytest.raises(ValueError, match="norm has numbers that are not finite"):
        load_checkpoint(run.folder)


@pytest.mark.parametrize("damage", [
    dict(step=2), dict(step="1"), dict(step=None), dict(step=1.0), dict(losses=5), dict(losses=["x"]),
    dict(line=[]), dict(line="x"), dict(run=7), dict(run={"model": 1}), dict(step=10**400), dict(step=-1),
])  # fmt: skip
def test_a_state_that_is_not_the_steps_own_is_refused(tmp_path, damage):
    """... even if it is signed."""
    make_run(tmp_path / "run", (1,))
    signed(tmp_path / "run" / "step-000001", **damage)
    with pytest.raises(checkpoint.Damaged, match="state.json is not of this step"):
        load_checkpoint(tmp_path / "run")


def test_a_checkpoint_without_hashes_is_not_called_damaged(tmp_path):
    """Nobody should remove it: it is of the time before they were there."""
    make_run(tmp_path / "run", (1,))
    (tmp_path / "run" / "step-000001" / "SHA256SUMS").unlink()
    with pytest.raises(ValueError, match="saved by an older ministem") as caught:
        load_checkpoint(tmp_path / "run")
    assert not isinstance(caught.value, checkpoint.Damaged) and "remove" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "I32", "F64"])
def test_arrays_of_another_type_are_refused(tmp_path, dtype):
    make_run(tmp_path / "run", (1,))
    path = tmp_path / "run" / "step-000001" / "model.safetensors"
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + n])
    start, stop = header["norm"]["data_offsets"]
    count = (stop - start) // dict(BF16=2, F8_E4M3=1, I32=4, F64=8)[dtype]
    header["norm"] |= dict(dtype=dtype, shape=[count])
    head = json.dumps(header).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + data[8 + n :])
    signed(path.parent)
    with pytest.raises(ValueError, match="model.safetensors"):
        load_checkpoint(tmp_path / "run")


VIEWS = {
    "as it is": lambda a: a, "turned": lambda a: a.T, "backwards": lambda a: a[::-1],
    "every other": lambda a: a[::2], "Fortran order": np.asfortranarray,
    "read-only": lambda a: np.broadcast_to(a, (2, *a.shape)),
    "first axis last": lambda a: np.moveaxis(a, 0, -1) if a.ndim else a, "nothing of it": lambda a: a[:0],
}  # fmt: skip


@given(st.data())
def test_arrays_of_any_layout_come_back_bit_for_bit(data):
    """Views, strides, Fortran order, no dimensions, nothing in them; every name that JSON can hold."""
    shapes = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
    floats = st.floats(width=32, allow_nan=False, allow_infinity=False)  # -0.0 and the smallest ones too
    names = st.text(st.characters(codec="utf-8"), max_size=5).filter(lambda name: name != "__metadata__")
    saved = data.draw(st.dictionaries(names, arrays("float32", shapes, elements=floats), max_size=3))
    for name, a in saved.items():
        view = data.draw(st.sampled_from(sorted(VIEWS)))
        saved[name] = VIEWS[view](a) if a.ndim or view in ("as it is", "turned", "read-only") else a
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.safetensors"
        checkpoint.save_arrays(path, saved)
        checkpoint.write_sums(path.parent)
        loaded = checkpoint.load_arrays(path, {name: a.shape for name, a in saved.items()})
        assert sorted(os.listdir(folder)) == ["SHA256SUMS", path.name]
    assert loaded.keys() == saved.keys()
    for name, a in saved.items():
        assert loaded[name].shape == a.shape and loaded[name].tobytes() == a.tobytes()
