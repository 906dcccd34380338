"""Train a model: read from the top to see a whole run.

    python train.py                          the atlas, a small world of facts: about a minute and a half
    python train.py --data input.txt         any text file in UTF-8
    python train.py --resume runs/atlas      go on with a run that was stopped

Progress goes to stderr, what the model learned to stdout, everything to keep to a folder in runs/.
"""

import argparse
import contextlib
import json
import re
import signal
import sys
import time
from pathlib import Path

from ministem.cli import fail, say, user_errors

DEFAULTS = dict(
    data="atlas", out=None, tokenizer="bpe", vocab_size=1024, seed=0,
    dim=128, layers=4, heads=4, kv_heads=None, ffn_dim=None, context=64, stem_layers="all", ffn="stem",
    steps=600, batch=32, lr=3e-3, warmup=50, weight_decay=0.1, table_lr=1.0, clip=1.0,
    eval_every=100, device="cpu", threads=None, resume=None,
)  # fmt: skip


def main():
    with user_errors():
        given = parse_arguments()
        args = argparse.Namespace(**resume_settings(given))

    # numpy and the library after --help, which should not wait for them
    import numpy as np

    from ministem import backend, checkpoint, data, measure
    from ministem.model import Config, init_params, loss_and_grads
    from ministem.optim import AdamW, cosine_schedule
    from ministem.tokenizer import Tokenizer, train_bpe

    # ---- device, text, vocabulary, model: whatever is wrong with the input shows here, in one line
    with user_errors():
        like = backend.device_array(args.device)
        threads = args.threads or backend.available_cores()
        corpus = data.load_corpus(args.data, args.seed)
        run = Path(args.resume or args.out or unused_run_name(corpus.name))
        if args.resume:
            saved = checkpoint.load_checkpoint(run, like, with_moments=True)
            if saved.state["corpus"] != corpus.hash:
                raise ValueError(
                    f"{args.data} is not the text that {run} was trained on; it has changed since"
                )
            config, tokenizer, params, tables = (
                saved.config,
                saved.tokenizer,
                saved.params,
                saved.tables,
            )
        else:
            if args.tokenizer == "bpe":
                say("training the tokenizer ...")
                tokenizer = train_bpe(corpus.train, args.vocab_size, corpus.names)
            else:
                tokenizer = Tokenizer.stock(args.tokenizer)
            config = Config(
                tokenizer.n_vocab, args.dim, args.layers, args.heads, args.kv_heads, args.ffn_dim, args.context,
                parse_stem_layers(args.stem_layers, args.layers), args.ffn,
            )  # fmt: skip
            params, tables = init_params(config, args.seed)
        train_ids = np.array(tokenizer.encode(corpus.train), dtype="int32")
        val_ids = np.array(tokenizer.encode(corpus.val), dtype="int32")
        for name, ids in (("training", train_ids), ("validation", val_ids)):
            need = config.context + 1 if name == "training" else 2
            if len(ids) < need:
                raise ValueError(
                    f"the {name} part of {args.data} has {len(ids)} tokens and needs at least {need}"
                    + (f" (--context {config.context} and one more)" if need > 2 else "")
                )
        if not args.resume:
            checkpoint.start_run(run, config, vars(args), tokenizer)

    bytes_per_token = len(corpus.val.encode()) / len(val_ids)
    optimizer = AdamW(
        args.lr,
        weight_decay=args.weight_decay,
        table_lr=args.table_lr,
        clip=args.clip,
        threads=threads,
    )
    step, loss_sum, loss_n = 0, 0.0, 0
    if args.resume:
        optimizer.start(params, tables)
        optimizer.load(saved.moments, saved.step)
        step, loss_sum, loss_n = saved.step, saved.state["loss_sum"], saved.state["loss_n"]
        keep_metrics(run, step)
        del saved
    backend.keep_freed_memory()
    describe(args, config, corpus, train_ids, val_ids, threads, run)

    def save():
        state = dict(corpus=corpus.hash, loss_sum=loss_sum, loss_n=loss_n, threads=threads)
        with user_errors():
            checkpoint.save_checkpoint(run, step, params, tables, optimizer, state)

    # ---- the training loop
    stop = StopSignals()
    since, since_step = time.perf_counter(), step
    with progress_bar(args.steps, step) as bar, backend.blas_threads(threads):
        while step < args.steps and not stop.asked:
            optimizer.lr = cosine_schedule(step + 1, args.steps, args.lr, args.warmup)
            inputs, targets = data.draw_batch(
                train_ids, args.batch, config.context, args.seed, step
            )
            batch = tables.fetch(inputs)
            loss, grads = loss_and_grads(
                params, config, batch, backend.upload(targets, like), threads
            )
            try:
                optimizer.step(params, tables, grads)
            except FloatingPointError as error:
                last = (checkpoint.step_folders(run) or ["none yet"])[-1]
                fail(
                    f"{error}: stopped before using it. Last good checkpoint: {last}. Lower --lr or --table-lr"
                )
            step, loss_sum, loss_n = step + 1, loss_sum + float(loss), loss_n + 1
            bar.update()
            if step % args.eval_every == 0 or step == args.steps:
                seconds = time.perf_counter() - since
                limit = None if step == args.steps else 20 * args.batch * config.context
                val_loss, _ = measure.evaluate(params, tables, config, val_ids, args.batch, limit)
                metrics = dict(
                    step=step, train_loss=loss_sum / loss_n, val_loss=val_loss,
                    val_nats_per_byte=val_loss / bytes_per_token, lr=optimizer.lr, rows=len(batch.rows),
                )  # fmt: skip
                speed = (step - since_step) * inputs.size / seconds
                bar.log(
                    f"step {step:5d} | train {metrics['train_loss']:.4f} | val {val_loss:.4f}"
                    f" ({metrics['val_nats_per_byte']:.3f} nats/byte) | lr {optimizer.lr:.1e}"
                    f" | rows {len(batch.rows)}/{config.vocab_size} | {speed:,.0f} tokens/s"
                )
                with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(metrics | {"tokens_per_s": round(speed)}) + "\n")
                loss_sum, loss_n = 0.0, 0
                save()
                since, since_step = time.perf_counter(), step
    if stop.asked and step < args.steps:
        save()
        say(
            f"stopped and saved at step {step} of {args.steps}. To go on: python train.py --resume {run}"
        )
        sys.exit(128 + stop.asked)

    # ---- what it learned
    with user_errors():
        if corpus.questions:
            show_recall(params, tables, config, tokenizer, corpus, run)
        else:
            show_sample(params, tables, config, tokenizer, corpus, run, args.seed)


def parse_arguments():
    """-> the options that were given, and only those."""
    parser = argparse.ArgumentParser(
        description="Train a STEM transformer in NumPy. With no options: the atlas, about a minute and a half.",
        argument_default=argparse.SUPPRESS,
    )

    def option(group, name, help, type=str, **more):
        default = DEFAULTS[name]
        shown = f" (default: {default})" if default is not None else ""
        group.add_argument("--" + name.replace("_", "-"), help=help + shown, type=type, **more)

    g = parser.add_argument_group("what to train on")
    option(g, "data", "a text file in UTF-8, or: atlas")
    option(
        g, "tokenizer", "bpe (trained on the data), or a stock one: gpt2, cl100k_base, o200k_base"
    )
    option(g, "vocab_size", "tokens of a bpe vocabulary, at least 257", whole(257))
    g = parser.add_argument_group("the model")
    option(g, "dim", "model width", whole(1))
    option(g, "layers", "number of layers", whole(1))
    option(g, "heads", "query heads", whole(1))
    option(g, "kv_heads", "key/value heads (default: as many as query heads)", whole(1))
    option(g, "ffn_dim", "FFN width (default: 3 x dim)", whole(1))
    option(g, "context", "longest text, in tokens", whole(1))
    option(
        g, "stem_layers", "which layers have a table: all, 1/2, 1/3, none, or numbers from 0: 1,3"
    )
    option(g, "ffn", "what those layers are", choices=("stem", "gate", "additive", "dense"))
    g = parser.add_argument_group("training")
    option(g, "steps", "number of steps", whole(1))
    option(g, "batch", "texts per step", whole(1))
    option(g, "lr", "highest learning rate", number(0, exclusive=True))
    option(g, "warmup", "steps until the rate is highest", whole(0))
    option(g, "weight_decay", "pull of matrices towards 0", number(0))
    option(g, "table_lr", "tables learn at this times --lr", number(0))
    option(g, "clip", "largest gradient norm, 0: no limit", number(0))
    option(g, "seed", "for weights, batches and the atlas", whole(0))
    option(g, "eval_every", "steps between evaluations, each followed by a checkpoint", whole(1))
    g = parser.add_argument_group("the run")
    option(g, "out", "run folder (default: runs/ and the data's name)")
    option(
        g,
        "resume",
        "run folder to go on with; its settings apply, only --device and --threads may be given",
    )
    option(g, "device", "cpu or gpu", choices=("cpu", "gpu"))
    option(
        g,
        "threads",
        "parts that a batch is split into, one core each (default: all cores)",
        whole(1),
    )
    return vars(parser.parse_args())


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


def resume_settings(given):
    """The options of this run: defaults and what was given, or those of the run that is resumed."""
    if "resume" not in given:
        return DEFAULTS | given
    from ministem.checkpoint import read_json

    settings = read_json(Path(given["resume"]) / "config.json").get("settings", {})
    for name in given.keys() - {"resume", "device", "threads"}:
        flag = "--" + name.replace("_", "-")
        raise ValueError(
            f"--resume goes on with the run's own settings: leave out {flag}, or start a new run"
        )
    return DEFAULTS | settings | given


def parse_stem_layers(text, n_layers):
    """all, none, 1/2, 1/3 (every 2nd or 3rd layer, beginning with the second one, as in the paper) or 1,3"""
    every = {
        "all": range(n_layers),
        "none": (),
        "1/2": range(1, n_layers, 2),
        "1/3": range(1, n_layers, 3),
    }
    if text in every:
        return tuple(every[text])
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise ValueError(
            f"--stem-layers is one of {', '.join(every)}, or layer numbers like 1,3; got {text!r}"
        )
    return tuple(int(i) for i in text.split(","))


def unused_run_name(corpus_name):
    """runs/NAME, or runs/NAME-2, -3, ... if there is one already."""
    name = re.sub(r"\W+", "-", Path(corpus_name).stem).strip("-") or "run"
    candidates = [Path("runs", name)] + [Path("runs", f"{name}-{i}") for i in range(2, 1000)]
    return next(path for path in candidates if not path.exists())


def keep_metrics(run, step):
    """Drop the lines after `step`: the resumed run will write them again."""
    path = run / "metrics.jsonl"
    if path.exists():
        lines = [line for line in path.read_text("utf-8").splitlines() if line.endswith("}")]
        path.write_text(
            "".join(line + "\n" for line in lines if json.loads(line)["step"] <= step), "utf-8"
        )


def describe(args, config, corpus, train_ids, val_ids, threads, run):
    """What is about to happen, in numbers."""
    from dataclasses import replace

    from ministem import measure

    n, dense = measure.count(config), measure.count(replace(config, stem_layers=()))
    C, F, H, K = config.dim, config.ffn_dim, config.n_heads, config.n_kv_heads
    layers = ",".join(map(str, config.stem_layers)) or "none"
    say(
        f"run        {run}: {args.steps} steps of {args.batch} x {config.context} tokens, seed {args.seed}"
    )
    say(
        f"data       {corpus.name}: {len(train_ids):,} training and {len(val_ids):,} validation tokens"
    )
    say(
        f"model      {config.n_layers} layers, width {C}, FFN {F}, {H} heads ({K} key/value), {config.vocab_size} tokens"
    )
    say(f"tables     {config.ffn} in layers {layers}")
    say(f"parameters {n.total:,} in total, {n.active:,} active per token")
    say(
        f"compute    {n.flops / 1e6:.2f} MFLOP per token forward ({n.flops / dense.flops - 1:+.0%} against dense FFNs)"
    )
    say(
        f"memory     {n.train_bytes / 2**20:,.0f} MiB for weights, moments and gradients; and activations"
    )
    say(f"training   lr {args.lr}, warm-up {args.warmup}, decay {args.weight_decay}, tables x{args.table_lr}, "
        f"clip {args.clip}, {args.device}, {threads} threads")  # fmt: skip


class StopSignals:
    """Ctrl-C or a termination signal asks the loop to stop after the step it is in; a second one ends at once."""

    def __init__(self):
        self.asked = 0
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.ask)

    def ask(self, number, frame):
        self.asked = number
        say("\nstopping after this step ...")
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def progress_bar(steps, done):
    """tqdm on a terminal; when piped, only the log lines."""
    from tqdm import tqdm

    with tqdm(
        total=steps, initial=done, disable=not sys.stderr.isatty(), unit="step", leave=False
    ) as bar:
        bar.log = lambda line: tqdm.write(line, file=sys.stderr)
        yield bar


def show_recall(params, tables, config, tokenizer, corpus, run):
    """Ask every withheld sentence, print the share of right answers and a few of them in full."""
    from ministem import measure

    shares, right = measure.recall(params, tables, config, tokenizer, corpus.questions)
    print(f"\nrecall on {len(right)} sentences that were withheld from training:")
    for relation, share in shares.items():
        print(f"  {relation:10s} {share:7.2%}")
    print(f"  {'all':10s} {sum(right) / len(right):7.2%}\n")
    wrong = [q for q, ok in zip(corpus.questions, right, strict=True) if not ok]
    for q in [*corpus.questions[:: len(right) // 6 + 1], *wrong[:3]]:
        said = measure.answer(params, tables, config, tokenizer, q.prompt)
        print(
            f"  {q.prompt} ... {said}" + ("" if said == q.answer else f"   (should be: {q.answer})")
        )
    print(
        f'\nnext: python sample.py --run {run} --prompt "The capital of Spain is" --temperature 0'
    )


def show_sample(params, tables, config, tokenizer, corpus, run, seed):
    """Print some text of the model's own."""
    from ministem.generate import generate

    prompt = corpus.val[: corpus.val.find("\n") + 1][:200] or corpus.val[:20]
    ids = list(generate(params, tables, config, tokenizer.encode(prompt), 300, 0.8, seed=seed))
    print("\n" + prompt + tokenizer.decode(ids))
    print(f"\nnext: python sample.py --run {run}")


if __name__ == "__main__":
    main()
