"""Where a training run comes from: a new model, another run's, or its own last checkpoint.

new_run and resumed_run return a Run (checkpoint.py) and its text as token ids. Whatever is wrong with options
and files shows here, before the first step. A run folder belongs to one process at a time (claim).
"""

import json
import math
import os
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..config import Config, init_dense, init_params, shapes
from ..devices import files
from ..knowledge import edit, means, measure, naming
from ..tables import Tables
from ..tokenizer import Tokenizer, train_bpe
from .checkpoint import (
    Damaged,
    Run,
    check_unused,
    check_writable,
    claim,
    copy_of,
    in_memory,
    load_checkpoint,
    place,
    start_run,
    step_folders,
)
from .cli import say
from .options import lasting


def new_run(args, corpus, like):
    """Vocabulary, model, run folder -> Run at step 0, its arrays where `like` and --tables say; the ids of
    the training and of the validation text."""
    if args.out:
        check_unused(Path(args.out))
    check_writable(Path(args.out or "runs"))
    check_patch_file(args)
    base = load_checkpoint(args.init_from) if args.init_from else None
    if base:
        args.init_from = str(base.folder / f"step-{base.step:06d}")  # this very one, even if it trains on
        tokenizer = base.tokenizer
        layers = parse_stem_layers(args.stem_layers, base.config.n_layers)
        config, new = means.with_tables(base.config, layers, args.ffn)
        if new and args.save_patch:
            raise ValueError(f"--save-patch: {args.init_from} lacks the tables whose rows it would change")
        edit.apply_patches(base, args.patch)
    else:
        layers = parse_stem_layers(args.stem_layers, args.layers)
        config = Config(args.vocab_size, args.dim, args.layers, args.heads, args.kv_heads, args.ffn_dim,
                        args.context, layers, args.ffn)  # fmt: skip
        if args.tokenizer == "bpe":
            say("training the tokenizer ...")
            tokenizer = train_bpe(corpus.train, args.vocab_size, corpus.names)
        else:
            tokenizer = Tokenizer.stock(args.tokenizer)
        config = replace(config, vocab_size=tokenizer.n_vocab)
    ids = encode(corpus, tokenizer, config, tile=args.tables_only)
    rows_to_train(args, tokenizer, config, ids[0])  # refused before anything is written
    if base:
        params, tables = base.params, base.tables
        if new and args.tables != "disk":
            arrays = in_memory(tables)
            tables = Tables({n: arrays.get(n, np.zeros(s, "float32")) for n, s in shapes(config)[1].items()})
    elif args.tables == "disk":  # drawn when they are first read
        params, tables = init_dense(config, args.seed), None
    else:
        params, tables = init_params(config, args.seed)
    run = Run(new_folder(args.out, corpus.name), config, lasting(args), tokenizer, params, tables)
    start_run(run)
    if args.save_patch:
        copy_of(base, run.folder / "base")  # the base may train on, and remove this step
    place(run, args.tables, like, args.seed)
    if base and new:
        make_tables(args, run, base.config, new, ids)
    return run, ids


def make_tables(args, run, config, layers, ids):
    """Matrices of these layers of a run, whose model is still as `config` has it, become tables. Tells what
    that does to the loss."""
    limit = 20 * args.batch * config.context
    before = measure.evaluate(replace(run, config=config), ids[1], args.batch, limit)
    seen = means.make_tables(run, config, ids[0], layers, args.batch)
    after = measure.evaluate(run, ids[1], args.batch, limit)
    name, numbers = means.TAKES[run.config.ffn], ",".join(map(str, layers))
    say(f"new tables for layers {numbers}: the mean of what {name} gave for each token, over {len(ids[0]):,}"
        f" tokens ({(seen == 0).sum():,} of {len(seen):,} are not among them: read alone)")  # fmt: skip
    say(f"that takes the validation loss from {before:.4f} to {after:.4f} nats per token")


def resumed_run(args, corpus, like):
    """The newest whole checkpoint of args.resume -> Run, and ids, as new_run."""
    check_patch_file(args)
    steps = step_folders(args.resume) or [args.resume]
    for step in reversed(steps):
        try:
            run = load_checkpoint(step, moments=True)
            break
        except Damaged as error:
            if step == steps[0]:
                raise
            say(f"{error}: going on from that")
    claim(run.folder)
    if run.state.get("corpus") != corpus.hash:
        raise ValueError(f"{args.data} has changed since {args.resume} was trained on it")
    for leftover in run.folder.glob(".*.tmp"):  # of a kill
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    place(run, args.tables, like)
    metrics = run.folder / "metrics.jsonl"
    if metrics.exists():  # later lines will be written again; half a line is what a kill leaves
        lines = [line + "\n" for line in metrics.read_text("utf-8", "replace").splitlines()]
        lines = [line for line in lines if step_of(line) <= run.step]
        files.write(metrics, "".join(lines).encode())
        if lines and step_of(lines[-1]) == run.step:
            run.state["line"] = None  # the step was evaluated, too
    return run, encode(corpus, run.tokenizer, run.config, tile=args.tables_only)


def step_of(line):
    """The step of a line of metrics.jsonl; of a broken line, a step that never comes."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf


def encode(corpus, tokenizer, config, tile=False):
    """-> token ids of the training and of the validation text. tile: a text shorter than a window is tiled;
    then there is no validation tenth (see data.Corpus.whole)."""
    ids = [np.array(tokenizer.encode(text), dtype="int32") for text in (corpus.train, corpus.val)]
    if tile and len(ids[0]):
        ids[0] = np.resize(ids[0], max(len(ids[0]), config.context + 1))
    for name, part, need in zip(("training", "validation"), ids, (config.context + 1, 2), strict=True):
        if len(part) < need:
            why = f"it has {len(part)} tokens and needs {need}"
            if not tile:
                why = (f"its {name} part has {len(part)} tokens and needs {need} (--context {config.context};"
                       " a tenth of the text is for validation)")  # fmt: skip
            raise ValueError(f"{corpus.name} is too short: {why}")
    return ids


def rows_to_train(args, tokenizer, config, train_ids):
    """--rows "Spain,Peru" -> the ids of the names' tokens, whose rows may move. None: all rows may."""
    if args.tables_only and len(shapes(config)[1]) == 1:
        raise ValueError("--tables-only: this model has no tables but the token embedding")
    if not args.rows:
        return None
    spelled = {name.strip(): naming.spelling(tokenizer, name) for name in args.rows.split(",")}
    in_text = set(train_ids.tolist())
    for name, ids in spelled.items():
        if not set(ids) <= in_text:
            raise ValueError(f"--rows: {name!r} is not in {args.data}, so its rows would not move")
    return sorted({id for ids in spelled.values() for id in ids})


def check_patch_file(args):
    """Raises ValueError if --save-patch cannot be written in the end, or would overwrite something else."""
    if not args.save_patch:
        return
    target = Path(args.save_patch)
    if not target.parent.is_dir() or target.is_dir():
        raise ValueError(f"--save-patch {target}: not a file in a folder that is there")
    if target.exists():
        try:
            edit.Patch.load(target)
        except ValueError:
            raise ValueError(f"--save-patch {target}: there is such a file, and it is no patch") from None
    else:
        files.write(target, b"")  # a full disk, a folder that is read-only, a name that is too long
        target.unlink()


def parse_stem_layers(text, n):
    """all, none, 1/2 or 1/3 (every 2nd or 3rd of n layers; the first stays dense, as in the paper), or 1,3"""
    every = {"all": range(n), "none": (), "1/2": range(1, n, 2), "1/3": range(1, n, 3)}
    if text in every:
        return tuple(every[text])
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise ValueError(f"--stem-layers is one of {', '.join(every)}, or numbers like 1,3; got {text!r}")
    return tuple(int(i) for i in text.split(","))


def new_folder(out, corpus_name):
    """--out, or runs/NAME, runs/NAME-2, ...: the first that no other process takes at the same moment."""
    if out:
        return Path(out)
    name = re.sub(r"\W+", "-", Path(corpus_name).stem).strip("-") or "run"
    for i in range(1, 10_000):
        folder = Path("runs", name if i == 1 else f"{name}-{i}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
    raise ValueError(f"runs/{name} to runs/{name}-{i} are all there: use --out")


class StopSignals:
    """Inside: Ctrl-C, SIGTERM or a terminal that is closed asks the loop to stop after its step; a second one
    ends it at once. Signals that are ignored (nohup, a background job) stay ignored."""

    asked = 0

    def __enter__(self):
        names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows
        numbers = [getattr(signal, name) for name in names]
        numbers = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
        self.before = {number: signal.signal(number, self.ask) for number in numbers}
        return self

    def ask(self, number, frame):
        self.asked = number
        try:
            os.write(2, b"\nstopping after this step ...\n")  # not print: that may be what was interrupted
        except OSError:
            pass
        for number in self.before:
            signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)
