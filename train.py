"""Train a model: read from the top to see a whole run.

    python train.py                          the atlas, a small world of facts: a bit over a minute
    python train.py --data input.txt         any text file in UTF-8
    python train.py --resume runs/atlas      go on with a run that was stopped
    python train.py --init-from runs/atlas --tables-only --data new_facts.txt --save-patch patch.safetensors
                                             teach a trained model more, by changing table rows alone

Progress goes to stderr, what the model learned to stdout, everything to keep to a folder in runs/.
"""

import argparse
import contextlib
import json
import math
import os
import re
import signal
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from ministem.run.cli import as_command, fail, say, uninterrupted, user_errors

DEFAULTS = dict(
    data="atlas", out=None, tokenizer="bpe", vocab_size=2048, seed=0,
    dim=128, layers=4, heads=4, kv_heads=None, ffn_dim=None, context=64, stem_layers="all", ffn="stem",
    steps=1200, batch=16, lr=3e-3, warmup=50, weight_decay=0.1, table_lr=2.0, clip=1.0,
    eval_every=200, device="cpu", tf32=False, tables="ram", threads=None, resume=None,
    init_from=None, tables_only=False, rows=None, save_patch=None,
)  # fmt: skip

# what --init-from takes over from the run it starts from
SHAPE = "tokenizer vocab_size dim layers heads kv_heads ffn_dim context stem_layers ffn".split()


def main():
    with user_errors():  # whatever is wrong with flags and files shows here, in one line, before any work
        args = parse_arguments()
        if args.tables == "disk" and args.device == "gpu":
            raise ValueError("--tables disk is for --device cpu")
        if args.device == "cpu" and not args.resume:
            for flag in ["--tf32"] * args.tf32 + ["--tables host"] * (args.tables == "host"):
                raise ValueError(f"{flag} is for --device gpu")

        with uninterrupted():  # numpy and the library only now: --help should not wait for them
            import numpy.random  # noqa: F401

            from ministem import backend, data

        like = backend.device_array(args.device, args.tf32)  # stands for the device: arrays are made like it
        corpus = data.load_corpus(args.data, args.seed)
        if args.tables_only and not corpus.questions:  # a tenth for validation would be facts left untaught
            corpus = replace(corpus, train=corpus.train + corpus.val, val=corpus.train + corpus.val)
        base = patch_base(args) if args.save_patch else None
        run = resumed_run(args, corpus, like) if args.resume else new_run(args, corpus, like)

    with user_errors(MemoryError, OSError):  # OSError: tables on a disk that is full
        train(args, run, corpus, like)
    with user_errors():
        if base:
            save_patch(args, base, run)
        show_recall(run, corpus) if corpus.questions else show_sample(run, corpus, args.seed)


def new_run(args, corpus, like):
    """Vocabulary, model, run folder -> Run at step 0."""
    from ministem import backend
    from ministem.config import Config, init_dense, init_params
    from ministem.run import checkpoint
    from ministem.tokenizer import Tokenizer, train_bpe

    folder = Path(args.out) if args.out else unused_folder(corpus.name)
    checkpoint.check_unused(folder)
    in_ram, base, host = args.tables != "disk", None, backend.device_array("cpu")
    if args.init_from:
        base = checkpoint.load_checkpoint(args.init_from, host, in_ram=in_ram)
    config = base.config if base else Config(
        args.vocab_size, args.dim, args.layers, args.heads, args.kv_heads, args.ffn_dim, args.context,
        parse_stem_layers(args.stem_layers, args.layers), args.ffn,
    )  # fmt: skip
    if base:
        args.init_from = str(base.folder / f"step-{base.step:06d}")  # this very one, even if it trains on
        tokenizer = base.tokenizer
    elif args.tokenizer == "bpe":
        say("training the tokenizer ...")
        tokenizer = train_bpe(corpus.train, args.vocab_size, corpus.names)
    else:
        tokenizer = Tokenizer.stock(args.tokenizer)
    config = replace(config, vocab_size=tokenizer.n_vocab)
    # too short a text is refused before anything is written, and rows that it does not have
    train_ids, _ = encode(corpus, tokenizer, config, args.tables_only)
    trainable_rows(args, tokenizer, config, train_ids)
    if base:
        params, tables = base.params, base.tables
    else:
        params, tables = init_params(config, args.seed) if in_ram else (init_dense(config, args.seed), None)
    params = {name: backend.upload(p, like) for name, p in params.items()}
    if in_ram:
        tables = placed(args, tables, like)
    run = checkpoint.Run(folder, config, lasting(args), tokenizer, params, tables)
    checkpoint.start_run(run)
    if not in_ram:
        checkpoint.put_on_disk(run, args.seed)
    return run


def placed(args, tables, like):
    """Tables on the host -> where --tables wants them: with the model, or in the host's memory for a GPU."""
    from ministem import backend
    from ministem.devices.host import HostTables
    from ministem.tables import Tables

    if args.tables == "host" and args.device == "gpu":
        return HostTables(tables.arrays)
    return Tables({name: backend.upload(tables[name], like) for name in tables.names})


def lasting(args):
    """The options to keep in config.json: files by their whole path, so that --resume finds them from any
    folder."""
    paths = {name: getattr(args, name) for name in ("data", "init_from", "save_patch")}
    return vars(args) | {name: os.path.abspath(p) for name, p in paths.items() if p not in (None, "atlas")}


def resumed_run(args, corpus, like):
    """The newest whole checkpoint of args.resume -> Run, its metrics.jsonl cut back to that step."""
    from ministem import backend
    from ministem.devices import files
    from ministem.run import checkpoint

    in_ram, host = args.tables != "disk", backend.device_array("cpu") if args.tables == "host" else None
    steps = checkpoint.step_folders(args.resume) or [args.resume]
    for step in reversed(steps):
        try:
            run = checkpoint.load_checkpoint(step, like, True, in_ram, tables_like=host)
            break
        except checkpoint.Damaged as error:
            if step == steps[0]:
                raise
            say(f"{error}: going on from that")
    if in_ram:
        run.tables = placed(args, run.tables, like)
    if run.state.get("corpus") != corpus.hash:
        raise ValueError(f"{args.data} has changed since {args.resume} was trained on it")
    if args.tables == "disk":
        checkpoint.put_on_disk(run)
    metrics = run.folder / "metrics.jsonl"
    if metrics.exists():  # later lines will be written again; half a line is what a kill leaves
        lines = [line + "\n" for line in metrics.read_text("utf-8", "replace").splitlines()]
        files.write(metrics, "".join(line for line in lines if step_of(line) <= run.step).encode())
    return run


def step_of(line):
    """The step of a line of metrics.jsonl; of a broken line, a step that never comes."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        return math.inf


def encode(corpus, tokenizer, config, repeat=False):
    """-> token ids of the training and of the validation text. repeat: a short text starts again."""
    import numpy as np

    ids = [np.array(tokenizer.encode(text), dtype="int32") for text in (corpus.train, corpus.val)]
    if repeat and len(ids[0]):
        ids[0] = np.resize(ids[0], max(len(ids[0]), config.context + 1))
    for name, part, need in zip(("training", "validation"), ids, (config.context + 1, 2), strict=True):
        if len(part) < need:
            raise ValueError(
                f"{corpus.name} is too short: its {name} part has {len(part)} tokens and needs {need}"
                f" (--context {config.context}; a tenth of the text is for validation)"
            )
    return ids


def train(args, run, corpus, like):
    """The training loop, from run.step to args.steps."""
    import numpy as np

    from ministem import backend, data
    from ministem.devices import files
    from ministem.knowledge import edit, measure
    from ministem.model import loss_and_grads
    from ministem.optim import AdamW, cosine_schedule
    from ministem.run import checkpoint

    config, params, tables = run.config, run.params, run.tables
    # a GPU takes a batch whole: there is one of it
    threads = 1 if args.device == "gpu" else args.threads or backend.available_cores()
    train_ids, val_ids = encode(corpus, run.tokenizer, config, args.tables_only)
    trainable = trainable_rows(args, run.tokenizer, config, train_ids)
    bytes_per_token = len(corpus.val.encode()) / len(val_ids)
    describe(args, run, corpus, train_ids, val_ids, threads)
    backend.keep_freed_memory()

    optimizer = AdamW(args.lr, weight_decay=args.weight_decay, table_lr=args.table_lr, clip=args.clip,
                      threads=threads)  # fmt: skip
    optimizer.start(params, tables)
    saved = run.step if run.moments else None  # the last step of which there is a checkpoint
    if run.moments:
        optimizer.load(run.moments, run.step, run.table_moments)
        run.moments, run.table_moments = None, ()
    draw = partial(data.draw_batch, train_ids, args.batch, config.context, args.seed)
    losses, unread = run.state.get("losses", []), []  # since the last log line; and those not looked at yet
    since = time.perf_counter(), run.step

    def read_losses():
        """Wait for the device, and look: a GPU computes behind our back, so that a step that blew up there is
        noticed here, when its loss is wanted. Nothing is saved in between."""
        if unread:
            numbers = backend.download(np.stack(unread)).reshape(-1, 2)  # loss and norm of each step
            losses.extend(numbers[:, 0].tolist())
            finite = np.isfinite(numbers).all(1)
            if not finite.all():
                first = finite.argmin()
                loss, norm, step = *numbers[first], run.step - len(finite) + 1 + first
                blown_up(f"the loss is {loss} and its gradient's norm {norm} at step {step}")
        unread.clear()
        return losses

    def save():
        run.state = dict(corpus=corpus.hash, losses=read_losses())
        try:
            with user_errors():
                checkpoint.save_checkpoint(run, optimizer)
        except FloatingPointError as error:
            blown_up(f"{error} after step {run.step}")

    def blown_up(what):
        last = (checkpoint.step_folders(run.folder) or ["there is none"])[-1]
        fail(f"{what}: not kept. Lower --lr (or --table-lr). The last good checkpoint: {last}")

    quiet = np.errstate(all="ignore")  # numbers that are not finite are looked for, below
    bar, blas = progress_bar(args.steps, run.step), backend.blas_threads(threads)
    with StopSignals() as stop, bar as bar, blas, quiet:
        while run.step < args.steps and not stop.asked:
            optimizer.lr = cosine_schedule(run.step + 1, args.steps, args.lr, args.warmup)
            ids, targets = draw(run.step)
            batch = tables.fetch(ids, targets)
            loss, grads = loss_and_grads(params, config, batch, batch.targets, threads)
            tables.prefetch(*draw(run.step + 1))
            if args.tables_only:
                grads = edit.only_tables(grads, trainable)
            try:
                unread += [loss, optimizer.step(params, tables, grads)]
            except FloatingPointError as error:
                blown_up(error)
            run.step += 1
            bar.update()

            if run.step % args.eval_every == 0 or run.step == args.steps:
                losses = read_losses()
                seconds, steps = time.perf_counter() - since[0], run.step - since[1]
                limit = None if run.step == args.steps else 20 * ids.size
                val_loss = measure.evaluate(run, val_ids, args.batch, limit)
                train_loss = sum(losses) / len(losses)
                if not math.isfinite(train_loss + val_loss):
                    blown_up(f"at step {run.step} the loss is {train_loss}, for validation {val_loss}")
                metrics = dict(
                    step=run.step, train_loss=train_loss, val_loss=val_loss,
                    val_nats_per_byte=val_loss / bytes_per_token, lr=optimizer.lr, rows=len(batch.rows),
                    tokens_per_s=round(steps * ids.size / seconds),
                )  # fmt: skip
                bar.log(
                    "step {step:5d} | train {train_loss:.4f} | val {val_loss:.4f} ({val_nats_per_byte:.3f}"
                    " nats/byte) | lr {lr:.1e} | rows {rows}/{V} | {tokens_per_s:,} tokens/s".format(
                        V=config.vocab_size, **metrics
                    )
                )
                log = run.folder / "metrics.jsonl"
                with user_errors(), files.named(log), open(log, "a", encoding="utf-8") as file:
                    file.write(json.dumps(metrics) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                losses, saved = [], run.step
                save()
                since = time.perf_counter(), run.step
    if run.step < args.steps:
        if run.step != saved:
            save()
        say(f"stopped and saved at step {run.step}. To go on: python train.py --resume {run.folder}")
        sys.exit(128 + stop.asked)


def trainable_rows(args, tokenizer, config, train_ids):
    """--rows "Spain,Peru" -> the ids of the names' tokens, whose rows may move. None: all rows may."""
    from ministem.config import shapes
    from ministem.knowledge import edit

    if args.tables_only and len(shapes(config)[1]) == 1:
        raise ValueError("--tables-only: this model has no tables but the token embedding")
    if not args.rows:
        return None
    spelled = {name.strip(): edit.spelling(tokenizer, name) for name in args.rows.split(",")}
    for name, ids in spelled.items():
        if not set(ids) <= set(train_ids.tolist()):
            raise ValueError(f"--rows: {name!r} is not in {args.data}, so its rows would not move")
    return sorted({id for ids in spelled.values() for id in ids})


def patch_base(args):
    """What --save-patch will compare with -> Run. A refusal after the training would come late."""
    from ministem import backend
    from ministem.devices import files
    from ministem.run import checkpoint

    target = Path(args.save_patch)
    if not target.parent.is_dir() or target.is_dir():
        raise ValueError(f"--save-patch {target}: not a file in a folder that is there")
    if not target.exists():
        files.write(target, b"")  # a full disk, a folder that is read-only, a name that is too long
        target.unlink()
    return checkpoint.load_checkpoint(args.init_from, backend.device_array("cpu"))


def save_patch(args, base, run):
    """The rows that the training has moved, to a file."""
    from ministem.knowledge.edit import Patch, fingerprint

    patch = Patch.between(base.tables, run.tables, **fingerprint(base))
    patch.save(args.save_patch)
    tokens, size = len(patch.describe(run.tokenizer)), Path(args.save_patch).stat().st_size
    say(f"patch      {args.save_patch}: {size:,} bytes, rows of {tokens} tokens, {len(patch.changes)} tables")
    say(f"next: python sample.py --run {base.folder} --patch {args.save_patch} --prompt ...")


def parse_arguments():
    """-> all options: defaults and what was given; of a resumed run its own."""
    parser = argparse.ArgumentParser(
        description="Train a STEM transformer in NumPy. Without options: the atlas, a bit over a minute.",
        argument_default=argparse.SUPPRESS, usage="%(prog)s [options]  (--help lists them)",
    )  # fmt: skip

    def option(name, help, type=str, **more):
        default = f" (default: {DEFAULTS[name]})" if DEFAULTS[name] is not None else ""
        group.add_argument("--" + name.replace("_", "-"), help=help + default, type=type, **more)

    group = parser.add_argument_group("what to train on")
    option("data", "a text file in UTF-8, or: atlas")
    option("tokenizer", "bpe (trained on the data), or a stock one: gpt2, cl100k_base, o200k_base")
    option("vocab_size", "tokens of a bpe vocabulary, at least 257", whole(257))
    group = parser.add_argument_group("the model")
    option("dim", "model width", whole(1))
    option("layers", "number of layers", whole(1))
    option("heads", "query heads", whole(1))
    option("kv_heads", "key/value heads (default: as many as query heads)", whole(1))
    option("ffn_dim", "FFN width (default: 3 x dim)", whole(1))
    option("context", "longest text, in tokens", whole(1))
    option("stem_layers", "which layers have a table: all, 1/2, 1/3, none, or numbers from 0: 1,3")
    option("ffn", "what those layers are", choices=("stem", "gate", "additive", "dense"))
    group = parser.add_argument_group("training")
    option("steps", "number of steps", whole(1))
    option("batch", "texts per step", whole(1))
    option("lr", "highest learning rate", number(0, exclusive=True))
    option("warmup", "steps until the rate is highest", whole(0))
    option("weight_decay", "pull of matrices towards 0", number(0))
    option("table_lr", "tables learn at this times --lr", number(0))
    option("clip", "largest gradient norm, 0: no limit", number(0))
    option("seed", "for weights, batches and the atlas", whole(0))
    option("eval_every", "steps between evaluations, each followed by a checkpoint", whole(1))
    group = parser.add_argument_group("the run")
    option("out", "run folder (default: runs/ and the data's name)")
    option("resume", "run folder to go on with, as set up (--device, --tf32, --tables, --threads may differ,"
           " and --data if the text is elsewhere now)")  # fmt: skip
    option("init_from", "run folder to start from: its weights, vocabulary and shape, on --data")
    group.add_argument("--tables-only", help="with --init-from: only STEM tables learn", action="store_true")
    option("rows", "with --tables-only: only the rows of these names, like Spain,Peru")
    option("save_patch", "with --tables-only: file for the rows that moved, see sample.py --patch")
    option("device", "cpu or gpu", choices=("cpu", "gpu"))
    group.add_argument("--tf32", help="with --device gpu: faster products, of 10 bits", action="store_true")
    option("tables", "where they live, with their moments: ram, disk for those that do not fit, or with "
           "--device gpu in the host's memory", choices=("ram", "disk", "host"))  # fmt: skip
    option("threads", "on a CPU, parts that a batch is split into, a core for each (default: all)", whole(1))
    given = vars(parser.parse_args())

    def refuse(name, why, *more):
        raise ValueError(f"--{name.replace('_', '-')}" + why.format(*more))

    if "resume" in given:
        for name in given:
            if name not in ("resume", "data", "device", "tf32", "tables", "threads"):
                refuse(name, " cannot change: --resume goes on with the run's own settings; leave it out")
        args = argparse.Namespace(**DEFAULTS | saved_settings(parser, Path(given["resume"])) | given)
        if args.data != "atlas" and not os.path.exists(args.data):
            raise ValueError(f"{args.data}, which {args.resume} was trained on, is gone: say --data FILE")
        for name in ("tf32", "tables"):  # asked for now; what a run had on a GPU is let go
            if args.device == "cpu" and given.get(name) in (True, "host"):
                refuse(name, " is for --device gpu" if name == "tf32" else " host is for --device gpu")
        return args
    for name, needs in dict(tables_only="init_from", rows="tables_only", save_patch="tables_only").items():
        if name in given and needs not in given:
            refuse(name, " is for use with --{}", needs.replace("_", "-"))
    shape = {}
    if "init_from" in given:
        folder = Path(given["init_from"])
        folder = folder.parent if folder.name.startswith("step-") else folder
        its_own = DEFAULTS | saved_settings(parser, folder)
        shape = {name: its_own[name] for name in (*SHAPE, "tables")}
        shape["tables"] = shape["tables"].replace("host", "ram")  # of a GPU that may not be here
        for name in SHAPE:
            if given.get(name, shape[name]) != shape[name]:
                refuse(name, " {}: {} has {}, and --init-from keeps it", given[name], folder, shape[name])
    return argparse.Namespace(**DEFAULTS | shape | given)


def saved_settings(parser, folder):
    """The settings in a run's config.json, read as if they had been typed: nonsense is refused alike."""
    from ministem.run.checkpoint import read_json

    path = folder / "config.json"
    settings = read_json(path).get("settings")
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is damaged: it has no settings")
    parser.prog = str(path)  # an error is about what stands in there
    flags = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if value is not None and value is not False:  # 0 is a value
            flags.append(flag if value is True else f"{flag}={value}")
    return vars(parser.parse_args(flags))


def whole(least):
    """An argparse type: a whole number >= least."""

    def parse(text):
        if not re.fullmatch(r"[+-]?\d{1,15}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number >= {least}, got {text!r}")
        return int(text)

    return parse


def number(least, exclusive=False):
    """An argparse type: a finite number >= least (or > least)."""

    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (least < value < float("inf") or (value == least and not exclusive)):
            sign = ">" if exclusive else ">="
            raise argparse.ArgumentTypeError(f"must be a number {sign} {least}, got {text!r}")
        return value

    return parse


def parse_stem_layers(text, n):
    """all, none, 1/2 or 1/3 (every 2nd or 3rd of n layers; the first stays dense, as in the paper), or 1,3"""
    every = {"all": range(n), "none": (), "1/2": range(1, n, 2), "1/3": range(1, n, 3)}
    if text in every:
        return tuple(every[text])
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise ValueError(f"--stem-layers is one of {', '.join(every)}, or numbers like 1,3; got {text!r}")
    return tuple(int(i) for i in text.split(","))


def unused_folder(corpus_name):
    """runs/NAME, or runs/NAME-2, -3, ... if there is one already."""
    name = re.sub(r"\W+", "-", Path(corpus_name).stem).strip("-") or "run"
    candidates = [Path("runs", name)] + [Path("runs", f"{name}-{i}") for i in range(2, 1000)]
    return next(path for path in candidates if not path.exists())


def describe(args, run, corpus, train_ids, val_ids, threads):
    """What is about to happen, in numbers."""
    from ministem.knowledge import measure

    config = run.config
    n, dense = measure.count(config), measure.count(replace(config, stem_layers=()))
    heads = f"{config.n_heads} heads ({config.n_kv_heads} key/value)"
    layers = ",".join(map(str, config.stem_layers)) or "none"
    say(f"run        {run.folder}: {args.steps} steps of {args.batch} x {config.context} tokens")
    say(f"data       {corpus.name}: {len(train_ids):,} training tokens, {len(val_ids):,} for validation")
    say(f"model      {config.n_layers} layers of width {config.dim}, FFN {config.ffn_dim}, "
        f"{heads}, {config.vocab_size} tokens")
    say(f"tables     {config.ffn} in layers {layers}")
    say(f"parameters {n.total:,} in total, {n.active:,} active per token")
    say(f"compute    {n.flops / 1e6:.2f} MFLOP per token, forward "
        f"({n.flops / dense.flops - 1:+.0%} against dense FFNs)")
    kept, on_disk = n.train_bytes, ""
    if args.tables == "disk":
        kept += 3 * config.vocab_size * len(run.tables.names) - n.table_bytes  # a byte says if a row is there
        on_disk = f"; on disk tables and their moments, up to {n.table_bytes / 2**20:,.0f} MiB"
    say(f"memory     {kept / 2**20:,.0f} MiB of weights, moments and gradients; and activations{on_disk}")
    say(f"training   lr {args.lr} (tables x {args.table_lr}), warm-up {args.warmup}, decay "
        f"{args.weight_decay}, clip {args.clip}, seed {args.seed}, {args.device}, threads {threads}")


class StopSignals:
    """Inside: Ctrl-C, SIGTERM or a terminal that is closed asks the loop to stop after its step; a second one
    ends it at once. (Under nohup, a closed terminal is ignored.)"""

    asked = 0

    def __enter__(self):
        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # Windows; nohup
            numbers.append(signal.SIGHUP)
        self.before = {number: signal.signal(number, self.ask) for number in numbers}
        return self

    def ask(self, number, frame):
        self.asked = number
        with contextlib.suppress(OSError):  # not print: that may be what was interrupted
            os.write(2, b"\nstopping after this step ...\n")
        for number in self.before:
            signal.signal(number, signal.SIG_DFL)

    def __exit__(self, *error):
        for number, handler in self.before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def progress_bar(steps, done):
    """tqdm on a terminal; when piped, only the log lines."""
    from tqdm import tqdm

    silent = not sys.stderr.isatty()
    with tqdm(total=steps, initial=done, disable=silent, unit="step", leave=False) as bar:
        bar.log = lambda line: say(line) if bar.disable else tqdm.write(line, file=sys.stderr)
        yield bar


def show_recall(run, corpus):
    """Ask every withheld sentence, print the share of right answers and a few of them in full."""
    from ministem.knowledge import measure

    shares, right = measure.recall(run, corpus.questions)
    print(f"\nrecall on {len(right)} sentences that were withheld from training:")
    for relation, share in {**shares, "all": sum(right) / len(right)}.items():
        print(f"  {relation:10s} {share:8.2%}")
    print()
    wrong = [q for q, ok in zip(corpus.questions, right, strict=True) if not ok]
    for q in [*corpus.questions[:: len(right) // 6 + 1], *wrong[:3]]:
        said = measure.answer(run, q.prompt)
        print(f"  {q.prompt} ... {said}" + ("" if said == q.answer else f"   (should be: {q.answer})"))
    print(f'\nnext: python sample.py --run {run.folder} --prompt "The capital of Spain is" --temperature 0'
          ' --edit "Spain=Germany"')


def show_sample(run, corpus, seed):
    """Print some text of the model's own, after the first line of the validation text."""
    from ministem.generate import generate

    prompt = corpus.val[: corpus.val.find("\n") + 1][:200] or corpus.val[:20]
    ids = run.tokenizer.encode(prompt)
    new = generate(run.params, run.tables, run.config, ids, 300, temperature=0.8, seed=seed)
    print("\n" + prompt + run.tokenizer.decode(list(new)))
    print(f"\nnext: python sample.py --run {run.folder}")


if __name__ == "__main__":
    as_command(main)
