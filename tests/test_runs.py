"""Run folders among other processes, damaged tables, kills in the wrong moment: no work is lost, and no
number is wrong in silence."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import FORKS, ROOT, TEXT, TINY, command
from test_cli import metrics, run, state

from ministem.backend import device_array
from ministem.data import Corpus, load_corpus, windows_in_order
from ministem.devices import files
from ministem.knowledge import edit
from ministem.model import forward
from ministem.run import checkpoint
from ministem.run.checkpoint import load_checkpoint, place, step_folders

CPU = device_array("cpu")
pytestmark = pytest.mark.usefixtures("known_encodings")
forks = pytest.mark.skipif(not FORKS, reason="needs Linux: a fork for each try")
FOX = ["--data", "fox.txt", *TINY]


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Two runs of 4 steps: `ram`, and `disk` with its tables on disk."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "fox.txt").write_text(TEXT)
    for where in ("ram", "disk"):
        run("train.py", *FOX, "--steps", 4, "--eval-every", 2, "--tables", where, "--out", where, cwd=folder)
    return folder


@pytest.fixture
def copied(both, tmp_path):
    shutil.copytree(both, tmp_path, dirs_exist_ok=True)
    return tmp_path


def start(*args, cwd, **how):
    """A command that is not waited for."""
    pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    return subprocess.Popen([sys.executable, ROOT / "train.py", *map(str, args)], cwd=cwd, **pipes, **how)


def wait_for(condition, process):
    while not condition() and process.poll() is None:
        time.sleep(0.01)


# --------------------------------------------------------------------------------- one folder, one process


def test_runs_started_together_each_have_a_folder_of_their_own(tmp_path):
    """A sweep with `&`: the default name is claimed at once, and the next number taken on collision."""
    (tmp_path / "fox.txt").write_text(TEXT)
    together = [start(*FOX, "--steps", 2, "--seed", seed, cwd=tmp_path) for seed in range(5)]
    for process in together:
        _, err = process.communicate()
        assert process.returncode == 0, err
    folders = sorted((tmp_path / "runs").iterdir())
    assert [folder.name for folder in folders] == ["fox", "fox-2", "fox-3", "fox-4", "fox-5"]
    seeds = {load_checkpoint(folder, moments=True).settings["seed"] for folder in folders}
    assert seeds == set(range(5))


def test_a_folder_that_another_process_writes_in_is_refused_until_that_is_killed(tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    args = [*FOX, "--steps", 10**6, "--eval-every", 20, "--out", "r"]
    first = start(*args, cwd=tmp_path)
    try:
        wait_for((tmp_path / "r" / "config.json").exists, first)
        before = (tmp_path / "r" / "vocab.tiktoken").read_bytes()
        _, err = run("train.py", *FOX, "--steps", 1, "--out", "r", cwd=tmp_path, check=2)
        assert "r is in use: another process" in err or "r holds a run already" in err
        assert (tmp_path / "r" / "vocab.tiktoken").read_bytes() == before
        wait_for(lambda: step_folders(tmp_path / "r"), first)
        _, err = run("train.py", "--resume", "r", cwd=tmp_path, check=2)
        assert "r is in use: another process is training there" in err and err.count("\n") == 1
    finally:
        first.kill()  # a lock must not survive this
        first.communicate()
    content = json.loads((tmp_path / "r" / "config.json").read_text())
    content["settings"]["steps"] = 1
    assert files.lock(tmp_path / "r" / ".lock")


def test_a_lock_is_taken_once_and_by_this_process_twice(tmp_path):
    assert files.lock(tmp_path / ".lock") and files.lock(tmp_path / ".lock")
    code = "import sys; from ministem.devices import files; print(files.lock(sys.argv[1]))"
    line, env = [sys.executable, "-c", code, tmp_path / ".lock"], os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(line, env=env, capture_output=True, text=True).stdout == "False\n"


# ------------------------------------------------------------------------------------------- verification


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["", ".m", ".v", ".rows"])
def test_a_flipped_bit_in_tables_on_disk_is_noticed_before_training_goes_on(copied, kind):
    """... by --resume, which goes on from the step before; by --init-from; and by sampling from RAM."""
    flip(copied / "disk" / "step-000004" / "tables" / f"layers.0.table{kind}.npy")
    for args in (["train.py", "--init-from", "disk", "--data", "fox.txt", "--out", "x"],
                 ["sample.py", "--run", "disk", "--tables", "ram"]):  # fmt: skip
        _, err = run(*args, cwd=copied, check=2)
        assert f"layers.0.table{kind}.npy is damaged (its bytes are not those that were saved)" in err
    _, err = run("train.py", "--resume", "disk", "--data", "fox.txt", cwd=copied)
    assert f"layers.0.table{kind}.npy is damaged" in err and "going on from that" in err


def test_exchanged_moments_are_noticed(copied):
    tables = copied / "disk" / "step-000004" / "tables"
    m, v = (tables / f"layers.0.table.{kind}.npy" for kind in "mv")
    m.rename(tables / "x"), v.rename(m), (tables / "x").rename(v)
    with pytest.raises(checkpoint.Damaged, match="layers.0.table.m.npy is damaged"):
        load_checkpoint(copied / "disk", moments=True)


def test_rows_can_be_read_without_reading_the_tables(both, monkeypatch):
    """Sampling from tables on disk stays cheap: of tables/ nothing is hashed."""
    hashed, file_hash = [], checkpoint.file_hash
    monkeypatch.setattr(checkpoint, "file_hash", lambda path: hashed.append(path.name) or file_hash(path))
    load_checkpoint(both / "disk", rows_only=True)
    assert sorted(hashed) == ["model.safetensors", "state.json"]
    hashed.clear()
    load_checkpoint(both / "disk")
    assert len(hashed) == 2 + len(list((both / "disk" / "step-000004" / "tables").iterdir()))


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs sha256sum")
@pytest.mark.parametrize("where", ["ram", "disk"])
def test_sha256sum_reads_the_sums_and_every_file_has_one(both, where):
    step = both / where / "step-000004"
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=step, capture_output=True, text=True)
    names = {path.relative_to(step).as_posix() for path in step.rglob("*") if path.is_file()}
    assert done.returncode == 0 and done.stdout.count(": OK") == len(names) - 1
    assert set(checkpoint.read_sums(step)) == names - {"SHA256SUMS"}


# ----------------------------------------------------------------------------------- kills, and evaluation

KILLED_WHILE_EVALUATING = """if True:
    import os, signal, sys
    sys.argv[0] = "train.py"
    import train
    evaluate = train.report.measure.evaluate
    def killed(run, *args):
        if run.step == AT:
            os.kill(os.getpid(), signal.SIGKILL)
        return evaluate(run, *args)
    train.report.measure.evaluate = killed
    train.main()"""


@pytest.mark.parametrize("at", [2, 4])
def test_a_kill_during_an_evaluation_loses_nothing(both, tmp_path, at):
    """The checkpoint comes first; resumed, the line of the log is written, as if nobody had killed it."""
    (tmp_path / "fox.txt").write_text(TEXT)
    code = KILLED_WHILE_EVALUATING.replace("AT", str(at))
    line = [sys.executable, "-c", code, *FOX, "--steps", "4", "--eval-every", "2", "--out", "ram"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(line, cwd=tmp_path, env=env, capture_output=True).returncode == -signal.SIGKILL
    assert load_checkpoint(tmp_path / "ram").step == at
    _, err = run("train.py", "--resume", "ram", cwd=tmp_path)
    assert f"step     {at}" in err
    assert metrics(tmp_path / "ram") == metrics(both / "ram")
    assert state(tmp_path / "ram", 4) == state(both / "ram", 4)


def test_metrics_are_cut_back_to_the_step_that_is_resumed(copied, both):
    """Lines of later steps, and half a line, go; those up to the checkpoint stay."""
    shutil.rmtree(copied / "ram" / "step-000004")
    with open(copied / "ram" / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "val_loss": 1.0}\n{"step": 8, "val')
    run("train.py", "--resume", "ram", "--data", "fox.txt", cwd=copied)
    assert metrics(copied / "ram") == metrics(both / "ram")


def test_a_resumed_run_clears_what_a_kill_left(copied):
    for name in (".step-000003.tmp", ".metrics.jsonl.77.tmp"):
        path = copied / "ram" / name
        path.mkdir() if "step" in name else path.write_text("half")
    run("train.py", "--resume", "ram", "--data", "fox.txt", cwd=copied)
    assert not list((copied / "ram").glob(".*.tmp"))


def test_files_reach_the_disk_before_their_folder_gets_its_name(both, tmp_path, monkeypatch):
    """In order: each file of a step is flushed, its folder is, that is renamed, its new name is flushed."""
    saved = load_checkpoint(both / "ram", moments=True)
    shutil.copytree(both / "ram", tmp_path / "ram")
    saved.folder, events = tmp_path / "ram", []
    fsync, rename = os.fsync, os.rename
    path_of = {}

    def opened(path, *args, **more):
        handle = real_open(path, *args, **more)
        path_of[handle] = Path(path).name
        return handle

    real_open = os.open
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", lambda fd: events.append(("sync", path_of.get(fd))) or fsync(fd))
    monkeypatch.setattr(os, "rename", lambda a, b: events.append(("rename", Path(b).name)) or rename(a, b))
    from ministem.optim import AdamW

    optimizer = AdamW()
    optimizer.start(saved.params, saved.tables)
    saved.step = 5
    checkpoint.save_checkpoint(saved, optimizer)
    names = [what for kind, what in events if kind == "sync"]
    renamed = events.index(("rename", "step-000005"))
    for name in ("model.safetensors", "optimizer.safetensors", ".step-000005.tmp"):
        assert events.index(("sync", name)) < renamed, names
    assert ("sync", "ram") in events[renamed:]


@forks
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_a_second_one_ends_at_once(tmp_path, number):
    (tmp_path / "fox.txt").write_text(TEXT)
    process = start(*FOX, "--steps", 10**6, "--eval-every", 7, "--out", "r", cwd=tmp_path)
    wait_for(lambda: "| val" in process.stderr.readline(), process)  # it is in its loop
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number and "stopped and saved at step" in err
    assert load_checkpoint(tmp_path / "r", moments=True).step == int(re.search(r"at step (\d+)", err)[1])
    code = f"""if True:  # the second one comes while the step is saved
        import os, signal, sys
        sys.argv[0] = "train.py"
        import train
        train.cosine_schedule = lambda *args: os.kill(os.getpid(), {number}) or 1e-3
        train.report.save_checkpoint = lambda *args: os.kill(os.getpid(), {number})
        train.main()"""
    line, env = [sys.executable, "-c", code, *FOX, "--out", "s"], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == -number and "Traceback" not in done.stderr and not step_folders(tmp_path / "s")


@forks
def test_signals_that_are_ignored_stay_ignored(tmp_path):
    """A background job of a script has SIGINT ignored: Ctrl-C is for what is in front."""
    (tmp_path / "fox.txt").write_text(TEXT)
    code = f"""if True:
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.execv(sys.executable, [sys.executable, {str(ROOT / "train.py")!r}, *sys.argv[1:]])"""
    line = [sys.executable, "-c", code, *FOX, "--steps", "300", "--eval-every", "100", "--out", "r"]
    pipes = dict(stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(line, cwd=tmp_path, **pipes)
    wait_for(lambda: "training" in process.stderr.readline(), process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0 and "stopping" not in err and load_checkpoint(tmp_path / "r").step == 300


# ----------------------------------------------------------------------- permissions, outputs, other runs


@forks
@pytest.mark.skipif(FORKS and os.geteuid() != 0, reason="needs root, to be another user than the folder's")
def test_a_file_that_may_not_be_read_is_not_called_damaged(both, tmp_path_factory):
    """... and nothing is replaced: not by advice to remove it, not by --resume."""
    folder = tmp_path_factory.mktemp("shared")
    shutil.copytree(both, folder, dirs_exist_ok=True)
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o777)
    for path in folder.rglob("*"):
        os.chown(path, 65534, 65534)
    for name in ("ram/step-000004/model.safetensors", "disk/step-000004/tables/layers.0.table.npy"):
        os.chown(folder / name, 0, 0)
        (folder / name).chmod(0o600)
        top = name.split("/")[0]
        sampling = ["sample.py", "--run", top, "--tokens", 3]
        for args in (sampling, ["train.py", "--resume", top, "--data", "fox.txt"]):
            done = command(*args, cwd=folder, user=65534)
            err = done.err.decode()
            assert done.code == 2 and f"{name}: Permission denied" in err and err.count("\n") <= 2, err
            assert "damaged" not in err and "remove" not in err and (folder / name).stat().st_uid == 0


@pytest.mark.skipif(os.name == "nt", reason="needs a umask")
def test_weights_have_the_rights_that_other_files_have(both):
    step = both / "ram" / "step-000004"
    modes = {path.name: path.stat().st_mode & 0o777 for path in step.iterdir()}
    assert set(modes.values()) == {0o666 & ~files.UMASK}, modes


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    (folder / "fox.txt").write_text(TEXT)
    (folder / "new.txt").write_text("The quick brown fox sleeps. " * 9)
    run("train.py", *FOX, "--steps", 4, "--eval-every", 2, "--out", "base", cwd=folder)
    return folder


PATCH = ["--init-from", "base", "--tables-only", "--data", "new.txt", "--batch", 4, "--save-patch"]


def test_a_patch_never_overwrites_anything_but_a_patch(base):
    for target in ("new.txt", "base/config.json"):
        before = (base / target).read_bytes()
        _, err = run("train.py", *PATCH, target, "--steps", 2, "--out", "never", cwd=base, check=2)
        assert f"--save-patch {target}: there is such a file, and it is no patch" in err
        assert (base / target).read_bytes() == before and not (base / "never").exists()
    for out in ("one", "two"):
        run("train.py", *PATCH, "p.safetensors", "--steps", 2, "--out", out, cwd=base)


def test_a_base_that_trains_on_does_not_take_the_patch_away(base):
    """Its step, which the patch is compared with, is removed by the base's own training; the run keeps it."""
    run("train.py", *PATCH, "whole.safetensors", "--steps", 6, "--eval-every", 3, "--out", "whole", cwd=base)
    run("train.py", *PATCH, "part.safetensors", "--steps", 6, "--eval-every", 3, "--out", "part", cwd=base)
    shutil.rmtree(base / "part" / "step-000006")
    (base / "part.safetensors").unlink()
    for step in step_folders(base / "base"):
        shutil.rmtree(step)
    run("train.py", "--resume", "part", cwd=base)
    assert (base / "part.safetensors").read_bytes() == (base / "whole.safetensors").read_bytes()
    assert edit.Patch.load(base / "part.safetensors").changes


# ---------------------------------------------------------------------------------- dead but finite, words


@pytest.mark.parametrize("flags", [["--table-lr", "1e30"], ["--table-lr", "1e30", "--tables", "disk"]])
def test_a_run_that_is_dead_but_finite_is_noticed(tmp_path, flags):
    """Rows so large that RMSNorm's scale underflows: the loss stands at ln V, and every gradient is zero."""
    (tmp_path / "fox.txt").write_text(TEXT)
    args = [*FOX, *flags, "--steps", 60, "--eval-every", 20, "--out", "r"]
    _, err = run("train.py", *args, cwd=tmp_path, check=2)
    assert "the gradient is exactly zero" in err and "Lower --lr (or --table-lr)" in err.splitlines()[-1]
    assert all((load_checkpoint(step).params["norm"] < 1e9).all() for step in step_folders(tmp_path / "r"))


def test_the_next_command_of_a_dense_run_is_one_that_works(tmp_path):
    small = ["--steps", 1, "--dim", 8, "--heads", 2, "--layers", 1, "--context", 16, "--batch", 2]
    for flags, ends in ((["--stem-layers", "none"], "--temperature 0"), ([], '--edit "Spain=Germany"')):
        out, _ = run("train.py", *small, *flags, cwd=tmp_path)
        line = out.strip().splitlines()[-1]
        assert line.startswith("next: python sample.py") and line.endswith(ends)


def test_messages_have_the_numbers(copied):
    content = json.loads((copied / "ram" / "config.json").read_text())
    content["model"]["vocab_size"] = 301
    (copied / "ram" / "config.json").write_text(json.dumps(content))
    _, err = run("sample.py", "--run", "ram", cwd=copied, check=2)
    assert re.search(r"vocab_size is 301, but the vocabulary has 30\d tokens|vocab_size is 301, but", err)
    _, err = run("train.py", "--vocab-size", 10**15, cwd=copied, check=2)
    assert "<= 10,000,000" in err
    (copied / "short.txt").write_text("x")
    args = ["--init-from", "disk", "--tables-only", "--data", "short.txt", "--steps", 1, "--out", "x"]
    _, err = run("train.py", *args, cwd=copied, check=2)
    assert "is too short: it has 1 tokens and needs 2" in err or "short.txt is too short" in err
    assert "a tenth" not in err


@pytest.mark.parametrize("script, flags", [
    ("train.py", ["--save-patch", ""]), ("train.py", ["--rows", ""]), ("train.py", ["--out", ""]),
    ("train.py", ["--data", ""]), ("train.py", ["--init-from", " "]), ("train.py", ["--resume", ""]),
    ("train.py", ["--stem-layers", ""]), ("train.py", ["--tokenizer", ""]), ("sample.py", ["--run", ""]),
    ("sample.py", ["--patch", ""]), ("sample.py", ["--edit-layers", ""]),
])  # fmt: skip
def test_an_empty_value_is_refused(tmp_path, script, flags):
    _, err = run(script, *flags, cwd=tmp_path, check=2)
    assert f"{flags[0]}: must not be empty" in err and not list(tmp_path.iterdir())


# --------------------------------------------------------------------------- every option does something


@pytest.mark.parametrize("flags", [
    ["--clip", "0.01"], ["--weight-decay", "5"], ["--lr", "0.01"], ["--warmup", "4"], ["--table-lr", "0.5"],
    ["--seed", "1"], ["--batch", "3"], ["--context", "7"], ["--steps", "3"], ["--dim", "20"],
    ["--heads", "1"],
    ["--kv-heads", "1"], ["--ffn-dim", "20"], ["--layers", "1"], ["--stem-layers", "1"], ["--ffn", "gate"],
    ["--vocab-size", "290"],
], ids=lambda flags: flags[0])  # fmt: skip
def test_an_option_of_training_changes_the_weights(both, tmp_path, flags):
    (tmp_path / "fox.txt").write_text(TEXT)
    run("train.py", *FOX, "--steps", 4, "--eval-every", 2, "--out", "r", *flags, cwd=tmp_path)
    one, other = (load_checkpoint(folder).params for folder in (both / "ram", tmp_path / "r"))
    assert any(one[n].tobytes() != other[n].tobytes() for n in one.keys() & other.keys())


@pytest.mark.parametrize("flags", [
    ["--top-p", "0.3"], ["--top-k", "2"], ["--temperature", "3"], ["--seed", "5"],
], ids=lambda flags: flags[0])  # fmt: skip
def test_an_option_of_sampling_changes_the_text(both, flags):
    args = ["--run", "ram", "--prompt", "The", "--tokens", 60]
    assert run("sample.py", *args, *flags, cwd=both)[0] != run("sample.py", *args, cwd=both)[0]


def test_three_samples_are_three_texts(both):
    out, _ = run("sample.py", "--run", "ram", "--prompt", "The", "--tokens", 40, "--samples", 3, cwd=both)
    assert len(set(out.split("---\n"))) == 3


def test_threads_split_a_batch(tmp_path):
    """Parts are added in another order: the weights differ, by rounding alone."""
    (tmp_path / "fox.txt").write_text(TEXT)
    for n in (1, 2):
        run("train.py", *FOX, "--threads", n, "--steps", 4, "--lr", 1e-4, "--out", f"t{n}", cwd=tmp_path)
    one, two = (load_checkpoint(tmp_path / f"t{n}").params for n in (1, 2))
    assert any(one[name].tobytes() != two[name].tobytes() for name in one)
    assert all(np.allclose(one[name], two[name], atol=1e-3) for name in one)


# ------------------------------------------------------------------------------------- validation numbers


def test_both_validation_numbers_are_those_of_the_model(tmp_path):
    """In Korean, three bytes a letter, more than 20 batches of text: recomputed from the checkpoint; the
    first 20 batches on the way, all of it in the end, as many tokens as metrics.jsonl says."""
    rng = np.random.default_rng(0)
    words = [chr(0xAC00 + i) + chr(0xB098 + j) for i, j in rng.integers(0, 40, (60, 2))]
    text = " ".join(rng.choice(words, 9000)) + "\n"
    (tmp_path / "text.txt").write_text(text, "utf-8")
    run("train.py", "--data", "text.txt", *TINY, "--steps", 4, "--eval-every", 2, "--out", "r", cwd=tmp_path)
    corpus = load_corpus(str(tmp_path / "text.txt"), 0)
    for line, step in zip(metrics(tmp_path / "r"), (2, 4), strict=True):
        saved = load_checkpoint(tmp_path / "r" / f"step-{step:06d}")
        place(saved, "ram", CPU)
        ids = np.array(saved.tokenizer.encode(corpus.val))
        B, T = saved.settings["batch"], saved.config.context
        n = 20 * B * T if step == 2 else len(ids) - 1
        losses = []
        for i in range(0, n, T):  # a window at a time, by the plain formula
            stop = min(i + T, n)
            batch = saved.tables.fetch(ids[None, i:stop])
            logits = forward(saved.params, saved.config, batch)[0].astype("float64")
            chances = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            losses += (-chances[np.arange(stop - i), ids[i + 1 : stop + 1]]).tolist()
        bytes_per_token = len(corpus.val.encode()) / len(ids)
        assert bytes_per_token > 2 and len(ids) > 25 * B * T
        assert line["val_tokens"] == n == len(losses)
        assert line["val_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert line["val_nats_per_byte"] == pytest.approx(np.mean(losses) / bytes_per_token, rel=1e-5)


def test_a_whole_text_has_no_validation_tenth(tmp_path):
    (tmp_path / "a.txt").write_text("abcdefghij" * 3)
    assert load_corpus(str(tmp_path / "a.txt"), 0, whole=True) == Corpus(
        str(tmp_path / "a.txt"), "abcdefghij" * 3, "abcdefghij" * 3
    )
    assert sum(t.size for _, t in windows_in_order(np.arange(11), 2, 4)) == 10
