"""Weights to and from the official STEM code (built on Meta Lingua): its names, its layouts, its folders.

    python -m ministem.lingua export runs/NAME FOLDER              for the official STEM code
    python -m ministem.lingua export runs/NAME FOLDER --to llama   for Hugging Face, dense models only
    python -m ministem.lingua import FOLDER runs/NEW               from either

Nothing is computed here, every number stays what it was, bit for bit. A torch Linear stores
(out, in) and we store (in, out), so matrices turn over; the official code keeps wq, wk and wv
apart and we keep one wqkv. The tables stand outside lm_transformer and are counted by themselves:
stem_embeddings.0 belongs to the first STEM layer, whichever that is, and a STEM layer is one that
has no w3. Left out: the optimizer's state, and our `gate` and `additive`, which are ours alone.

The official code keeps weights in .pth files. These are pickles, and take PyTorch to write and to read;
here they are safetensors of the same names in the same places, and benchmarks/pth.py, which needs nothing but
PyTorch and safetensors, turns the one kind into the other where PyTorch is.
"""

import argparse
import os
import re
import shutil
from pathlib import Path

import numpy as np

from .model import Config, shapes
from .tables import Tables

REFUSED = "not a STEM model of the official code"
THEIRS = {  # the last word of our name -> what the official code calls it; wqkv is three of theirs
    "embed": ["tok_embeddings"],
    "norm1": ["attention_norm"],
    "wqkv": ["attention.wq", "attention.wk", "attention.wv"],
    "wo": ["attention.wo"],
    "norm2": ["ffn_norm"],
    "w_gate": ["feed_forward.w1"],
    "w_up": ["feed_forward.w3"],
    "w_down": ["feed_forward.w2"],
    "norm": ["norm"],
    "head": ["output"],
}


def layout(config):
    """-> {our name: {official name: shape}}, all that both directions need to know."""
    kv = config.n_kv_heads * config.head_dim
    dense, tables = shapes(config)
    names = {}
    for ours, shape in (tables | dense).items():
        at, _, last = ours.rpartition(".")  # "layers.1", "wqkv"
        if last == "table":
            names[ours] = {f"stem_embeddings.{len(names) - 1}.weight": shape}  # embed came first
            continue
        rows, *columns = shape if last == "embed" else shape[::-1]  # (in,out) -> (out,in)
        cut = [config.dim, kv, kv] if last == "wqkv" else [rows]  # query, key and value heads
        names[ours] = {
            f"lm_transformer.{at}.{theirs}.weight".replace("..", "."): (n, *columns)
            for theirs, n in zip(THEIRS[last], cut, strict=True)
        }
    return names


def is_table(name):
    return name == "embed" or name.endswith(".table")  # tables are (V, ·) on both sides


def matrix(state, name):
    """The three arrays the sizes are read from have to be there before anything can be compared."""
    if name not in state or state[name].ndim != 2:
        raise ValueError(f"{REFUSED}: {name} is missing or no matrix")
    return state[name]


def to_lingua(params, tables, config):
    """-> {official name: array}, contiguous copies ready for torch.from_numpy or safetensors"""
    if config.stem_layers and config.ffn not in ("stem", "dense"):
        raise ValueError(f"the official STEM code has no ffn {config.ffn!r}, only dense and stem")
    state = {}
    for ours, parts in layout(config).items():
        a = tables[ours] if is_table(ours) else params[ours].T
        cuts = np.cumsum([shape[0] for shape in parts.values()])[:-1]
        for name, part in zip(parts, np.split(a, cuts), strict=True):
            state[name] = np.array(part, order="C")
    return state


def from_lingua(state, n_heads, context, norm_eps=1e-5, rope_theta=10000.0):
    """-> params, tables, config.  Shapes say all of the config but these four arguments: a (C,C)
    matrix does not know into how many heads it is cut. Raises ValueError naming what is wrong."""
    state = {name: np.asarray(a) for name, a in state.items()}
    layers = [re.match(r"lm_transformer\.layers\.(\d+)\.", name) for name in state]
    n_layers = 1 + max((int(m[1]) for m in layers if m), default=0)
    if n_layers > 1 + len(state):  # before a list of so many is made
        raise ValueError(f"{REFUSED}: it has {len(state)} arrays, and one for layer {n_layers - 1}")
    V, C = matrix(state, "lm_transformer.tok_embeddings.weight").shape
    kv = len(matrix(state, "lm_transformer.layers.0.attention.wk.weight"))
    F = len(matrix(state, "lm_transformer.layers.0.feed_forward.w1.weight"))
    if C % n_heads:
        raise ValueError(f"width {C} does not divide into {n_heads} heads")
    w3 = "lm_transformer.layers.{}.feed_forward.w3.weight"
    stem_layers = [i for i in range(n_layers) if w3.format(i) not in state]
    sizes = dict(vocab_size=V, dim=C, n_layers=n_layers, n_heads=n_heads, ffn_dim=F)
    sizes["n_kv_heads"] = max(1, kv // (C // n_heads))
    how = dict(context=context, norm_eps=norm_eps, rope_theta=rope_theta)
    config = Config(**sizes, **how, stem_layers=stem_layers)

    names = layout(config)
    expected = {name: shape for parts in names.values() for name, shape in parts.items()}
    wrong = [f"missing {name}" for name in expected if name not in state]
    for name, a in state.items():
        if name not in expected:
            wrong.append(f"unexpected {name}")
        elif a.shape != expected[name]:
            wrong.append(f"{name} is {a.shape}, expected {expected[name]}")
    if wrong:
        raise ValueError(f"{REFUSED}: " + "; ".join(wrong))

    arrays = {ours: np.concatenate([state[n] for n in parts]) for ours, parts in names.items()}
    params = {name: np.array(a.T, order="C") for name, a in arrays.items() if not is_table(name)}
    tables = Tables({name: a for name, a in arrays.items() if is_table(name)})
    return params, tables, config


# ----------------------------------------------------------------------------------------- folders

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
    """Write a Run (checkpoint.py) as a folder, whole or not at all. to: "lingua" or "llama"."""
    from .checkpoint import save_arrays, write_json
    from .llama import llama_config, to_llama

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
    from .checkpoint import Run, read_json, save_checkpoint, start_run
    from .llama import from_llama, llama_arguments
    from .optim import AdamW
    from .tokenizer import Tokenizer

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
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    pth = path.with_suffix(".pth")
    if not path.exists() and pth.exists():
        raise ValueError(f"{pth} is a pickle: python benchmarks/pth.py --back makes {path.name} of it")
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
    from . import backend, checkpoint
    from .cli import say, user_errors

    parser = argparse.ArgumentParser(prog="python -m ministem.lingua", description=__doc__.split("\n\n")[0])
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
            run = checkpoint.load_checkpoint(args.run, backend.device_array("cpu"), in_ram=True)
            export_run(run, args.folder, args.to)
            say(f"{args.folder}: {args.to}, from {run.folder} at step {run.step}")
        else:
            run = import_run(args.folder, args.run)
            say(f"{args.run}: {run.config}\nnext: python sample.py --run {args.run}")


if __name__ == "__main__":
    from .cli import as_command

    as_command(main)
