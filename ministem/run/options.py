"""The options of train.py: one line of a table for each, and what goes with what.

An option is name=(default, type, help). Types are functions that turn a word into a value or say in one line
why not, or a tuple of words to choose from; `flag` takes no word. Settings that a run has in its config.json
are read as if they had been typed, so that nonsense in there is refused alike. Left out: configuration files,
and options that nobody turns.
"""

import argparse
import os
import re
from pathlib import Path

from ..data import argument
from .checkpoint import read_json

# --------------------------------------------------------------------------------------------- types


def flag(text):
    """An option without a value: given or not."""


def word(text):
    """Any text but an empty one: that would be taken as if the option had not been given."""
    if not text.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def names(text):
    """Words that stand in a text, like those of --rows; not the name of a file."""
    return argument(word(text))


def whole(least, most=10**9):
    """A whole number, least <= n <= most."""

    def parse(text):
        number = int(text) if re.fullmatch(r"[+-]?\d{1,99}", text) else None
        if number is None or not least <= number <= most:
            at_most = f" and <= {most:,}" if number and number > most else ""
            raise argparse.ArgumentTypeError(f"must be a whole number >= {least}{at_most}, got {text!r}")
        return number

    return parse


def number(least, exclusive=False, most=float("inf")):
    """A finite number >= least (or > least) and <= most."""

    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not (least < value < float("inf") or (value == least and not exclusive)) or value > most:
            at_most = "" if most == float("inf") else f" and at most {most:g}"
            sign = ">" if exclusive else ">="
            raise argparse.ArgumentTypeError(f"must be a number {sign} {least}{at_most}, got {text!r}")
        return value

    return parse


# ------------------------------------------------------------------------------------ train.py's table

TRAIN = {
    "what to train on": dict(
        data=("atlas", word, "a text file in UTF-8, or: atlas"),
        tokenizer=("bpe", word, "bpe (trained on the data), or a stock one: gpt2, cl100k_base, o200k_base"),
        vocab_size=(2048, whole(257, 10**7), "tokens of a bpe vocabulary, at least 257"),
    ),
    "the model": dict(
        dim=(128, whole(1), "model width"),
        layers=(4, whole(1), "number of layers"),
        heads=(4, whole(1), "query heads"),
        kv_heads=(None, whole(1), "key/value heads (default: as many as query heads)"),
        ffn_dim=(None, whole(1), "FFN width (default: 3 x dim)"),
        context=(64, whole(1), "longest text, in tokens"),
        stem_layers=("all", word, "layers with a table: all, 1/2, 1/3, none, or numbers from 0: 1,3"),
        ffn=("stem", ("stem", "gate", "additive", "dense"), "what those layers are"),
    ),
    "training": dict(
        steps=(1000, whole(0), "number of steps; with --init-from, 0 makes tables only"),
        batch=(16, whole(1), "texts per step"),
        lr=(4e-3, number(0, exclusive=True), "highest learning rate"),
        warmup=(50, whole(0), "steps until the rate is highest"),
        weight_decay=(0.1, number(0), "decay of matrices (not of tables)"),
        table_lr=(0.7, number(0), "tables learn at this times --lr"),
        clip=(1.0, number(0), "largest gradient norm, 0: no limit"),
        seed=(0, whole(0), "for weights, batches and the atlas"),
        eval_every=(200, whole(1), "steps between evaluations, each with a checkpoint"),
    ),
    "the run": dict(
        out=(None, word, "run folder (default: runs/ and the data's name)"),
        resume=(None, word, "run folder to go on with, with its own settings (only --device, --tf32, "
                "--tables, --threads may differ, and --data if the text is elsewhere now)"),
        init_from=(None, word, "run folder to start from: its weights, vocabulary and shape, on --data; with "
                   "--stem-layers, matrices become tables: the means, over --data, of what they give"),
        patch=([], word, "with --init-from: apply a file of --save-patch first; may be repeated"),
        tables_only=(False, flag, "with --init-from: only STEM tables learn"),
        rows=(None, names, "with --tables-only: only the rows of these names, like Spain,Peru"),
        save_patch=(None, word, "with --tables-only: file for the rows that moved, see sample.py --patch"),
        device=("cpu", ("cpu", "gpu"), "where the model computes"),
        tf32=(False, flag, "with --device gpu: faster products, of 10 bits"),
        tables=("ram", ("ram", "disk", "host"), "where they live, with their moments: ram, disk for "
                "those that do not fit, or with --device gpu in the host's memory: host"),
        threads=(None, whole(1, 4096), "on a CPU, parts that a batch is split into (default: all cores)"),
    ),
}  # fmt: skip
NEEDS = dict(patch="init_from", tables_only="init_from", rows="tables_only", save_patch="tables_only")
MAY_CHANGE = ("resume", "data", "device", "tf32", "tables", "threads")  # beside --resume
# what --init-from takes over (stem_layers and ffn may differ: see knowledge/means.py)
SHAPE = "tokenizer vocab_size dim layers heads kv_heads ffn_dim context stem_layers ffn".split()
DEVICE = {("tf32", True): "gpu", ("tables", "host"): "gpu", ("tables", "disk"): "cpu"}


def dashed(name):
    return "--" + name.replace("_", "-")


def parser(description, table):
    """-> an ArgumentParser with the options of a table. It reports only what was given."""
    parser = argparse.ArgumentParser(
        description=description, argument_default=argparse.SUPPRESS,
        usage="%(prog)s [options]  (--help lists them)",
    )  # fmt: skip
    for title, rows in table.items():
        group = parser.add_argument_group(title)
        for name, (default, kind, text) in rows.items():
            if kind is flag:
                group.add_argument(dashed(name), help=text, action="store_true")
                continue
            shown = "" if default in (None, []) else f" (default: {default!r})"
            how = dict(choices=kind) if isinstance(kind, tuple) else dict(type=kind)
            if default == []:
                how["action"] = "append"
            group.add_argument(dashed(name), help=text + shown, **how)
    return parser


def defaults(table):
    return {name: row[0] for group in table.values() for name, row in group.items()}


DEFAULTS = defaults(TRAIN)


def parse(table, about):
    """-> the options of a script: what was given, else the table's defaults."""
    return argparse.Namespace(**defaults(table) | vars(parser(about, table).parse_args()))


def parse_train():
    """-> train.py's options: what was given, then those of the run to go on with, then defaults."""
    about = "Train a STEM transformer in NumPy. Without options: the atlas, about a minute."
    flags = parser(about, TRAIN)
    given = vars(flags.parse_args())

    def refuse(name, why):
        raise ValueError(f"{dashed(name)} {why}")

    its_own = {}
    if "resume" in given:
        for name in given:
            if name not in MAY_CHANGE:
                refuse(name, "cannot change: --resume goes on with the run's own settings; leave it out")
        its_own = saved_settings(flags, Path(given["resume"]))
    for name, needs in NEEDS.items():
        if name in given and needs not in given:
            refuse(name, f"is for use with {dashed(needs)}")
    if "init_from" in given:
        folder = Path(given["init_from"])
        folder = folder.parent if folder.name.startswith("step-") else folder
        settings = DEFAULTS | saved_settings(flags, folder)
        its_own = {name: settings[name] for name in (*SHAPE, "tables")}
        if its_own["ffn"] == "dense" and "stem_layers" in given:  # it says of no table which kind it is
            its_own["ffn"] = DEFAULTS["ffn"]
        for name in SHAPE[:-2]:
            if given.get(name, its_own[name]) != its_own[name]:
                refuse(name, f"{given[name]}: {folder} has {its_own[name]}, and --init-from keeps it")
    args = argparse.Namespace(**DEFAULTS | its_own | given)
    if args.steps == 0 and not args.init_from:
        refuse("steps", "0 is for use with --init-from")
    for (name, value), device in DEVICE.items():
        if getattr(args, name) == value and args.device != device:
            if name not in its_own or name in given or value == "disk":
                refuse(name, f"{'' if value is True else value + ' '}is for --device {device}")
            setattr(args, name, DEFAULTS[name])  # what a run had on a GPU that may not be here
    if "resume" in given and args.data != "atlas" and not os.path.exists(args.data):
        raise ValueError(f"{args.data}, which {args.resume} was trained on, is gone: say --data FILE")
    return args


def saved_settings(flags, folder):
    """The settings in a run's config.json, read as if they had been typed."""
    path = folder / "config.json"
    settings = read_json(path).get("settings")
    if not isinstance(settings, dict):
        raise ValueError(f"{path} is damaged: it has no settings")
    words = []
    for name, value in settings.items():
        for one in value if isinstance(DEFAULTS.get(name), list) and isinstance(value, list) else [value]:
            if one is not None and one is not False:  # 0 is a value
                words.append(dashed(name) if one is True else f"{dashed(name)}={one}")
    flags.prog = str(path)  # an error is about what stands in there
    return vars(flags.parse_args(words))


def lasting(args):
    """The options to keep in config.json: files by their whole path, so that --resume finds them from any
    folder."""
    paths = {name: getattr(args, name) for name in ("data", "init_from", "save_patch")}
    paths = {name: os.path.abspath(path) for name, path in paths.items() if path not in (None, "atlas")}
    return vars(args) | paths | {"patch": [os.path.abspath(path) for path in args.patch]}
