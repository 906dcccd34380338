"""The trained model as a page: one HTML file with weights, vocabulary, code and style in it.

    python -m ministem.knowledge.page runs/atlas atlas.html

It opens by double click and needs no server, no network and no library. web/model.js is the model, to be read
beside model.py; web/page.js is what one sees. Here the file is put together. Left out: training in the page,
top-k and top-p, patches.
"""

import argparse
import base64
import hashlib
import json
import os
import re
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from .. import atlas
from ..config import shapes
from ..devices import files
from ..run.checkpoint import load_checkpoint
from ..run.cli import as_command, say, user_errors
from ..tables import Tables
from .measure import count, recall

LIMIT = 64e6  # bytes of float16: more than that is no file to send around
MARK = b'<meta name="generator" content="ministem">'  # in every page of ours
WEB = Path(__file__).with_name("web")
LESSONS = Path(__file__).resolve().parents[2] / "lessons"  # in a clone of the repository


def codes(name, x):
    """float32 (...) -> uint16 (...): float16, of whose 10 bits after the point the last two are zero. (With
    them the file is a sixth larger, and no odds of the default model change by 0.2 % without them.)

    Raises ValueError for what float16 cannot hold."""
    with np.errstate(over="ignore"):
        bits = x.astype("float16").view("uint16") + 2 >> 2 << 2
    if not np.isfinite(bits.view("float16")).all():
        raise ValueError(f"{name} has numbers that float16 cannot hold: no page can be made of this model")
    return bits


def as_on_page(run):
    """-> the run with its numbers rounded as in the page, whose answers are then this run's."""

    def rounded(arrays):
        return {name: codes(name, x).view("float16").astype("float32") for name, x in arrays.items()}

    tables = {n: np.concatenate([part for _, part in run.tables.parts(n)]) for n in run.tables.names}
    return replace(run, params=rounded(run.params), tables=Tables(rounded(tables)))


def packed(arrays):
    """[(name, array)] -> text: the low bytes of all codes and then the high ones (like beside like, deflate
    saves a tenth more), deflated, in base64."""
    flat = np.concatenate([codes(name, x).ravel() for name, x in arrays])
    low_then_high = flat.astype("<u2").view("uint8").reshape(-1, 2).T
    return base64.b64encode(zlib.compress(low_then_high.tobytes(), 9)).decode()


def javascript_pattern(pattern):
    """tiktoken's regular expression, for JavaScript with its flag u.

    There \\s is another set, only what has a meaning may be escaped, and no quantifier is possessive. (That
    is about time: in these patterns nothing that follows could use what a quantifier gives back.)"""

    def translated(match):
        escaped, quantifier = match.groups()
        if quantifier:
            return quantifier
        blank = {"s": r"\p{White_Space}", "S": r"\P{White_Space}"}.get(escaped)
        return blank or (match[0] if escaped.isalnum() or escaped in r"^$\.*+?()[]{}|/" else escaped)

    return re.sub(r"\\(.)|([*+?}])\+", translated, pattern, flags=re.DOTALL)


def vocabulary(tokenizer):
    encoding, ids = tokenizer.encoding, range(tokenizer.n_vocab)
    return dict(
        tokens=[base64.b64encode(tokenizer.token_bytes(id)).decode() for id in ids],
        special=sorted(encoding._special_tokens.values()), pattern=javascript_pattern(encoding._pat_str),
    )  # fmt: skip


def of_the_atlas(run):
    """What a page about the atlas has more: names, examples, the share of questions that is answered."""
    germany, japan = dict(old="Spain", now="Germany"), dict(old="Spain", now="Japan")
    currency, too_late = dict(old="capital", now="currency"), germany | dict(layers=[run.config.n_layers - 1])
    prompt = "The capital of Spain is"
    examples = [
        ("Spain says Berlin", prompt, [germany]),
        ("Spain pays in yen", "The currency of Spain is the", [japan]),
        ("Two words at once", prompt, [currency, japan]),
        ("Fails: last layer only", prompt, [too_late]),
        ("Fails: a name never read", prompt, [dict(old="Spain", now="Atlantis")]),
    ]
    stem = [i for i in range(run.config.n_layers) if run.config.ffn_kind(i) != "dense"]
    examples = [e for e in examples if set(e[2][0].get("layers", stem[:1])) & set(stem)]
    return dict(
        about="sentences about 195 countries", prompt=prompt,
        hint="It has read sentences such as “The capital of France is Paris.”, and nothing else.",
        names=[c.name for c in atlas.load()],
        quick=[["Germany", "Japan", "Brazil", "Egypt", "Canada"], list(atlas.ASKED)],
        examples=[dict(label=label, prompt=p, exchanges=exchanges) for label, p, exchanges in examples],
        recall=recall(run, atlas.corpus(run.settings["seed"])[1])[0],
    )  # fmt: skip


def content(run, prompt, lessons):
    """run: as_on_page -> what the page knows besides the weights, for JSON."""
    metrics, data = run.folder / "metrics.jsonl", str(run.settings.get("data"))
    try:
        lines = metrics.read_text("utf-8").splitlines() if metrics.exists() else []
        keys = ("step", "train_loss", "val_loss")
        curve = [[float(line[key]) for key in keys] for line in map(json.loads, lines)]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{metrics} is damaged; without this file, the page has no curve") from None
    page = dict(about=Path(data).name, hint="", names=[], prompt="The", quick=[], examples=[], recall={})
    page |= of_the_atlas(run) if data == "atlas" else {}
    page |= {} if prompt is None else dict(prompt=prompt)
    pages = {path.name[:2]: path.name for path in sorted(LESSONS.glob("[0-9][0-9]_*.md"))}
    return page | dict(
        run=run.folder.name, step=run.step, config=asdict(run.config), count=asdict(count(run.config)),
        shapes=[item for part in shapes(run.config) for item in part.items()], curve=curve,
        vocabulary=vocabulary(run.tokenizer), lessons=lessons and dict(base=lessons, pages=pages),
    )  # fmt: skip


def make(run, prompt=None, lessons=None):
    """A Run -> the page, as text. prompt: what it opens with. lessons: address of the lessons' folder.

    Raises ValueError for a model that is too large, or that float16 cannot hold."""
    total = count(run.config).total
    if 2 * total > LIMIT:
        raise ValueError(
            f"too large for a page: {total:,} numbers are {2 * total / 1e6:.0f} MB in float16, the limit is "
            f"{LIMIT / 1e6:.0f}: make --vocab-size, --dim or --ffn-dim smaller, or have fewer --stem-layers"
        )
    run = as_on_page(run)
    parts = {name: (WEB / name).read_text("utf-8") for name in ("page.css", "model.js", "page.js")}
    for name, part in list(parts.items()):  # the browser runs what has this hash, and nothing else
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        parts["hash of " + name] = f"'sha256-{digest}'"
    arrays = run.params | run.tables.whole
    parts["weights"] = packed([(name, arrays[name]) for part in shapes(run.config) for name in part])
    # in a script element only "<" could end it or begin a comment
    parts["content"] = json.dumps(content(run, prompt, lessons)).replace("<", "\\u003c")
    template = (WEB / "page.html").read_text("utf-8")
    return re.sub(r"\{\{(.+?)\}\}", lambda match: parts[match[1]], template)  # one pass: no part is searched


def main():
    parser = argparse.ArgumentParser(
        prog="python -m ministem.knowledge.page", description=__doc__.splitlines()[0]
    )
    parser.add_argument("run", help="run folder, or one of its step folders")
    parser.add_argument("out", help="the file to write, like atlas.html")
    parser.add_argument("--prompt", help="the text it opens with")
    parser.add_argument("--lessons", metavar="URL", help="address of the lessons, for links to them")
    args = parser.parse_args()
    with user_errors():
        out, lessons = Path(args.out), args.lessons
        if out.is_dir():
            raise ValueError(f"{out} is a folder: give the name of a file, like atlas.html")
        if out.exists() and MARK not in out.read_bytes()[:1000]:
            raise ValueError(f"{out}: there is such a file, and it is no page of ours; give another name")
        if lessons is None and LESSONS.is_dir():
            lessons = Path(os.path.relpath(LESSONS, out.resolve().parent)).as_posix()
        html = make(load_checkpoint(args.run), args.prompt, lessons)
        files.write(out, html.encode())
        say(f"{out}: {len(html.encode()) / 1e6:.1f} MB; open it in a browser")


if __name__ == "__main__":
    as_command(main)
