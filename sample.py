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
import sys

from ministem.run.cli import as_command, say, uninterrupted, user_errors
from train import number, whole

HOW = ("auto", "one-to-one", "align-end", "copy", "pad", "subset", "average")  # edit.HOW: --help is at once


def main():
    with user_errors():
        args = parse_arguments()

        with uninterrupted():
            import numpy.random  # noqa: F401

            from ministem import backend
            from ministem.run import checkpoint

        like = backend.device_array(args.device)
        prompt = read_prompt(args.prompt)
        folder = checkpoint.newest_run() if args.run is None else args.run
        run = checkpoint.load_checkpoint(folder, like, in_ram=args.tables == "ram")
        if args.tables == "disk" and run.tables.whole:
            raise ValueError(f"{run.folder} was trained with its tables in RAM: leave out --tables disk")
        say(f"{run.folder}, step {run.step}")
        ids = run.tokenizer.encode(prompt)
        if len(ids) > run.config.context:
            say(f"the prompt has {len(ids)} tokens; the model sees the last {run.config.context}")
        if not args.edit and not args.patch:
            return write(args, run, ids)
        before_and_after(args, run, prompt, ids)


def write(args, run, ids, override=None):
    """Print the prompt and what the model adds, args.samples times."""
    from ministem.generate import generate
    from ministem.tokenizer import StreamDecoder

    for i in range(args.samples):
        decoder = StreamDecoder(run.tokenizer)
        print(run.tokenizer.decode(ids), end="", flush=True)
        new = generate(run.params, run.tables, run.config, ids, args.tokens, args.temperature,
                       args.top_k, args.top_p, args.seed + i, override=override)  # fmt: skip
        for token in new:
            print(decoder.feed([token]), end="", flush=True)
        print(decoder.flush())
        if i + 1 < args.samples:
            print("---", flush=True)


def before_and_after(args, run, prompt, ids):
    """Write, change what was asked for, write again, and compare the chances of the next token."""
    from ministem.generate import window_start
    from ministem.knowledge import edit, inside

    tables, override, changes, notes = run.tables, None, [], []
    # what can be wrong should show before the first word is written: so do it all, and take it back
    layers = parse_layers(args.edit_layers)
    patches = [edit.Patch.load(path) for path in args.patch]
    for path, patch in zip(args.patch, patches, strict=True):
        patch.check(run)
        patch.apply(tables)
        tokens, n = len(patch.describe(run.tokenizer)), len(patch.changes)
        notes.append(f"{path}: rows of {tokens} tokens in {n} tables, {patch.nbytes:,} bytes")
    if args.edit_rows:
        # each from the tables as they were: "Spain=Peru" and "Peru=Spain" change places
        row_edits = []
        for old, new in args.edit:
            row_edits.append(edit.edit_rows(tables, run.tokenizer, old, new, args.edit_how, layers))
            tokens = "".join(f"[{moved.token}]" for moved in row_edits[-1].describe(run.tokenizer))
            notes.append(f"{new} is written into the rows of {tokens}")
        for patch in row_edits:
            patch.apply(tables)
        patches += row_edits
    elif args.edit:
        changes = edit.plan(run.tokenizer, prompt, args.edit, args.edit_how, args.edit_all)
        edit.table_names(tables, layers)
        override = edit.while_generating(tables, changes, layers)
        first = window_start(len(ids), run.config.context)
        for t, rows in changes:
            reads = "".join(f"[{run.tokenizer.shown(row)}]" for row in rows)
            reads = f"the mean of {reads}" if len(rows) > 1 else reads
            gone = "" if t >= first else ", but the model sees only what comes later"
            token = run.tokenizer.shown(ids[t])
            notes.append(f"token {t} [{token}] reads the rows of {reads}{gone}")
    for patch in reversed(patches):
        patch.revert(tables)

    say("before:")
    write(args, run, ids)
    before = inside.next_odds(run, ids)
    print("---", flush=True)
    for patch in patches:
        patch.apply(tables)
    say("\n".join(["", *notes, "after:"]))
    write(args, run, ids, override)
    after = inside.next_odds(run, ids, override)
    say("\n" + inside.odds_table(run.tokenizer, before, after))


def parse_arguments():
    parser = argparse.ArgumentParser(
        description="Let a trained model write.", usage="%(prog)s [options]  (--help lists them)"
    )

    def option(name, help, **more):
        default = "" if more.get("default") in (None, []) else f" (default: {more['default']!r})"
        group.add_argument("--" + name, help=help + default, **more)

    group = parser.add_argument_group("what to write")
    option("prompt", "text to go on from, or - for standard input", default="\n")
    option("run", "run folder, or one of its step folders (default: the newest in runs/)")
    option("tokens", "how many to add", type=whole(0), default=100)
    option("samples", "how many texts", type=whole(1), default=1)
    option("temperature", "0: always the likeliest token", type=number(0), default=0.8)
    option("top-k", "choose among the k likeliest tokens", type=whole(1))
    option("top-p", "choose among the likeliest, up to this probability", type=number(0, exclusive=True))
    option("seed", "same seed, same text", type=whole(0), default=0)
    option("device", "cpu or gpu", choices=("cpu", "gpu"), default="cpu")
    option("tables", "ram: read them all; disk: only the rows needed (default: as they were in training)",
           choices=("ram", "disk"))  # fmt: skip
    group = parser.add_argument_group("what to change: writes once before and once after")
    option("edit", "where the prompt says OLD, the tables' rows are those of NEW; may be repeated",
           action="append", type=pair, default=[], metavar="OLD=NEW")  # fmt: skip
    option("edit-how", "for names of several tokens", choices=HOW, default="auto")
    option("edit-layers", "only in these layers, like 0,2 (default: in all that have a table)")
    flag = dict(action="store_true")
    group.add_argument("--edit-all", help="every OLD in the prompt (default: the last)", **flag)
    group.add_argument("--edit-rows", help="write NEW's rows into OLD's, for the whole text", **flag)
    option("patch", "apply a file of train.py --save-patch; may be repeated", action="append", default=[])
    args = parser.parse_args()
    if args.top_p is not None and args.top_p > 1:
        parser.error(f"argument --top-p: must be at most 1, got {args.top_p}")
    for name in ("how", "layers", "all", "rows"):
        if getattr(args, "edit_" + name) not in (None, False, "auto") and not args.edit:
            parser.error(f"argument --edit-{name}: there is nothing to edit without --edit OLD=NEW")
    if args.edit_all and args.edit_rows:
        parser.error("argument --edit-all: --edit-rows changes every occurrence by itself")
    return args


def pair(text):
    """An argparse type: "Spain=Germany" -> ("Spain", "Germany")"""
    old, equals, new = (part.strip() for part in text.partition("="))
    if not (old and equals and new):
        raise argparse.ArgumentTypeError(f"must be like Spain=Germany, got {text!r}")
    return old, new


def parse_layers(text):
    """None, or "1,3" -> [1, 3]"""
    if text is None:
        return None
    layers = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() or part == "embed" for part in layers):
        raise ValueError(f"--edit-layers takes numbers of layers, like 0,2; got {text!r}")
    return [layer if layer == "embed" else int(layer) for layer in layers]


def read_prompt(prompt):
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not prompt:
        raise ValueError("the prompt is empty: give at least one character, or leave --prompt out")
    return prompt


if __name__ == "__main__":
    as_command(main)
