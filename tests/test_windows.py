"""On a stand-in for Windows (windows.py): whole runs, and that the stand-in is as strict as it should be."""

import os
import shutil
import signal
import sys

import numpy as np
import pytest
import windows
from commands import TEXT, TINY

import sample
import train
from ministem import backend
from ministem.devices import files
from ministem.optim import AdamW
from ministem.run.checkpoint import load_checkpoint, step_folders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="acts Windows out with what Linux has")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """-> a function: train.py or sample.py, in this process, as if on Windows -> stdout, stderr"""
    (tmp_path / "fox.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    backend._blas()  # looks for libraries, in the way of the system that it is on

    def call(script, *args):
        with monkeypatch.context() as patch:
            windows.install(patch)
            patch.setattr(sys, "argv", [script.__file__, *map(str, args)])
            script.main()
        return capsys.readouterr()

    return call


def everything(folder):
    """All numbers of the newest checkpoint, as bytes."""
    run = load_checkpoint(folder, moments=True)
    numbers = {name: a.tobytes() for name, a in (run.params | run.moments).items()}
    for i, tables in enumerate((run.tables, *run.table_moments)):
        for name in tables.names:
            numbers[i, name] = tables.read(name, np.arange(tables.shape(name)[0])).tobytes()
    return numbers


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a_run_is_trained_resumed_patched_and_sampled(command, tmp_path, monkeypatch, where):
    """Checkpoints are written and removed, also the one that was resumed from, whose tables were mapped."""
    line = ["--data", "fox.txt", *TINY, "--steps", 6, "--eval-every", 1, "--tables", where]
    command(train, *line, "--out", "whole")
    step = AdamW.step

    def interrupted(self, *args):
        if self.t == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, *args)

    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "step", interrupted)
        with pytest.raises(SystemExit, match="130"):
            command(train, *line, "--out", "run")
    assert step_folders("run")[-1].name == "step-000003"
    command(train, "--resume", "run")
    assert [step.name for step in step_folders("run")] == ["step-000005", "step-000006"]
    assert everything("run") == everything("whole")
    assert command(sample, "--run", "run", "--tokens", 5).out
    more = ["--init-from", "run", "--tables-only", "--data", "fox.txt", "--steps", 2, "--out", "more"]
    command(train, *more, "--save-patch", "new.safetensors")
    assert command(sample, "--run", "run", "--patch", "new.safetensors", "--tokens", 5).out
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_is_replaced(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"old")
    windows.install(monkeypatch)
    files.write(tmp_path / "a", b"new")
    files.sync(tmp_path / "a")
    files.sync(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"new" and os.listdir(tmp_path) == ["a"]


def test_the_stand_in_refuses_what_windows_refuses(tmp_path, monkeypatch):
    for name in ("open", "mapped", "free"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"1234")
    opened = open(tmp_path / "open" / "file", "rb")
    mapped = np.memmap(tmp_path / "mapped" / "file", "uint8", "r")
    windows.install(monkeypatch)
    for name in ("open", "mapped"):
        for call in (lambda f: f.rename(tmp_path / "x"), shutil.rmtree, lambda f: (f / "file").unlink(),
                     lambda f: os.replace(tmp_path / "free" / "file", f / "file")):  # fmt: skip
            with pytest.raises(PermissionError, match="in use"):
                call(tmp_path / name)
    with pytest.raises(PermissionError):
        os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fsync(opened.fileno())
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExistsError):
        (tmp_path / "free").rename(tmp_path / "there")
    opened.close()
    del mapped
    for name in ("open", "mapped"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "free").rename(tmp_path / "x")
