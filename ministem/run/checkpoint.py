"""Run folders that survive a kill.

runs/NAME/config.json      the model's shape, the training settings, the vocabulary's hash
          vocab.tiktoken   the vocabulary (of a stock one, its name)
          metrics.jsonl    a line per evaluation
          step-000500/     model.safetensors, optimizer.safetensors, state.json
            tables/        only of tables on disk, which are then not in the two files above:
                           NAME.rows.npy     (R,) int64: the rows that training has written, sorted
                           NAME.npy, NAME.m.npy, NAME.v.npy     (R,·) float32: them, their moments
                           tables.json       seed: what all other rows are drawn from (config.initial_rows);
                                             drawn: a sum over some of them, since another version of NumPy
                                             might draw others

So a checkpoint of tables on disk is as large as what has been trained, is written row by row, and can be
read by row (disk.SavedTables) or into memory. There are no holes in its files: they may be copied anywhere.

A step folder is written under a temporary name, flushed to disk and renamed: it is whole or absent. The
newest two are kept. state.json has a hash of each file, so that a flipped bit is noticed even where it leaves
a number that could be right. Nothing is ever unpickled. Left out: saving while the next step already runs.
"""

import hashlib
import json
import os
import shutil
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.lib import format
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from ..backend import download, upload
from ..config import Config, initial_rows, shapes
from ..devices import files
from ..devices.disk import DiskTables, OnDisk, SavedTables
from ..tables import CHUNK, Tables
from ..tokenizer import Tokenizer

KEEP = 2


class Damaged(ValueError):
    """A step folder cannot be used; the one before it may be whole."""


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
    table_moments: tuple = ()  # of tables on disk, two Tables


def check_unused(folder):
    """Raises ValueError if something is in the way of a new run in this folder.

    What a run leaves that was stopped before its first checkpoint is not, and nothing else."""
    if folder.name.startswith("step-"):
        raise ValueError(f"{folder}: step-... names a checkpoint inside a run; change --out")
    if step_folders(folder):
        raise ValueError(f"{folder} holds a run already: --resume {folder} goes on with it; or change --out")
    found = (folder.iterdir() if folder.is_dir() else [folder]) if folder.exists() else []
    ours = ("config.json", "vocab.tiktoken", "metrics.jsonl")
    if not all(path.name in ours or path.match(".*.tmp") for path in found):
        raise ValueError(f"{folder} exists and is no run folder: change --out")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ValueError(f"{folder} cannot be made: nothing can be written to {there}; change --out")


def start_run(run):
    """Make the run's folder with config.json and vocabulary. Raises ValueError if something is there."""
    folder = run.folder
    check_unused(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    try:
        files.sync(folder.parent)
        files.write(folder / "vocab.tiktoken", run.tokenizer.to_bytes())
        write_json(folder / "config.json", description(run))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise OSError(error.errno, error.strerror, str(folder)) from None


def description(run):
    """What a run is, apart from how far it has come: the content of config.json."""
    vocabulary = {"hash": run.tokenizer.hash, "size": run.tokenizer.n_vocab}
    return {"model": asdict(run.config), "settings": run.settings, "vocabulary": vocabulary}


def save_checkpoint(run, optimizer):
    """Write the folder step-NNNNNN, whole or not at all, then remove all but the newest KEEP of them.

    Raises FloatingPointError, and writes nothing, if not all numbers are finite."""
    target = run.folder / f"step-{run.step:06d}"
    temporary = run.folder / f".{target.name}.tmp"
    for leftover in run.folder.glob(".step-*.tmp"):  # of a run that was killed while it saved
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir()
    try:
        hashes, model = {}, run.params | run.tables.whole
        for name, arrays in {"model.safetensors": model, "optimizer.safetensors": optimizer.state()}.items():
            hashes[name] = save_arrays(temporary / name, arrays)
        if isinstance(run.tables, OnDisk):
            save_tables(temporary / "tables", run.tables, optimizer)
        state = {"step": run.step, **run.state, "files": hashes, "run": description(run)}
        write_json(temporary / "state.json", {**state, "sha256": hash_of(state)})
        files.sync(temporary)
        if target.exists():  # the same step again: out of the way, but not gone before the new one is there
            os.rename(target, run.folder / f".{target.name}.old.tmp")
        os.rename(temporary, target)
        files.sync(run.folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in step_folders(run.folder)[:-KEEP]:
        os.rename(old, run.folder / f".{old.name}.tmp")  # removing takes a while: whole or absent, here too
    for old in run.folder.glob(".step-*.tmp"):
        shutil.rmtree(old)


def load_checkpoint(path, like, with_moments=False, in_ram=False, tables_like=None):
    """path: a run folder (its newest step) or one step folder -> Run, its arrays on `like`'s device, its
    tables (and their moments) on that of tables_like, if given.

    Tables that were on disk stay there (disk.SavedTables), unless in_ram.
    Raises ValueError with one line for anything missing, damaged, or not what config.json says: Damaged, if
    it is only about this step."""
    path = Path(path)
    is_step = path.name.startswith("step-") and not (path / "config.json").exists()
    folder, step = (path.parent, path) if is_step else (path, None)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; train.py makes run folders")
    content = read_json(folder / "config.json")
    try:
        config, settings = Config(**content["model"]), {**content["settings"]}
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
    state = read_state(steps[0])
    hashes, then = state.pop("files"), state.pop("run")
    for part in ("model", "settings", "vocabulary"):
        for name, value in then.get(part, {}).items():
            if content[part].get(name) != value:
                raise ValueError(
                    f"{folder / 'config.json'}: {name} is {content[part].get(name)}, but {steps[0].name} was"
                    f" saved with {value}; change it back"
                )
    dense, tables = shapes(config)
    on_disk = (steps[0] / "tables").is_dir()
    whole, tables_like = dense if on_disk else dense | tables, like if tables_like is None else tables_like
    likes = dict.fromkeys(dense, like) | dict.fromkeys(tables, tables_like)
    arrays = load_arrays(steps[0] / "model.safetensors", whole, likes, hashes)
    moments = None
    if with_moments:
        expected = {f"{k}/{name}": shape for k in "mv" for name, shape in whole.items()}
        likes = {f"{k}/{name}": a for k in "mv" for name, a in likes.items()}
        moments = load_arrays(steps[0] / "optimizer.safetensors", expected, likes, hashes)
    params = {name: arrays[name] for name in dense}
    saved = ()
    if on_disk:
        saved = open_tables(steps[0] / "tables", config, with_moments)
        if not in_ram and not isinstance(like, np.ndarray):
            raise ValueError(f"{folder} has its tables on disk: --device gpu needs --tables ram")
    if on_disk and not in_ram:
        tables, *saved = saved
    else:
        for prefix, kept in zip(("", "m/", "v/"), saved, strict=False):
            values = {name: np.concatenate([part for _, part in kept.parts(name)]) for name in tables}
            target = moments if prefix else arrays
            target |= {prefix + name: upload(a, tables_like) for name, a in values.items()}
        tables, saved = Tables({name: arrays[name] for name in tables}), ()
    step = state.pop("step")
    return Run(folder, config, settings, tokenizer, params, tables, step, state, moments, tuple(saved))


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


# ----------------------------------------------------------------------------------- tables on disk


KINDS = ("", ".m", ".v")  # of what a row is kept: itself, its two moments


def put_on_disk(run, seed=None):
    """Give the run tables on disk that can be trained: new ones, or those that it has, wherever they are."""
    tables, run.tables = run.tables, DiskTables(run.folder, run.config, getattr(run.tables, "seed", seed))
    if tables is not None:
        run.tables.take(tables)
        if run.moments and tables.whole:
            moments = [{n: run.moments.pop(f"{k}/{n}") for n in tables.names} for k in "mv"]
            run.table_moments = tuple(map(Tables, moments))


def save_tables(folder, tables, optimizer):
    """The rows that have been written, and their moments, one CHUNK in memory at a time."""
    folder.mkdir()
    for name in tables.names:
        rows = tables.written(name)
        save_npy(folder / f"{name}.rows.npy", "int64", rows.shape, [rows])
        for kind, kept in zip(KINDS, (tables, optimizer.table_m, optimizer.table_v), strict=True):
            some = (kept.read(name, rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK))
            save_npy(folder / f"{name}{kind}.npy", "float32", (len(rows), tables.shape(name)[1]), some)
    about = {"seed": tables.seed, "drawn": drawn(tables.config, tables.seed)}
    write_json(folder / "tables.json", about)
    files.sync(folder)


def open_tables(folder, config, with_moments=False):
    """-> (tables,), or (tables, m, v): SavedTables. Nothing is read but the numbers of the rows."""
    try:
        about = read_json(folder / "tables.json")
    except ValueError as error:
        raise Damaged(f"{error}; remove {folder.parent} to use the step before") from None
    seed = about.get("seed")
    if not (seed is None or (type(seed) is int and seed >= 0)):
        raise Damaged(f"{folder}/tables.json is damaged; remove {folder.parent} to use the step before")
    if about.get("drawn") != drawn(config, seed):
        raise ValueError(f"{folder}: this version of NumPy draws other numbers for rows that are not trained")
    names = shapes(config)[1]
    rows = {name: open_npy(folder / f"{name}.rows.npy", "int64", 1) for name in names}
    kinds = [{n: open_npy(folder / f"{n}{k}.npy", "float32", 2) for n in names} for k in KINDS]
    for name, (V, width) in names.items():
        ids = rows[name]
        inside = not len(ids) or (ids[0] >= 0 and ids[-1] < V and (np.diff(ids) > 0).all())
        if not inside or any(arrays[name].shape != (len(ids), width) for arrays in kinds):
            raise Damaged(f"{folder}: the files of {name} do not fit this model; remove {folder.parent}")
    seeds = (seed, None, None)  # moments that are not there are zero
    found = [SavedTables(config, s, rows, arrays, folder) for s, arrays in zip(seeds, kinds, strict=True)]
    return tuple(found if with_moments else found[:1])


def drawn(config, seed):
    """-> a sum over the first rows that this seed gives, to be compared with another machine's"""
    return None if seed is None else zlib.crc32(initial_rows(config, seed, "embed", 0).tobytes())


def save_npy(path, dtype, shape, pieces):
    """np.save, of an array that comes in pieces."""
    about = dict(descr=format.dtype_to_descr(np.dtype(dtype)), fortran_order=False, shape=shape)
    with files.named(path), open(path, "wb") as file:
        format.write_array_header_1_0(file, about)
        for piece in pieces:
            file.write(np.ascontiguousarray(piece, dtype))
    files.sync(path)


def open_npy(path, dtype, ndim):
    """np.load, of an array that stays on disk."""
    try:
        array = np.load(path, mmap_mode="r")
        if array.dtype != dtype or array.ndim != ndim:
            raise ValueError(f"{array.dtype} {array.shape}, should be {dtype}")
    except FileNotFoundError:
        raise Damaged(f"{path} is missing; remove {path.parent.parent} to use the step before") from None
    except (ValueError, EOFError, OSError, TypeError, SyntaxError) as error:
        why = f"{path} is damaged ({error}); remove {path.parent.parent} to use the step before"
        raise Damaged(" ".join(why.split())) from None
    return array.view(np.ndarray)


# ------------------------------------------------------------------------------------------- files


def save_arrays(path, arrays):
    """Write {name: array}, flushed to disk -> the file's hash. FloatingPointError for what is not finite."""
    arrays = {name: np.require(download(a), requirements="C") for name, a in arrays.items()}
    for name, a in arrays.items():
        if not np.isfinite(a).all():
            raise FloatingPointError(f"{name} has numbers that are not finite")
    try:
        save_file(arrays, path)
    except SafetensorError as error:  # a full disk, for instance
        raise OSError(f"{path} cannot be written: {error}") from None
    files.sync(path)
    return file_hash(path)


def load_arrays(path, expected, likes, hashes):
    """path, {name: shape} -> {name: array}, exactly these names and shapes, in float32, each where its
    likes[name] is."""
    try:
        if file_hash(path) != hashes.get(path.name):
            raise ValueError("its bytes are not those that were saved")
        arrays = load_file(path)
    except FileNotFoundError:
        raise Damaged(f"{path} is missing; remove {path.parent} to use the step before") from None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        why = f"{path} is damaged ({error}); remove {path.parent} to use the step before"
        raise Damaged(why) from None
    for name in sorted(expected.keys() ^ arrays.keys()):
        raise ValueError(f"{path}: {name} is {'missing' if name in expected else 'not of this model'}")
    for name, shape in expected.items():
        if not np.isfinite(arrays[name]).all():
            raise Damaged(f"{path}: {name} has numbers that are not finite; remove {path.parent}")
        if arrays[name].shape != shape or arrays[name].dtype != "float32":
            found = f"{arrays[name].dtype} {arrays[name].shape}"
            raise ValueError(f"{path}: {name} is {found}, the configuration needs float32 {shape}")
    return {name: upload(a, likes[name]) for name, a in arrays.items()}


def file_hash(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_of(content):
    """A hash of what JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def write_json(path, content):
    files.write(path, (json.dumps(content, indent=1) + "\n").encode())


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


def read_state(step):
    """A step folder -> the content of its state.json, if that is whole and of this step."""
    path = step / "state.json"
    try:
        state = read_json(path)
        if "step" in state and not {"sha256", "files", "run"} & state.keys():
            state = None  # nothing is wrong with it: nobody should be told to remove it
        elif state.pop("sha256", None) != hash_of(state):
            raise ValueError(f"{path} is damaged: it is not what was saved")
        elif not fits(state, step):
            raise ValueError(f"{path} is not of this step")
    except ValueError as error:
        raise Damaged(f"{error}; remove {step} to use the step before") from None
    if state is None:
        raise ValueError(f"{step} was saved by an older ministem, without hashes of its files: use that one")
    return state


def fits(state, step):
    """Is everything in it that a checkpoint of this step has?"""
    losses = state.get("losses", [])
    return (
        type(state.get("step")) is int
        and step.name == f"step-{state['step']:06d}"
        and isinstance(state.get("files"), dict)
        and isinstance(state.get("run"), dict)
        and all(isinstance(part, dict) for part in state["run"].values())
        and isinstance(losses, list)
        and all(type(loss) is float for loss in losses)
    )
