"""Runs to and from folders of other code.

    python -m ministem.convert.folders export runs/NAME FOLDER              for the official STEM code
    python -m ministem.convert.folders export runs/NAME FOLDER --to llama   for Hugging Face, dense models
    python -m ministem.convert.folders import FOLDER runs/NEW               from either, or from a checkpoint

The whole walk is in README.md beside this file. Weights are in model.safetensors, the vocabulary in
vocab.tiktoken. The official code has files of its own, which only PyTorch writes and reads: where it is
installed, export and import do that (pth.py); elsewhere pth.py is run by itself where PyTorch is.
"""

import argparse
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import safetensors
from safetensors.numpy import save

from ..devices import files
from ..knowledge.edit import apply_patches
from ..optim import AdamW
from ..run.checkpoint import Run, load_checkpoint, place, read_json, save_checkpoint, start_run, write_json
from ..run.cli import as_command, say, user_errors
from ..tokenizer import Tokenizer
from . import official
from .lingua import from_lingua, to_lingua
from .llama import from_llama, llama_arguments, llama_config, llama_tokenizer, to_llama


def export_run(run, folder, to, shards=1):
    """Write a Run (run/checkpoint.py) as a folder, whole or not at all -> a list of things to be told.

    to: "lingua" or "llama". shards: as many processes as shall train it there. Raises ValueError."""
    folder, notes = Path(folder), []
    if folder.exists():
        raise ValueError(f"{folder} is there already: export to a new folder")
    if not folder.parent.is_dir():
        raise ValueError(f"{folder.parent} is not a folder")
    if to == "lingua" and run.tables.names[1:] and run.config.ffn_dim % shards:
        raise ValueError(f"tables {run.config.ffn_dim} wide do not divide into {shards} shards")
    state = dict(lingua=to_lingua, llama=to_llama)[to](run.params, run.tables, run.config)
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        run.tokenizer.save(temporary / "vocab.tiktoken")
        # transformers asks for this word about the format
        files.write(temporary / "model.safetensors", save(state, metadata={"format": "pt"}))
        if to == "llama":
            write_json(temporary / "config.json", llama_config(run.config, run.tokenizer.eot))
            notes += llama_tokenizer(run.tokenizer, run.config.context, temporary)
        else:
            notes += official.export(run, temporary, shards)
            if find_spec("torch"):
                from . import pth  # takes seconds

                pth.add_official_files(temporary)
            else:
                notes.append(f"PyTorch is not here. Where it is: python {folder.name}/pth.py {folder.name}")
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return notes


def import_run(folder, out):
    """A folder of either kind -> a new run folder at step 0, to sample from, to edit, to go on from with
    train.py --init-from. Raises ValueError."""
    folder = Path(folder)
    try:
        if (folder / "params.json").exists():
            content = read_json(folder / "params.json")["model"]
            state, vocabulary = read_official(folder)
            how = dict(n_heads=content["n_heads"], context=content["max_seqlen"],
                       norm_eps=content["norm_eps"], rope_theta=content["rope_theta"])  # fmt: skip
            params, tables, config = from_lingua(state, **how)
        elif (folder / "config.json").exists():
            how = llama_arguments(read_json(folder / "config.json"))
            params, tables, config = from_llama(read_llama(folder), **how)
            vocabulary = folder / "vocab.tiktoken"
        else:
            raise ValueError(f"{folder} has no params.json (official code) and no config.json (Hugging Face)")
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{folder}: a setting is missing or of the wrong kind ({error})") from None
    if not vocabulary.exists():
        raise ValueError(f"{vocabulary} is missing: copy it from the folder that was exported")
    tokenizer = Tokenizer.load(vocabulary)
    if tokenizer.n_vocab != config.vocab_size:
        raise ValueError(f"{vocabulary} has {tokenizer.n_vocab} tokens, the model {config.vocab_size}")
    settings = dict(
        data=None, tokenizer="bpe", vocab_size=config.vocab_size, dim=config.dim, layers=config.n_layers,
        heads=config.n_heads, kv_heads=config.n_kv_heads, ffn_dim=config.ffn_dim, context=config.context,
        stem_layers=",".join(map(str, config.stem_layers)) or "none", ffn=config.ffn,
    )  # fmt: skip
    run = Run(Path(out), config, settings, tokenizer, params, tables)
    optimizer = AdamW()
    optimizer.start(params, tables)  # moments do not travel: they begin at zero
    start_run(run)
    save_checkpoint(run, optimizer)
    return run


def read_official(folder):
    """An exported folder, or a checkpoint of official training -> {official name: array}, vocabulary file"""
    if (folder / "model.safetensors").exists():
        return read_arrays(folder / "model.safetensors"), folder / "vocab.tiktoken"
    if not find_spec("torch"):
        raise ValueError(f"{folder} takes PyTorch to read. Where it is: python pth.py {folder} --back NEW")
    from . import pth  # takes seconds

    state = {name: finite(folder, name, a.float().numpy()) for name, a in pth.read(folder).items()}
    return state, pth.find_vocabulary(folder)


def read_llama(folder):
    """model.safetensors, or the files that model.safetensors.index.json names -> {their name: array}"""
    index = folder / "model.safetensors.index.json"
    if (folder / "model.safetensors").exists() or not index.exists():
        return read_arrays(folder / "model.safetensors")
    files_of = read_json(index)["weight_map"]
    state = {}
    for file in sorted(set(files_of.values())):
        if Path(file).name != file:
            raise ValueError(f"{index} names {file}, which is outside of the folder")
        state |= read_arrays(folder / file)
    for name, file in files_of.items():
        if name not in state:
            raise ValueError(f"{folder / file} has no {name}, which {index.name} says it has")
    return state


FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_arrays(path):
    """A safetensors file -> {name: array in float32}"""
    try:
        found = safetensors.deserialize(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    state = {}
    for name, tensor in found:
        kind = tensor["dtype"]
        if kind not in FLOATS:
            raise ValueError(f"{path}: {name} holds {kind}, not floating point numbers")
        a = np.frombuffer(tensor["data"], FLOATS[kind]).reshape(tensor["shape"])
        if kind == "BF16":  # NumPy has none: it is the upper half of a float32
            a = (a.astype("<u4") << 16).view("<f4")
        state[name] = finite(path, name, a)
    return state


def finite(path, name, a):
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        a = a.astype("float32", copy=False)
    if not np.isfinite(a).all():
        raise ValueError(f"{path}: {name} holds numbers that are not finite in float32")
    return a


def main():
    parser = argparse.ArgumentParser(
        prog="python -m ministem.convert.folders", description=__doc__.split("\n\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    out = commands.add_parser("export", help="a run -> a folder for other code")
    out.add_argument("run", help="run folder, or one of its step folders")
    out.add_argument("folder", help="the new folder")
    out.add_argument("--to", choices=("lingua", "llama"), default="lingua", help="default: lingua")
    out.add_argument("--shards", type=int, default=1, help="processes that shall train it there (default: 1)")
    out.add_argument("--patch", metavar="FILE", action="append", default=[],
                     help="apply a file of train.py --save-patch first; may be repeated")  # fmt: skip
    into = commands.add_parser("import", help="such a folder -> a run")
    into.add_argument("folder", help="as export makes it, or a checkpoint of official training")
    into.add_argument("run", help="the new run folder")
    args = parser.parse_args()
    with user_errors():
        if args.command == "export":
            if args.shards < 1:
                raise ValueError("--shards must be at least 1")
            run = load_checkpoint(args.run)
            place(run, "ram", like=np.empty(0, "float32"))
            apply_patches(run, args.patch)
            notes = export_run(run, args.folder, args.to, args.shards)
            say("\n".join([f"{args.folder}: {args.to}, from {run.folder} at step {run.step}", *notes]))
            if args.to == "lingua":
                say(f"next: torchrun --nproc-per-node {args.shards} {args.folder}/launch.py CODE train")
        else:
            run = import_run(args.folder, args.run)
            say(f"{args.run}: {run.config}")
            if Path(args.folder, "dump/checkpoints").is_dir():
                say(f"as exported; what was trained from it lies in {args.folder}/dump/checkpoints")
            say(f"next: python sample.py --run {args.run}")


if __name__ == "__main__":
    as_command(main)
