"""What is written has reached the disk before it gets its name, and its name before anything older goes."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from commands import TEXT, TINY

import train
from ministem.devices import files
from ministem.run.checkpoint import step_folders

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which file a handle is of")


@pytest.fixture
def events(monkeypatch):
    """-> a list: what is flushed, as it then is, and what is renamed or removed, in order"""
    seen, calls = [], {name: getattr(os, name) for name in ("fsync", "rename", "replace", "unlink")}

    def fsync(handle):
        calls["fsync"](handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle if isinstance(handle, int) else handle.fileno()}"))
        seen.append(("fsync", path, state(path)))

    def named(name):
        def call(path, *args, **kwargs):
            if not kwargs.get("dir_fd"):
                source = Path(path).absolute()
                seen.append((name, source, contents(source), Path(args[0]).absolute() if args else None))
            return calls[name](path, *args, **kwargs)

        return call

    rmtree = shutil.rmtree

    def remove_tree(path, *args, **kwargs):
        seen.append(("rmtree", Path(path).absolute()))
        rmtree(path, *args, **kwargs)

    monkeypatch.setattr(os, "fsync", fsync)
    for name in ("rename", "replace", "unlink"):
        monkeypatch.setattr(os, name, named(name))
    monkeypatch.setattr(shutil, "rmtree", remove_tree)
    return seen


def state(path):
    """What changes when somebody writes: of a folder, its names."""
    return sorted(os.listdir(path)) if path.is_dir() else (path.stat().st_size, path.stat().st_mtime_ns)


def contents(path):
    """A file, or a folder and all in it, each as it now is."""
    return {p: state(p) for p in [path, *(path.rglob("*") if path.is_dir() else ())]}


def check_order(seen, is_new):
    """Each new name: all of it flushed before, as it then was; the folder it is in flushed right after."""
    flushed, n = {}, 0
    for i, (what, path, *more) in enumerate(seen):
        if what == "fsync":
            flushed[path] = more[0]
        elif what in ("rename", "replace"):
            parts, target = more
            if is_new(target):
                n += 1
                for part, now in parts.items():
                    assert flushed.get(part) == now, f"{part} was renamed to {target} before it was flushed"
                assert seen[i + 1][:2] == ("fsync", target.parent), f"after {target} came {seen[i + 1]}"
            for part in parts:  # what was flushed under the old name
                flushed[target / part.relative_to(path)] = flushed.pop(part, None)
    return n


def test_a_file_is_flushed_renamed_and_its_folder_flushed(tmp_path, events):
    files.write(tmp_path / "a", b"new")
    assert check_order(events, lambda path: True) == 1
    assert [what for what, *_ in events][:3] == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize("where", ["ram", "disk"])
def test_a_checkpoint_is_flushed_before_it_is_named_and_named_before_an_old_one_goes(
    tmp_path, monkeypatch, events, where
):
    (tmp_path / "fox.txt").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train.py", "--data", "fox.txt", *TINY, "--steps", "4", "--eval-every",
                                      "1", "--tables", where, "--out", "run"])  # fmt: skip
    train.main()
    assert [step.name for step in step_folders("run")] == ["step-000003", "step-000004"]
    assert check_order(events, lambda path: path.name.startswith("step-")) == 4
    assert check_order(events, lambda path: path.name in ("config.json", "vocab.tiktoken")) == 2
    places = {str(e[-1].relative_to(tmp_path / "run")): i for i, e in enumerate(events) if e[0] == "rename"}
    for gone, newer in (("step-000001", "step-000003"), ("step-000002", "step-000004")):
        left = [i for i, e in enumerate(events) if e[1].name == gone and e[0] in ("rename", "rmtree")]
        assert left and min(left) > places[newer] + 1, f"{gone} went before {newer} was safe"
