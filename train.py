"""Train a model: read from the top to see a whole run.

    python train.py                          the atlas, a small world of facts: about a minute
    python train.py --data input.txt         any text file in UTF-8
    python train.py --resume runs/atlas      go on with a run that was stopped
    python train.py --init-from runs/dense --stem-layers all --data input.txt --steps 0
                                             a trained dense model gets tables: matrices' means, no training
    python train.py --init-from runs/atlas --tables-only --data new_facts.txt --save-patch patch.safetensors
                                             teach a trained model more, by changing table rows alone

Progress goes to stderr, what the model learned to stdout, everything to keep to a folder in runs/.
"""

import signal
import sys
from functools import lru_cache, partial

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends this at once; the loop asks for its step first

import numpy as np

from ministem import backend, data
from ministem.knowledge import edit
from ministem.model import loss_and_grads
from ministem.optim import AdamW, cosine_schedule
from ministem.run import options, report, start
from ministem.run.checkpoint import load_checkpoint, step_folders
from ministem.run.cli import fail, say, user_errors


def main():
    with user_errors():  # whatever is wrong with options and files shows here, in one line, before any work
        args = options.parse_train()
        like = backend.device_array(args.device, args.tf32)  # stands for the device: arrays are made like it
        corpus = data.load_corpus(args.data, args.seed, whole=args.tables_only)
        run, ids = start.resumed_run(args, corpus, like) if args.resume else start.new_run(args, corpus, like)
    with user_errors(MemoryError, OSError):  # OSError: a full disk
        train(args, run, corpus, *ids)
    with user_errors():
        if args.save_patch:
            save_patch(args, run)
        report.recall(run, corpus) if corpus.questions else report.sample(run, corpus, args.seed)


def train(args, run, corpus, train_ids, val_ids):
    """The training loop, from run.step to args.steps."""
    config, params, tables = run.config, run.params, run.tables
    threads = 1 if args.device == "gpu" else args.threads or backend.available_cores()
    rows = start.rows_to_train(args, run.tokenizer, config, train_ids)
    draw = lru_cache(2)(partial(data.draw_batch, train_ids, args.batch, config.context, args.seed))
    optimizer = AdamW(args.lr, weight_decay=args.weight_decay, table_lr=args.table_lr, clip=args.clip,
                      threads=threads)  # fmt: skip
    optimizer.start(params, tables)
    if run.moments:
        optimizer.load(run.moments, run.step, run.table_moments)
        run.moments, run.table_moments = None, ()
    report.plan(args, run, corpus, (train_ids, val_ids), threads)
    backend.keep_freed_memory()

    try:
        log = report.Log(args, run, corpus, val_ids)
        with log.bar, start.StopSignals() as stop, backend.blas_threads(threads), np.errstate(all="ignore"):
            if run.state.get("line"):
                log.evaluate()  # a kill came between a checkpoint and its line in the log
            while run.step < args.steps and not stop.asked:
                optimizer.lr = cosine_schedule(run.step + 1, args.steps, args.lr, args.warmup)
                batch = tables.fetch(*draw(run.step))              # the rows that these tokens need
                loss, grads = loss_and_grads(params, config, batch, batch.targets, threads)
                tables.prefetch(*draw(run.step + 1))
                if args.tables_only:
                    grads = edit.only_tables(grads, rows)
                norm = optimizer.step(params, tables, grads)       # dense arrays, and those rows
                run.step += 1
                log.add(loss, norm)
                if log.due():
                    log.save(optimizer, len(batch.rows))
                    log.evaluate()
            if run.step != log.saved and (run.step < args.steps or args.steps == 0):
                log.save(optimizer)
    except FloatingPointError as error:  # the one exit of a run that blew up
        last = (step_folders(run.folder) or ["there is none"])[-1]
        fail(f"{error}: not kept. Lower --lr (or --table-lr). The last good checkpoint: {last}")
    if run.step < args.steps:
        say(f"stopped and saved at step {run.step}. To go on: python train.py --resume {run.folder}")
        sys.exit(128 + stop.asked)


def save_patch(args, run):
    """The rows that the training has moved, to a file."""
    base = load_checkpoint(run.folder / "base")
    patch = edit.Patch.between(base.tables, run.tables, **edit.fingerprint(base))
    patch.save(args.save_patch)
    report.patch(args, args.init_from, run, patch)


if __name__ == "__main__":
    main()
