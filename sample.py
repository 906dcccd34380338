"""Let a trained model write.

    python sample.py                                        the newest run goes on from an empty line
    python sample.py --prompt "The capital of Spain is"     ... from your words
    echo "Once upon" | python sample.py --prompt -          ... from standard input

Exchange what it knows, and see the text before and after:

    python sample.py --prompt "The capital of Spain is" --temperature 0 --edit "Spain=Germany"
    python sample.py --prompt "The capital of Spain is" --temperature 0 --patch patch.safetensors

The text goes to stdout, everything else to stderr.
"""

import argparse
import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends this at once

from ministem import backend, data
from ministem.generate import generate, window_start
from ministem.knowledge import edit, inside, naming
from ministem.run import checkpoint, options
from ministem.run.cli import printable, say, user_errors
from ministem.run.options import flag, number, whole, word
from ministem.tokenizer import StreamDecoder


def pair(text):
    """An option's type: "Spain=Germany" -> ("Spain", "Germany")"""
    old, equals, new = (part.strip() for part in data.argument(text).partition("="))
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"must be like Spain=Germany, got {text!r}")
    return old, new


OPTIONS = {
    "what to write": dict(
        prompt=("\n", data.argument, "text to go on from, or - for standard input"),
        run=(None, word, "run folder, or one of its step folders (default: the newest in runs/)"),
        tokens=(100, whole(0), "how many to add"),
        samples=(1, whole(1), "how many texts"),
        temperature=(0.8, number(0), "0: always the likeliest token"),
        top_k=(None, whole(1), "choose among the k likeliest tokens"),
        top_p=(None, number(0, exclusive=True, most=1), "choose among the likeliest, up to this probability"),
        seed=(0, whole(0), "same seed, same text"),
        device=("cpu", ("cpu", "gpu"), "where the model computes"),
        tables=(None, ("ram", "disk"), "ram: read all; disk: only rows as needed (default: as in training)"),
    ),
    "what to change: writes once before and once after": dict(
        edit=([], pair, "OLD=NEW: where the prompt says OLD, tables are read at NEW; may be repeated"),
        edit_how=("auto", naming.HOW, "for names of several tokens"),
        edit_layers=(None, word, "only in these layers, like 0,2 (default: in all that have a table)"),
        edit_all=(False, flag, "every OLD in the prompt (default: the last)"),
        edit_rows=(False, flag, "write NEW's rows into OLD's, for the whole text"),
        patch=([], word, "apply a file of train.py --save-patch; may be repeated"),
    ),
}  # fmt: skip


def main():
    with user_errors():
        args = options.parse(OPTIONS, "Let a trained model write.")
        for name in ("how", "layers", "all", "rows"):
            if getattr(args, "edit_" + name) not in (None, False, "auto") and not args.edit:
                raise ValueError(f"--edit-{name}: there is nothing to edit without --edit OLD=NEW")
        if args.edit_all and args.edit_rows:
            raise ValueError("--edit-all: --edit-rows changes every occurrence by itself")
        like = backend.device_array(args.device)
        prompt = args.prompt
        if prompt == "-":
            prompt = data.decode(sys.stdin.buffer.read(), "standard input", errors="replace")
        if not prompt:
            raise ValueError("the prompt is empty: give at least one character, or leave --prompt out")

        by_row = args.tables != "ram" and args.device == "cpu"
        run = checkpoint.load_checkpoint(args.run or checkpoint.newest_run(), rows_only=by_row)
        if args.tables == "disk" and run.tables.whole:
            raise ValueError(f"{run.folder} was trained with its tables in RAM: leave out --tables disk")
        if run.tables.whole or not by_row:
            checkpoint.place(run, "ram", like)
        say(f"{run.folder}, step {run.step}")
        ids = run.tokenizer.encode(prompt)
        if len(ids) > run.config.context:
            say(f"the prompt has {len(ids)} tokens; the model sees the last {run.config.context}")
        if args.edit or args.patch:
            before_and_after(args, run, prompt, ids)
        else:
            write(args, run, ids)


def write(args, run, ids, override=None):
    """Print the prompt and what the model adds, args.samples times."""
    for i in range(args.samples):
        decoder = StreamDecoder(run.tokenizer)
        print(printable(run.tokenizer.decode(ids)), end="", flush=True)
        new = generate(run.params, run.tables, run.config, ids, args.tokens, args.temperature,
                       args.top_k, args.top_p, args.seed + i, override=override)  # fmt: skip
        for token in new:
            print(printable(decoder.feed([token])), end="", flush=True)
        print(printable(decoder.flush()))
        if i + 1 < args.samples:
            print("---", flush=True)


def before_and_after(args, run, prompt, ids):
    """Write, change what was asked for, write again, and compare the chances of the next token."""
    tables, tokenizer, override, notes = run.tables, run.tokenizer, None, []
    # what can be wrong should show before the first word is written: all is applied once, and taken back
    layers = parse_layers(args.edit_layers)
    patches = [edit.Patch.load(path) for path in args.patch]
    for path, patch in zip(args.patch, patches, strict=True):
        patch.check(run)
        tokens, n = len(patch.describe(tokenizer)), len(patch.changes)
        notes.append(f"{path}: rows of {tokens} tokens in {n} tables, {patch.nbytes:,} bytes")
    with edit.applied(patches, tables):
        if args.edit_rows:  # all from the tables as they are: "Spain=Peru" and "Peru=Spain" change places
            how = args.edit_how, layers
            row_edits = [edit.edit_rows(tables, tokenizer, *names, *how) for names in args.edit]
            with edit.applied(row_edits, tables):
                patches += row_edits
        elif args.edit:
            changes = naming.plan(tokenizer, prompt, args.edit, args.edit_how, args.edit_all)
            override = edit.while_generating(tables, changes, layers)
            edit.table_names(tables, layers)
        first = window_start(len(ids), run.config.context)
        how = args.edit_how, args.edit_all, args.edit_rows, first
        notes += naming.notes(tokenizer, prompt, args.edit, *how)

    say("before:")
    write(args, run, ids)
    before = inside.next_odds(run, ids)
    print("---", flush=True)
    say("\n".join(["", *notes, "after:"]))
    with edit.applied(patches, tables):
        write(args, run, ids, override)
        after = inside.next_odds(run, ids, override)
    say("\n" + inside.odds_table(tokenizer, before, after))


def parse_layers(text):
    """None, or "1,3" -> [1, 3]"""
    if text is None:
        return None
    layers = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() or part == "embed" for part in layers):
        raise ValueError(f"--edit-layers takes numbers of layers, like 0,2; got {text!r}")
    return [layer if layer == "embed" else int(layer) for layer in layers]


if __name__ == "__main__":
    main()
