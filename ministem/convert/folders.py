"""Runs to and from folders of other code.

    python -m ministem.convert.folders export runs/NAME FOLDER              for the official STEM code
    python -m ministem.convert.folders export runs/NAME FOLDER --to llama   for Hugging Face, dense models
    python -m ministem.convert.folders import FOLDER runs/NEW               from either

The official code keeps weights in .pth files. These are pickles, and take PyTorch to write and to read;
here they are safetensors of the same names in the same places, and pth.py, which needs nothing but
PyTorch and safetensors, turns the one kind into the other where PyTorch is.
"""

import argparse
import os
import shutil
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from ..optim import AdamW
from ..run.checkpoint import (
    Run,
    load_checkpoint,
    place,
    read_json,
    save_arrays,
    save_checkpoint,
    start_run,
    write_json,
)
from ..run.cli import as_command, say, user_errors
from ..tokenizer import Tokenizer
from .lingua import from_lingua, to_lingua
from .llama import from_llama, llama_arguments, llama_config, to_llama

# FOLDER/params.json              the official settings of model, data and precision
#        consolidated/            consolidated.safetensors, consolidated_stem.safetensors, params.json again
#        tokenizer.model          the vocabulary in tiktoken's format, as the official code reads it
#        vocab.tiktoken           the run's own vocabulary file (of a stock one only the name)
BACKBONE, STEM = "consolidated/consolidated.safetensors", "consolidated/consolidated_stem.safetensors"


def official_params(config, tokenizer):
    """-> params.json as a dict. The official code knows no FFN width, only what it is computed from:
    multiple_of * ceil(int(ffn_dim_multiplier * int(8 dim / 3)) / multiple_of), which here is F."""
    F, base = config.ffn_dim, int(2 * 4 * config.dim / 3)
    model = dict(
        dim=config.dim, n_layers=config.n_layers, n_heads=config.n_heads, n_kv_heads=config.n_kv_heads,
        ffn_dim_multiplier=F / base, multiple_of=F, norm_eps=config.norm_eps, rope_theta=config.rope_theta,
        vocab_size=config.vocab_size, max_seqlen=config.context, weight_tying=False,
        stem_layers=[i for i in config.stem_layers if config.ffn == "stem"], stem_embedding_dim=F,
    )  # fmt: skip
    # what its tokenizer class has as constants, and has to be changed there: see the README
    pattern, special = tokenizer.encoding._pat_str, tokenizer.encoding._special_tokens
    return dict(
        model=model, distributed=dict(model_dtype="fp32"),
        data=dict(tokenizer=dict(name="tiktoken", path="tokenizer.model", pattern=pattern, special=special)),
    )  # fmt: skip


def export_run(run, folder, to):
    """Write a Run (run/checkpoint.py) as a folder, whole or not at all. to: "lingua" or "llama"."""
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"{folder} is there already: export to a new folder")
    if not folder.parent.is_dir():
        raise ValueError(f"{folder.parent} is not a folder")
    state = dict(lingua=to_lingua, llama=to_llama)[to](run.params, run.tables, run.config)
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        run.tokenizer.save(temporary / "vocab.tiktoken")
        (temporary / "tokenizer.model").write_bytes(run.tokenizer._lines())
        if to == "llama":
            write_json(temporary / "config.json", llama_config(run.config))
            save_arrays(temporary / "model.safetensors", state)
        else:
            (temporary / "consolidated").mkdir()
            for path in ("params.json", "consolidated/params.json"):
                write_json(temporary / path, official_params(run.config, run.tokenizer))
            stem = {name: state.pop(name) for name in list(state) if name.startswith("stem_embeddings.")}
            save_arrays(temporary / BACKBONE, state)
            save_arrays(temporary / STEM, stem)
        os.rename(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def import_run(folder, out):
    """A folder of either kind -> a new run folder at step 0, to sample from, to edit, to go on from with
    train.py --init-from. Raises ValueError."""
    folder = Path(folder)
    try:
        if (folder / "params.json").exists():
            content = read_json(folder / "params.json")["model"]
            state = read_arrays(folder / BACKBONE)
            if (folder / STEM).exists():
                state |= read_arrays(folder / STEM)
            how = dict(n_heads=content["n_heads"], context=content["max_seqlen"],
                       norm_eps=content["norm_eps"], rope_theta=content["rope_theta"])  # fmt: skip
            params, tables, config = from_lingua(state, **how)
        elif (folder / "config.json").exists():
            how = llama_arguments(read_json(folder / "config.json"))
            params, tables, config = from_llama(read_arrays(folder / "model.safetensors"), **how)
        else:
            raise ValueError(f"{folder} has no params.json (official code) and no config.json (Hugging Face)")
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(f"{folder}: a setting is missing or of the wrong kind ({error})") from None
    vocabulary = folder / "vocab.tiktoken"
    if not vocabulary.exists():
        vocabulary = folder / "tokenizer.model"
    if not vocabulary.exists():
        raise ValueError(f"{folder} has no vocab.tiktoken: put the model's vocabulary there, in that format")
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


def read_arrays(path):
    """A safetensors file -> {name: array in float32}."""
    pth = path.with_suffix(".pth")
    if not path.exists() and pth.exists():
        raise ValueError(f"{pth} is a pickle: python -m ministem.convert.pth --back makes {path.name} of it")
    try:
        arrays = load_file(path)
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
            floats = {name: a.astype("float32", copy=False) for name, a in arrays.items()}
    except FileNotFoundError:
        raise ValueError(f"{path} is missing") from None
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    for name, a in arrays.items():
        if a.dtype.kind != "f" or not np.isfinite(floats[name]).all():
            raise ValueError(f"{path}: {name} holds {a.dtype}, or numbers that are not finite in float32")
    return floats


def main():
    parser = argparse.ArgumentParser(
        prog="python -m ministem.convert.folders", description=__doc__.split("\n\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    out = commands.add_parser("export", help="a run -> a folder for other code")
    out.add_argument("run", help="run folder, or one of its step folders")
    out.add_argument("folder", help="the new folder")
    out.add_argument("--to", choices=("lingua", "llama"), default="lingua", help="default: lingua")
    into = commands.add_parser("import", help="such a folder -> a run")
    into.add_argument("folder", help="as export makes it, or a Hugging Face folder with a vocab.tiktoken")
    into.add_argument("run", help="the new run folder")
    args = parser.parse_args()
    with user_errors():
        if args.command == "export":
            run = load_checkpoint(args.run)
            place(run, "ram", like=np.empty(0, "float32"))
            export_run(run, args.folder, args.to)
            say(f"{args.folder}: {args.to}, from {run.folder} at step {run.step}")
        else:
            run = import_run(args.folder, args.run)
            say(f"{args.run}: {run.config}\nnext: python sample.py --run {args.run}")


if __name__ == "__main__":
    as_command(main)
