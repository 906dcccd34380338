"""Looking inside: whose rows are alike, what the gate lets through, which rows have moved, what comes next.

    python -m ministem.knowledge.inside nearest Spain        tokens with rows like those of Spain
    python -m ministem.knowledge.inside gate Spain "The capital of Spain is" "The currency of Spain is"
    python -m ministem.knowledge.inside moved runs/atlas/step-000500 runs/atlas/step-000600

Functions return numbers, the command prints them. Left out: what a feature means. Nobody has named them.
"""

import argparse
import unicodedata
from collections import namedtuple

import numpy as np

from ..backend import download
from ..generate import window_start
from ..model import linear_forward, trunk_forward
from ..run.checkpoint import load_checkpoint, newest_run
from ..run.cli import as_command, user_errors
from .edit import Patch
from .naming import find, spelling

# ------------------------------------------------------------------------------- showing tokens in columns


def width(text):
    """How many columns a terminal needs: two for 日, none for an accent that goes on the letter before it."""
    on_another = ("Mn", "Me", "Cf")  # marks, and characters that say how others are joined
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.category(c) in on_another for c in text)


def column(text, n):
    """text, filled up with spaces to n columns."""
    return text + " " * (n - width(text))


# -------------------------------------------------------------------------------------- the next token


def next_odds(run, ids, override=None):
    """-> (V,): the probability of each token to be the next one after ids. override: as for generate()"""
    start = window_start(len(ids), run.config.context)
    batch = run.tables.fetch([ids[start:]])
    if override:
        batch = override(batch, start)
    x, _ = trunk_forward(run.params, run.config, batch)
    logits = download(linear_forward(x[:, -1:], run.params["head"])[0])[0, 0].astype("float64")
    p = np.exp(logits - logits.max())
    return p / p.sum()


def odds_table(tokenizer, before, after, k=4):
    """The k likeliest tokens of each side, in columns: token, its chance before, its chance after."""
    likeliest = [np.argsort(-p, kind="stable")[:k].tolist() for p in (before, after)]
    ids = list(dict.fromkeys(likeliest[0] + likeliest[1]))
    names = {id: f"[{tokenizer.shown(id)}]" for id in ids}
    n = max(map(width, [*names.values(), "next token"]))
    lines = [f"{column('next token', n)}  {'before':>9}  {'after':>9}"]
    for id in ids:
        lines.append(f"{column(names[id], n)}  {before[id]:9.2%}  {after[id]:9.2%}")
    return "\n".join(lines)


# ----------------------------------------------------------------------------------- rows that are alike


def nearest(tables, ids, k=8):
    """-> {table name: [(id, cosine)]}: the k tokens whose rows point most in the direction of that of ids.

    ids: one token; of several, the mean of their rows is what is pairs."""
    neighbours = {}
    for name in tables.names:
        row, cosine = download(tables.read(name, np.array(ids))).mean(0), []
        for _, part in tables.parts(name):
            part = download(part)
            # a length of zero would be no direction at all: such rows count as unlike
            lengths = np.linalg.norm(part, axis=1) * np.linalg.norm(row)
            cosine.append(part @ row / np.maximum(lengths, 1e-30))
        cosine = np.concatenate(cosine)
        cosine[ids] = -np.inf
        best = np.argsort(-cosine, kind="stable")[: min(k, len(cosine) - len(set(ids)))]
        neighbours[name] = [(int(id), float(cosine[id])) for id in best]
    return neighbours


# ------------------------------------------------------------------------------- what the gate lets through

Gate = namedtuple("Gate", "layer x y both share_x share_y cosine")


def gate(run, ids_x, t_x, ids_y, t_y):
    """One token in two contexts: which features of its row does the gate let through in each?

    ids_x[t_x] and ids_y[t_y] should be the same token. -> [Gate], one for each layer, where x and y (F,) are
    silu(x Wg), which the row's features are multiplied by; a feature counts as open where that is positive.
    The row is the same in both: all that differs between them is what the gate has seen of the context."""
    sides = []
    for ids, t in ((ids_x, t_x), (ids_y, t_y)):
        _, (_, _, layers, _) = trunk_forward(run.params, run.config, run.tables.fetch([ids]))
        gates = []
        for *_, ffn in layers:
            a, s, _ = ffn[-2]  # glu_forward's cache, the last but one in every variant
            gates.append(download(a * s)[0, t])
        sides.append(gates)
    pairs = []
    for i, (x, y) in enumerate(zip(*sides, strict=True)):
        both = ((x > 0) & (y > 0)).sum() / max(1, ((x > 0) | (y > 0)).sum())
        cosine = x @ y / max(float(np.linalg.norm(x) * np.linalg.norm(y)), 1e-30)
        pairs.append(Gate(i, x, y, float(both), float((x > 0).mean()), float((y > 0).mean()), float(cosine)))
    return pairs


def gate_picture(one, columns=64):
    """A Gate as lines of text, a character per feature: upper half open in x, lower half open in y."""
    cells = np.array(list("·▀▄█"))[(one.x > 0) + 2 * (one.y > 0)]
    return ["".join(cells[i : i + columns]) for i in range(0, len(cells), columns)]


# ------------------------------------------------------------------------------------- rows that moved


def moved(before, after):
    """Two models' tables -> edit.Moved for each token whose rows differ, the farthest first."""
    return Patch.between(before.tables, after.tables).describe(after.tokenizer)


# ------------------------------------------------------------------------------------------ the command


def main():
    parser = argparse.ArgumentParser(
        prog="python -m ministem.knowledge.inside", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="what", required=True)
    one = commands.add_parser("nearest", help="whose rows are like those of a name")
    one.add_argument("name")
    two = commands.add_parser("gate", help="what the gate lets through for a name in two contexts")
    two.add_argument("name")
    two.add_argument("x", help="a text with the name in it")
    two.add_argument("y", help="another one")
    for command in (one, two):
        command.add_argument("--run", help="run folder (default: the newest in runs/)")
    three = commands.add_parser("moved", help="which rows moved most between two checkpoints")
    three.add_argument("before", help="run folder or step folder")
    three.add_argument("after")
    for command in (one, three):
        command.add_argument("--top", type=int, choices=range(1, 1000), default=8, metavar="N",
                             help="how many (default: 8)")  # fmt: skip
    args = parser.parse_args()
    with user_errors():
        globals()["print_" + args.what](args)


def load(path):
    return load_checkpoint(path or newest_run(), rows_only=True)


def print_nearest(args):
    run = load(args.run)
    ids = spelling(run.tokenizer, args.name)
    print("tokens", "".join(f"[{run.tokenizer.shown(id)}]" for id in ids))
    for name, found in nearest(run.tables, ids, args.top).items():
        print(f"{name:15s}", "  ".join(f"[{run.tokenizer.shown(id)}] {cosine:.2f}" for id, cosine in found))


def print_gate(args):
    run, sides = load(args.run), []
    for text in (args.x, args.y):
        ids = run.tokenizer.encode(text)
        if len(ids) > run.config.context:
            raise ValueError(f"{text!r} has {len(ids)} tokens, and the model sees {run.config.context}")
        sides += [ids, find(run.tokenizer, text, args.name)[0][1] - 1]  # the name's last token
    token = run.tokenizer.shown(sides[0][sides[1]])
    print(f"[{token}]   upper half: open in {args.x!r}, lower half: in {args.y!r}")
    for one in gate(run, *sides):
        kind = run.config.ffn_kind(one.layer)
        print(f"layer {one.layer} ({kind}): open {one.share_x:.0%} and {one.share_y:.0%}, "
              f"in both {one.both:.0%} of those open in either, cosine {one.cosine:.2f}")  # fmt: skip
        print("\n".join("  " + line for line in gate_picture(one)))


def print_moved(args):
    before, after = load(args.before), load(args.after)
    if before.tokenizer.hash != after.tokenizer.hash:
        raise ValueError(f"{args.before} and {args.after} have different vocabularies")
    tokens = moved(before, after)
    print(f"{len(tokens)} of {after.config.vocab_size} tokens have rows that moved; the farthest, by table:")
    names = after.tables.names
    n = max([5, *(width(f"[{m.token}]") for m in tokens[: args.top])])
    print(column("token", n), *(f"{name.removesuffix('.table'):>9}" for name in names))
    for m in tokens[: args.top]:
        print(column(f"[{m.token}]", n), *(f"{m.distance.get(name, 0):9.3f}" for name in names))


if __name__ == "__main__":
    as_command(main)
