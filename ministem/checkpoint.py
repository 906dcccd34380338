"""Run folders that survive a kill.

runs/NAME/config.json      the model's shape, the training settings, the vocabulary's hash
          vocab.tiktoken   the vocabulary (of a stock one, its name)
          metrics.jsonl    a line per evaluation
          step-000500/     model.safetensors, optimizer.safetensors, state.json

A step folder is written under a temporary name, flushed to disk and renamed: it is whole or absent. The
newest two are kept. Nothing is ever unpickled. Left out: saving while the next step already runs.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from .backend import download, upload
from .model import Config, shapes
from .tables import Tables
from .tokenizer import Tokenizer

KEEP = 2


@dataclass
class Run:
    """A model, its vocabulary, where it is kept and how far its training has come."""

    folder: Path
    config: Config
    settings: dict  # train.py's options
    tokenizer: Tokenizer
    params: dict
    tables: Tables
    step: int = 0
    state: dict = field(default_factory=dict)  # what else the training loop wants back
    moments: dict | None = None  # AdamW.state(), if asked for


def start_run(run):
    """Make the run's folder with config.json and vocabulary. Raises ValueError if something is there."""
    folder = run.folder
    if folder.name.startswith("step-"):
        raise ValueError(f"{folder}: step-... names a checkpoint inside a run; change --out")
    if step_folders(folder):
        raise ValueError(f"{folder} holds a run already: --resume {folder} goes on with it; or change --out")
    # what a run leaves that was stopped before its first checkpoint may be written over, nothing else
    leftovers = {"config.json", "vocab.tiktoken", "metrics.jsonl"}
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - leftovers):
        raise ValueError(f"{folder} exists and is no run folder: change --out")
    folder.mkdir(parents=True, exist_ok=True)
    for name in leftovers:
        (folder / name).unlink(missing_ok=True)
    vocabulary = {"hash": run.tokenizer.hash, "size": run.tokenizer.n_vocab}
    content = {"model": asdict(run.config), "settings": run.settings, "vocabulary": vocabulary}
    try:
        run.tokenizer.save(folder / "vocab.tiktoken")
        write_json(folder / "config.json", content)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OSError(error.errno, error.strerror, str(folder)) from None


def save_checkpoint(run, optimizer):
    """Write the folder step-NNNNNN, whole or not at all, then remove all but the newest KEEP of them."""
    target = run.folder / f"step-{run.step:06d}"
    temporary = run.folder / f".{target.name}.tmp"
    for leftover in run.folder.glob(".step-*.tmp"):  # of a run that was killed while it saved
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    try:
        arrays = run.params | {name: run.tables[name] for name in run.tables.names}
        save_arrays(temporary / "model.safetensors", arrays)
        save_arrays(temporary / "optimizer.safetensors", optimizer.state())
        write_json(temporary / "state.json", {"step": run.step, **run.state})
        sync(temporary)
        if target.exists():  # the same step again: out of the way, but not gone before the new one is there
            os.rename(target, run.folder / f".{target.name}.old.tmp")
        os.rename(temporary, target)
        sync(run.folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in [*step_folders(run.folder)[:-KEEP], *run.folder.glob(".step-*.tmp")]:
        shutil.rmtree(old)


def load_checkpoint(path, like, with_moments=False):
    """path: a run folder (its newest step) or one step folder -> Run, its arrays on `like`'s device.

    Raises ValueError with one line for anything missing, damaged, or not what config.json says."""
    path = Path(path)
    is_step = path.name.startswith("step-") and not (path / "config.json").exists()
    folder, step = (path.parent, path) if is_step else (path, None)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; train.py makes run folders")
    content = read_json(folder / "config.json")
    try:
        config, settings = Config(**content["model"]), dict(content["settings"])
        size, digest = content["vocabulary"]["size"], str(content["vocabulary"]["hash"])
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{folder / 'config.json'} is not a run's configuration: {error}") from None
    tokenizer = Tokenizer.load(folder / "vocab.tiktoken")
    if tokenizer.hash != digest or tokenizer.n_vocab != config.vocab_size:
        raise ValueError(
            f"the vocabulary in {folder} ({tokenizer.n_vocab} tokens, hash {tokenizer.hash[:8]}) is not the"
            f" one it was trained with ({size} tokens, hash {digest[:8]})"
        )
    steps = [step] if step else step_folders(folder)[-1:]
    if not steps:
        raise ValueError(f"{folder} has no checkpoint yet (no step-… folder)")
    dense, tables = shapes(config)
    arrays = load_arrays(steps[0] / "model.safetensors", dense | tables, like)
    moments = None
    if with_moments:
        expected = {f"{k}/{name}": shape for k in "mv" for name, shape in (dense | tables).items()}
        moments = load_arrays(steps[0] / "optimizer.safetensors", expected, like)
    state = read_json(steps[0] / "state.json")
    losses = state.get("losses", [])
    whole = isinstance(losses, list) and all(type(loss) is float for loss in losses)
    if type(state.get("step")) is not int or f"step-{state['step']:06d}" != steps[0].name or not whole:
        raise ValueError(f"{steps[0] / 'state.json'} is damaged; remove {steps[0]} to use the step before")
    params = {name: arrays[name] for name in dense}
    tables = Tables({name: arrays[name] for name in tables})
    return Run(folder, config, settings, tokenizer, params, tables, state.pop("step"), state, moments)


def newest_run(root="runs"):
    """The run folder under `root` with the youngest checkpoint. Raises ValueError if there is none."""
    folders = [step for run in Path(root).glob("*") for step in step_folders(run)]
    if not folders:
        raise ValueError(f"no run in {root}/ yet: train one first (python train.py)")
    return max(folders, key=lambda folder: folder.stat().st_mtime).parent


def step_folders(run):
    """The run's step folders, oldest first."""
    folders = [f for f in Path(run).glob("step-*") if f.name[5:].isdecimal()]
    return sorted(folders, key=lambda folder: int(folder.name[5:]))


# ------------------------------------------------------------------------------------------- files


def save_arrays(path, arrays):
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        save_file({name: np.ascontiguousarray(download(a)) for name, a in arrays.items()}, path)
    except SafetensorError as error:  # a full disk, for instance
        raise OSError(f"{path} cannot be written: {error}") from None
    sync(path)


def load_arrays(path, expected, like):
    """path, {name: shape} -> {name: array}, exactly these names and shapes, in float32."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        why = f"{path} is damaged ({error}); remove {path.parent} to use the step before"
        raise ValueError(why) from None
    for name in sorted(expected.keys() ^ arrays.keys()):
        raise ValueError(f"{path}: {name} is {'missing' if name in expected else 'not of this model'}")
    for name, shape in expected.items():
        if not np.isfinite(arrays[name]).all():
            raise ValueError(f"{path}: {name} has numbers that are not finite; remove {path.parent}")
        if arrays[name].shape != shape or arrays[name].dtype != "float32":
            found = f"{arrays[name].dtype} {arrays[name].shape}"
            raise ValueError(f"{path}: {name} is {found}, the configuration needs float32 {shape}")
    return {name: upload(a, like) for name, a in arrays.items()}


def write_json(path, content):
    """Written beside it, flushed and renamed: the file is the old one or the new one, never half."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_text(path, text):
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: not a run folder, or not a whole one") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is damaged: not a JSON object")
    return content


def sync(path):
    """Make sure that a file, or the list of names in a folder, has reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
