"""What a training run tells: its plan, its losses, what the model has learned."""

import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from ..backend import download
from ..data import n_predictions
from ..devices import files
from ..generate import generate
from ..knowledge import measure
from .checkpoint import remove, save_checkpoint
from .cli import say


def plan(args, run, corpus, ids, threads):
    """What is about to happen, in numbers."""
    config, (train_ids, val_ids) = run.config, ids
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
    size, on_disk = n.train_bytes, ""
    if args.tables == "disk":
        size += 3 * config.vocab_size * len(run.tables.names) - n.table_bytes  # a byte says if a row is there
        on_disk = f"; on disk tables and their moments, up to {n.table_bytes / 2**20:,.0f} MiB"
    say(f"memory     {size / 2**20:,.0f} MiB of weights, moments and gradients; and activations{on_disk}")
    say(f"training   lr {args.lr} (tables x {args.table_lr}), warm-up {args.warmup}, decay "
        f"{args.weight_decay}, clip {args.clip}, seed {args.seed}, {args.device}, threads {threads}")


class Log:
    """Losses since the last line of the log, the lines, the checkpoints between them."""

    def __init__(self, args, run, corpus, val_ids):
        self.args, self.run, self.corpus, self.val_ids = args, run, corpus, val_ids
        self.losses, self.unread = run.state.get("losses", []), []  # unread: still on the device
        self.since, self.saved = (time.perf_counter(), run.step), None
        self.tokens_per_s = None
        self.bar = tqdm(total=args.steps, initial=run.step, disable=not sys.stderr.isatty(), unit="step",
                        leave=False)  # fmt: skip

    def add(self, loss, norm):
        """A step's loss and gradient norm. They are not looked at yet: a GPU computes behind our back."""
        self.unread += [loss, norm]
        self.bar.update()

    def read(self):
        """Wait for the device, and look -> losses since the last line. FloatingPointError if one is not
        finite, or if nothing can be learned any more. Nothing is saved between a step and this."""
        if self.unread:
            numbers = download(np.stack(self.unread)).reshape(-1, 2)  # loss and norm of each step
            self.unread, first = [], self.run.step - len(numbers) + 1
            self.losses += numbers[:, 0].tolist()
            bad = ~np.isfinite(numbers).all(1)
            if bad.any():
                loss, norm = numbers[bad.argmax()]
                raise FloatingPointError(
                    f"the loss is {loss} and its gradient's norm {norm} at step {first + bad.argmax()}"
                )
            if not self.args.tables_only and (numbers[:, 1] == 0).all():
                raise FloatingPointError(
                    f"the gradient is exactly zero since step {first} (the loss stays at"
                    f" {numbers[-1, 0]:.4f}, a blind guess is {math.log(self.run.config.vocab_size):.4f})"
                )
        return self.losses

    def save(self, optimizer, rows=None):
        """Write a checkpoint. rows: how many the latest batch had, if a line of the log is to follow."""
        losses, run, line = self.read(), self.run, None
        if rows is not None:
            seconds, steps = time.perf_counter() - self.since[0], run.step - self.since[1]
            self.tokens_per_s = round(steps * self.args.batch * run.config.context / seconds)
            mean = sum(losses) / len(losses)
            line, losses = dict(step=run.step, train_loss=mean, lr=optimizer.lr, rows=rows), []
        run.state = dict(corpus=self.corpus.hash, losses=losses, line=line)
        with files.named(run.folder):
            save_checkpoint(run, optimizer)
        self.saved = run.step

    def due(self):
        """Is this a step after which to save and evaluate?"""
        return self.run.step % self.args.eval_every == 0 or self.run.step == self.args.steps

    def evaluate(self):
        """Validation loss of the step just saved: a line for people, and one in metrics.jsonl. A step whose
        loss is not finite is not kept."""
        run, args, line = self.run, self.args, dict(self.run.state["line"])
        # on the way, about 20 batches of it; in the end all of the validation text
        limit = None if run.step == args.steps else 20 * args.batch * run.config.context
        val_loss = measure.evaluate(run, self.val_ids, args.batch, limit)
        tokens = n_predictions(len(self.val_ids), run.config.context, limit)
        if not math.isfinite(line["train_loss"] + val_loss):
            remove(run.folder, [run.folder / f"step-{run.step:06d}"])
            raise FloatingPointError(
                f"at step {run.step} the loss is {line['train_loss']}, for validation {val_loss}"
            )
        bytes_per_token = len(self.corpus.val.encode()) / len(self.val_ids)
        line |= dict(val_loss=val_loss, val_nats_per_byte=val_loss / bytes_per_token, val_tokens=tokens)
        text = (
            "step {step:5d} | train {train_loss:.4f} | val {val_loss:.4f} ({val_nats_per_byte:.3f} nats/byte)"
            " | lr {lr:.1e} | rows {rows}/{V}"
        ).format(V=run.config.vocab_size, **line)
        if self.tokens_per_s:  # not if the training was in another process
            line["tokens_per_s"] = self.tokens_per_s
            text += f" | {self.tokens_per_s:,} tokens/s"
        say(text) if self.bar.disable else tqdm.write(text, file=sys.stderr)
        path = run.folder / "metrics.jsonl"
        with files.named(path), open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.losses, self.since = [], (time.perf_counter(), run.step)


def patch(args, before, run, new):
    """What --save-patch has written."""
    tokens, size = len(new.describe(run.tokenizer)), Path(args.save_patch).stat().st_size
    say(f"patch      {args.save_patch}: {size:,} bytes, rows of {tokens} tokens, {len(new.changes)} tables")
    say(f"next: python sample.py --run {before} --patch {args.save_patch} --prompt ...")


def recall(run, corpus):
    """Ask every withheld sentence, print the share of right answers and a few of them in full."""
    shares, right = measure.recall(run, corpus.questions)
    print(f"\nrecall on {len(right)} sentences that were withheld from training:")
    for relation, share in {**shares, "all": sum(right) / len(right)}.items():
        print(f"  {relation:10s} {share:8.2%}")
    print()
    wrong = [q for q, ok in zip(corpus.questions, right, strict=True) if not ok]
    for q in [*corpus.questions[:: len(right) // 6 + 1], *wrong[:3]]:
        answer = measure.answer(run, q.prompt)
        print(f"  {q.prompt} ... {answer}" + ("" if answer == q.answer else f"   (should be: {q.answer})"))
    edit = ' --edit "Spain=Germany"' if len(run.tables.names) > 1 else ""  # a dense model has no rows to edit
    prompt = '--prompt "The capital of Spain is" --temperature 0'
    print(f"\nnext: python sample.py --run {run.folder} {prompt}{edit}")


def sample(run, corpus, seed):
    """Print some text of the model's own, after the first line of the validation text."""
    prompt = corpus.val[: corpus.val.find("\n") + 1][:200] or corpus.val[:20]
    ids = run.tokenizer.encode(prompt)
    new = generate(run.params, run.tables, run.config, ids, 300, temperature=0.8, seed=seed)
    print("\n" + prompt + run.tokenizer.decode(list(new)))
    print(f"\nnext: python sample.py --run {run.folder}")
