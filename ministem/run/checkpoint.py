"""Run folders that survive a kill.

runs/NAME/config.json      the model's shape, the training settings, the vocabulary's hash
          vocab.tiktoken   the vocabulary (of a stock one, its name)
          metrics.jsonl    a line per evaluation
          .lock            held by the process that writes here
          step-000500/     model.safetensors, optimizer.safetensors, state.json, SHA256SUMS
            tables/        only of tables on disk, which are then not in the two files above:
                           NAME.rows.npy     (R,) int64: the rows that training has written, sorted
                           NAME.npy, NAME.m.npy, NAME.v.npy     (R,·) float32: them, their moments
                           tables.json       seed: what all other rows are drawn from (config.initial_rows);
                                             drawn: a sum over some of them, since another version of NumPy
                                             might draw others

So a checkpoint of tables on disk is as large as what has been trained, is written row by row, and can be
read by row (disk.SavedTables) or into memory. Its files are not sparse: they may be copied anywhere.

A step folder is written under a temporary name, flushed to disk and renamed: it is whole or absent. The
newest two are kept. SHA256SUMS, which `sha256sum -c` reads too, has every file of the step: all of them are
verified before training goes on from it, and before tables are read into memory. `rows_only`, for tables
that stay on disk to be sampled from, skips those of tables/. Nothing is ever unpickled. Left out: saving
while the next step already runs.
"""

import errno
import hashlib
import json
import os
import re
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
from ..devices.host import HostTables
from ..tables import CHUNK, Tables
from ..tokenizer import Tokenizer

KEEP = 2
SUMS = "SHA256SUMS"


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


# ---------------------------------------------------------------------------------------- the folder


def claim(folder):
    """Take a run folder for this process, until it ends, however it ends. ValueError if another has it."""
    try:
        if not files.lock(folder / ".lock"):
            why = "another process is training there; wait for it, or change --out"
            raise ValueError(f"{folder} is in use: {why}")
    except FileNotFoundError:
        raise ValueError(f"{folder} is not a folder; train.py makes run folders") from None


def check_unused(folder):
    """Raises ValueError if something is in the way of a new run in this folder.

    Leftovers of a run without a checkpoint are allowed; anything else is refused."""
    if folder.name.startswith("step-"):
        raise ValueError(f"{folder}: step-... names a checkpoint inside a run; change --out")
    if step_folders(folder):
        raise ValueError(f"{folder} holds a run already: --resume {folder} goes on with it; or change --out")
    content = (folder.iterdir() if folder.is_dir() else [folder]) if folder.exists() else []
    ours = ("config.json", "vocab.tiktoken", "metrics.jsonl", "base", ".lock")
    if not all(path.name in ours or path.match(".*.tmp") for path in content):
        raise ValueError(f"{folder} exists and is no run folder: change --out")
    check_writable(folder)


def check_writable(folder):
    """Raises ValueError if a folder cannot be made, or nothing can be written there."""
    nearest = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise ValueError(f"{folder} cannot be made: nothing can be written to {nearest}; change --out")


def start_run(run):
    """Make and claim the run's folder, with config.json and vocabulary. Raises ValueError if something is
    there, or another process."""
    folder = run.folder
    check_unused(folder)
    folder.mkdir(parents=True, exist_ok=True)
    claim(folder)
    check_unused(folder)  # again: another process may have begun and ended in between
    for path in folder.iterdir():
        if path.name != ".lock":
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


# ------------------------------------------------------------------------------------ saving, loading


def save_checkpoint(run, optimizer):
    """Write the folder step-NNNNNN, whole or not at all, then remove all but the newest KEEP of them.

    Raises FloatingPointError, and writes nothing, if not all numbers are finite."""
    target = run.folder / f"step-{run.step:06d}"
    temporary = run.folder / f".{target.name}.tmp"
    for leftover in run.folder.glob(".step-*.tmp"):  # of a run that was killed while it saved
        shutil.rmtree(leftover, ignore_errors=True)
    model, moments = run.params | run.tables.whole, optimizer.state()
    try:
        temporary.mkdir()
        save_arrays(temporary / "model.safetensors", model)
        save_arrays(temporary / "optimizer.safetensors", moments)
        if isinstance(run.tables, OnDisk):
            save_tables(temporary / "tables", run.tables, optimizer)
        write_json(temporary / "state.json", {"step": run.step, **run.state, "run": description(run)})
        write_sums(temporary)
        files.sync(temporary)
        if target.exists():  # the same step again: out of the way, but not gone before the new one is there
            os.rename(target, run.folder / f".{target.name}.old.tmp")
        os.rename(temporary, target)
        files.sync(run.folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if getattr(error, "errno", None) == errno.ENOSPC:
            size = sum(a.nbytes for a in (*model.values(), *moments.values())) / 2**20
            more = ", and the trained rows" if isinstance(run.tables, OnDisk) else ""
            why = f"{error.strerror}; the checkpoint takes {size:,.1f} MiB{more}"
            raise OSError(error.errno, why, str(target)) from None
        raise
    remove(run.folder, step_folders(run.folder)[:-KEEP])


def remove(folder, steps):
    """Remove step folders of a run, each whole or not at all: removing takes a while, renaming does not."""
    for step in steps:
        os.rename(step, folder / f".{step.name}.tmp")
    for leftover in folder.glob(".step-*.tmp"):
        shutil.rmtree(leftover)


def load_checkpoint(path, *, moments=False, rows_only=False):
    """path: a run folder (its newest step) or one step folder -> Run, its arrays on the host (see place).

    moments: Adam's, too. Tables that were on disk are SavedTables; rows_only: and will only be read by row,
    so their files are not verified. Raises ValueError with one line for anything missing or not what
    config.json says; Damaged, if it is only about this step; OSError for what cannot be read."""
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
    if tokenizer.hash != digest:
        raise ValueError(
            f"the vocabulary in {folder} ({tokenizer.n_vocab} tokens, hash {tokenizer.hash[:8]}) is not the"
            f" one it was trained with ({size} tokens, hash {digest[:8]})"
        )
    if tokenizer.n_vocab != config.vocab_size:
        raise ValueError(
            f"{folder / 'config.json'}: vocab_size is {config.vocab_size}, but the vocabulary has"
            f" {tokenizer.n_vocab} tokens; change it back"
        )
    steps = [step] if step else step_folders(folder)[-1:]
    if not steps:
        raise ValueError(f"{folder} has no checkpoint yet (no step-… folder)")
    step, on_disk = steps[0], (steps[0] / "tables").is_dir()
    state = read_state(step)
    for part, saved in state.pop("run").items():
        for name, value in saved.items():
            if content[part].get(name) != value:
                raise ValueError(
                    f"{folder / 'config.json'}: {name} is {content[part].get(name)}, but {step.name} was"
                    f" saved with {value}; change it back"
                )
    dense, tables = shapes(config)
    if on_disk and not rows_only:
        for file in sorted((step / "tables").iterdir()):
            verify(file, step)
    whole = dense if on_disk else dense | tables
    arrays = load_arrays(step / "model.safetensors", whole)
    params = {name: arrays[name] for name in dense}
    run = Run(folder, config, settings, tokenizer, params, None, state.pop("step"), state)
    if moments:
        expected = {f"{k}/{name}": shape for k in "mv" for name, shape in whole.items()}
        run.moments = load_arrays(step / "optimizer.safetensors", expected)
    if on_disk:
        run.tables, *run.table_moments = open_tables(step / "tables", config, moments)
    else:
        run.tables = Tables({name: arrays[name] for name in tables})
    return run


def place(run, where, like, seed=None):
    """Put a run's arrays, as load_checkpoint and init_params leave them on the host, where training wants
    them: what is dense on `like`'s device; the tables and their moments with it ("ram"), in the host's memory
    beside a GPU ("host"), or in files of the run's folder ("disk").

    seed: what rows of a new model with tables on disk (run.tables is None) are drawn from."""
    run.params = {name: upload(p, like) for name, p in run.params.items()}
    names, host = list(shapes(run.config)[1]), np.empty(0, "float32")
    if where == "disk":
        tables, run.tables = run.tables, DiskTables(run.folder, run.config, getattr(run.tables, "seed", seed))
        if tables is not None:
            run.tables.take(tables)
        if run.moments and not run.table_moments:
            moments = [{n: run.moments.pop(f"{k}/{n}") for n in names} for k in "mv"]
            run.table_moments = tuple(map(Tables, moments))
    else:
        arrays = in_memory(run.tables)
        for k, tables in zip("mv", run.table_moments, strict=False):
            run.moments |= {f"{k}/{name}": a for name, a in in_memory(tables).items()}
        run.table_moments = ()
        if where == "host" and not isinstance(like, np.ndarray):
            run.tables = HostTables(arrays)
        else:
            run.tables = Tables({name: upload(a, like) for name, a in arrays.items()})
    if run.moments:
        on_host = names if where != "ram" else ()
        likes = {name: host if name.partition("/")[2] in on_host else like for name in run.moments}
        run.moments = {name: upload(a, likes[name]) for name, a in run.moments.items()}


def in_memory(tables):
    """-> {name: (V,·) array} of Tables in RAM or of a checkpoint's, on disk"""
    if tables.whole:
        return tables.whole
    return {name: np.concatenate([part for _, part in tables.parts(name)]) for name in tables.names}


def copy_of(run, folder):
    """A run folder with the one step that `run` was loaded from: hard links where the file system has them,
    so that it takes no space, and stays when that run removes the step."""
    step = run.folder / f"step-{run.step:06d}"
    folder.mkdir()
    for name in ("config.json", "vocab.tiktoken"):
        shutil.copy(run.folder / name, folder / name)
    shutil.copytree(step, folder / step.name, copy_function=link)


def link(source, target):
    try:
        os.link(source, target)
    except OSError:
        shutil.copy(source, target)


# ----------------------------------------------------------------------------------- tables on disk


KINDS = ("", ".m", ".v")  # of what a row is kept: itself, its two moments


def save_tables(folder, tables, optimizer):
    """The rows that have been written, and their moments, one CHUNK in memory at a time."""
    folder.mkdir()
    for name in tables.names:
        rows = tables.written(name)
        save_npy(folder / f"{name}.rows.npy", "int64", rows.shape, [rows])
        for kind, store in zip(KINDS, (tables, optimizer.table_m, optimizer.table_v), strict=True):
            pieces = (store.read(name, rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK))
            save_npy(folder / f"{name}{kind}.npy", "float32", (len(rows), tables.shape(name)[1]), pieces)
    about = {"seed": tables.seed, "drawn": drawn(tables.config, tables.seed)}
    write_json(folder / "tables.json", about)
    files.sync(folder)


def open_tables(folder, config, moments=False):
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
    saved = [SavedTables(config, s, rows, arrays, folder) for s, arrays in zip(seeds, kinds, strict=True)]
    return tuple(saved if moments else saved[:1])


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
    except (ValueError, EOFError, TypeError, SyntaxError) as error:
        why = f"{path} is damaged ({error}); remove {path.parent.parent} to use the step before"
        raise Damaged(" ".join(why.split())) from None
    return array.view(np.ndarray)


# ------------------------------------------------------------------------------------------- files


def save_arrays(path, arrays):
    """Write {name: array}, flushed to disk. FloatingPointError for what is not finite."""
    arrays = {name: np.require(download(a), requirements="C") for name, a in arrays.items()}
    for name, a in arrays.items():
        if not np.isfinite(a).all():
            raise FloatingPointError(f"{name} has numbers that are not finite")
    try:
        save_file(arrays, path)
    except SafetensorError as error:  # a full disk, for instance
        number = re.search(r"os error (\d+)", str(error))
        number = int(number[1]) if number else errno.EIO
        raise OSError(number, f"cannot be written: {os.strerror(number)}", str(path)) from None
    path.chmod(0o666 & ~files.UMASK)  # the library writes files that nobody else can read
    files.sync(path)


def load_arrays(path, expected):
    """path, {name: shape} -> {name: float32 array}, exactly these names and shapes."""
    verify(path, path.parent)
    try:
        arrays = load_file(path)
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise Damaged(f"{path} is damaged ({error}); remove {path.parent} to use the step before") from None
    for name in sorted(expected.keys() ^ arrays.keys()):
        raise ValueError(f"{path}: {name} is {'missing' if name in expected else 'not of this model'}")
    for name, shape in expected.items():
        if not np.isfinite(arrays[name]).all():
            raise Damaged(f"{path}: {name} has numbers that are not finite; remove {path.parent}")
        if arrays[name].shape != shape or arrays[name].dtype != "float32":
            actual = f"{arrays[name].dtype} {arrays[name].shape}"
            raise ValueError(f"{path}: {name} is {actual}, the configuration needs float32 {shape}")
    return arrays


def write_sums(step):
    """SHA256SUMS: a line for each file of the step folder, as sha256sum writes it."""
    names = sorted(path.relative_to(step).as_posix() for path in step.rglob("*") if path.is_file())
    lines = [f"{file_hash(step / name)}  {name}\n" for name in names]
    files.write(step / SUMS, "".join(lines).encode())


def verify(path, step):
    """Raises Damaged unless a file's bytes are those that SHA256SUMS says were saved."""
    if file_hash(path) != read_sums(step).get(path.relative_to(step).as_posix()):
        raise Damaged(f"{path} is damaged (its bytes are not those that were saved); remove {step} to use the"
                      " step before")  # fmt: skip


def read_sums(step):
    """-> {name: hash} of a step folder's SHA256SUMS"""
    try:
        lines = (step / SUMS).read_text("utf-8").splitlines()
        return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except FileNotFoundError:
        if (step / "state.json").exists():
            why = f"{step} has no {SUMS}: was it saved by an older ministem? Then use that one"
            raise ValueError(why) from None
        raise Damaged(f"{step} is not whole; remove it to use the step before") from None
    except ValueError:
        raise Damaged(f"{step / SUMS} is damaged; remove {step} to use the step before") from None


def file_hash(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path, content):
    files.write(path, (json.dumps(content, indent=1) + "\n").encode())


def read_json(path):
    """A JSON object. ValueError if it is missing, damaged or something else."""
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
    """A step folder -> the content of its state.json, if that is what was saved, and of this step."""
    path = step / "state.json"
    for name in read_sums(step):
        if not (step / name).exists():
            raise Damaged(f"{step / name} is missing; remove {step} to use the step before")
    verify(path, step)
    state = read_json(path)
    if not fits(state, step):
        raise Damaged(f"{path} is not of this step; remove {step} to use the step before")
    return state


def fits(state, step):
    """Is everything in it that a checkpoint of this step has?"""
    losses = state.get("losses", [])
    return (
        type(state.get("step")) is int
        and step.name == f"step-{state['step']:06d}"
        and isinstance(state.get("run"), dict)
        and all(isinstance(part, dict) for part in state["run"].values())
        and isinstance(losses, list)
        and all(type(loss) is float for loss in losses)
        and isinstance(state.get("line"), dict | None)
    )
