"""The trained model as a page: one HTML file with weights, vocabulary, code and style in it.

    python -m ministem.knowledge.page runs/atlas atlas.html

It opens by double click and needs no server, no network and no library. web/model.js is the model, to be read
beside model.py, and web/page.js what one sees. Here the file is put together. Left out: training in the page,
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
from ..backend import device_array
from ..config import shapes
from ..devices import files
from ..run.checkpoint import load_checkpoint
from ..run.cli import as_command, say, user_errors
from ..tables import Tables
from .measure import count, recall

LIMIT = 64e6  # bytes of float16: more than that is no file to send around
WEB = Path(__file__).with_name("web")
LESSONS = Path(__file__).resolve().parents[2] / "lessons"  # there in a clone of the repository

# ------------------------------------------------------------------------------------------ weights


def codes(name, x):
    """float32 (...) -> uint16 (...): float16 with 8 of its 10 bits after the point. (The last two would make
    the file a sixth larger, and no odds of ours change by more than 0.2 % without them.)

    Raises ValueError for what float16 cannot hold."""
    with np.errstate(over="ignore"):
        bits = x.astype("float16").view("uint16")
    bits = bits + 2 >> 2 << 2
    if not np.isfinite(bits.view("float16")).all():
        raise ValueError(f"{name} has numbers that float16 cannot hold: no page can be made of this model")
    return bits


def as_on_page(run):
    """-> the run with each number rounded as it is in the page: what the page's answers are compared with."""

    def rounded(name, x):
        return codes(name, x).view("float16").astype("float32")

    tables = {n: np.concatenate([part for _, part in run.tables.parts(n)]) for n in run.tables.names}
    tables = Tables({name: rounded(name, table) for name, table in tables.items()})
    return replace(run, params={n: rounded(n, x) for n, x in run.params.items()}, tables=tables)


def packed(arrays):
    """[(name, array)] -> text: first the low bytes of all codes and then the high ones (what is alike is then
    together, and deflate makes a sixth less of it), deflated, in base64."""
    flat = np.concatenate([codes(name, x).ravel() for name, x in arrays])
    low_then_high = flat.astype("<u2").view("uint8").reshape(-1, 2).T
    return base64.b64encode(zlib.compress(low_then_high.tobytes(), 9)).decode()


# --------------------------------------------------------------------------------------- vocabulary


def javascript_pattern(pattern):
    """tiktoken's regular expression in JavaScript's words (with its flag u).

    \\s is another set there, an escape must be a needed one, and no quantifier is possessive. (That is about
    time. In these patterns it never changes what is found: nothing after it could use what is given back.)"""

    def translated(match):
        escaped, quantifier = match.groups()
        if quantifier:
            return quantifier
        property = {"s": r"\p{White_Space}", "S": r"\P{White_Space}"}.get(escaped)
        return property or (match[0] if escaped.isalnum() or escaped in r"^$\.*+?()[]{}|/" else escaped)

    return re.sub(r"\\(.)|([*+?}])\+", translated, pattern, flags=re.DOTALL)


def vocabulary(tokenizer):
    tokens = [base64.b64encode(tokenizer.token_bytes(id)).decode() for id in range(tokenizer.n_vocab)]
    encoding = tokenizer.encoding
    special = sorted(encoding._special_tokens.values())
    return dict(tokens=tokens, special=special, pattern=javascript_pattern(encoding._pat_str))


# ------------------------------------------------------------------------------------------ content


def of_the_atlas(run):
    """What a page about the atlas has more: its names, questions to begin with, how many are answered."""
    last = run.config.n_layers - 1
    capital, fails = "The capital of Spain is", "Fails: "
    examples = [
        ("Spain reads Germany", capital, [dict(old="Spain", new="Germany")]),
        ("What is paid with there?", "The currency of Spain is the", [dict(old="Spain", new="Japan")]),
        ("Two at once", capital, [dict(old="Spain", new="Japan"), dict(old="capital", new="currency")]),
        (fails + "too late", capital, [dict(old="Spain", new="Germany", layers=[last])]),
        (fails + "a name it never read", capital, [dict(old="Spain", new="Atlantis")]),
    ]  # fmt: skip
    if not run.config.stem_layers or run.config.ffn == "dense":
        examples = []
    elif last not in run.config.stem_layers:
        del examples[3]
    shares, _ = recall(run, atlas.corpus(run.settings["seed"])[1])
    return dict(
        about="sentences about 195 countries", names=[country.name for country in atlas.load()],
        prompt="The capital of Spain is", quick=[["Germany", "Japan", "Brazil", "Egypt", "Canada"], list(atlas.ASKED)], recall=shares,
        examples=[dict(label=label, prompt=p, exchanges=e) for label, p, e in examples],
    )  # fmt: skip


def content(run, prompt=None, lessons=None):
    """run: as_on_page -> what the page knows besides the weights, as a dict for JSON."""
    path, about = run.folder / "metrics.jsonl", Path(str(run.settings.get("data"))).name
    try:
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        curve = [[line[key] for key in ("step", "train_loss", "val_loss")] for line in map(json.loads, lines)]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged; without it a page has no curve, move it away") from None
    page = dict(about=about, names=[], prompt="The", quick=[], examples=[], recall={})
    if run.settings.get("data") == "atlas":
        page |= of_the_atlas(run)
    pages = {path.name[:2]: path.name for path in sorted(LESSONS.glob("[0-9][0-9]_*.md"))}
    return page | dict(
        run=run.folder.name, step=run.step, config=asdict(run.config), count=asdict(count(run.config)), curve=curve,
        shapes=[[name, shape] for part in shapes(run.config) for name, shape in part.items()],
        vocabulary=vocabulary(run.tokenizer), lessons=lessons and dict(base=lessons, pages=pages),
        **({} if prompt is None else dict(prompt=prompt, examples=[])),
    )  # fmt: skip


def make(run, prompt=None, lessons=None):
    """A Run -> the page, as text. lessons: the address of the folder with the lessons, for links to them.

    Raises ValueError for a model that is too large, or that float16 cannot hold."""
    total = count(run.config).total
    if 2 * total > LIMIT:
        raise ValueError(
            f"too large for a page: {total:,} numbers are {2 * total / 1e6:.0f} MB in float16, and the limit is "
            f"{LIMIT / 1e6:.0f}; a model with smaller --vocab-size, --dim, --ffn-dim or fewer --stem-layers fits"
        )
    run = as_on_page(run)
    parts = {name: (WEB / name).read_text("utf-8") for name in ("page.css", "model.js", "page.js")}
    for name, part in parts.copy().items():  # the browser runs what has this hash, and nothing else
        digest = hashlib.sha256(part.encode()).digest()
        parts["hash of " + name] = f"'sha256-{base64.b64encode(digest).decode()}'"
    arrays = run.params | run.tables.whole
    parts["weights"] = packed([(name, arrays[name]) for part in shapes(run.config) for name in part])
    # in a script element only "<" could end it or begin a comment
    parts["content"] = json.dumps(content(run, prompt, lessons)).replace("<", "\\u003c")
    template = (WEB / "page.html").read_text("utf-8")
    return re.sub(r"\{\{(.+?)\}\}", lambda match: parts[match[1]], template)  # in one pass: no part is searched


def main():
    parser = argparse.ArgumentParser(prog="python -m ministem.knowledge.page", description=__doc__.splitlines()[0])
    parser.add_argument("run", help="run folder, or one of its step folders")
    parser.add_argument("out", help="the file to write, like atlas.html")
    parser.add_argument("--prompt", help="the text it opens with (default: a question, of the atlas)")
    parser.add_argument("--lessons", metavar="URL", help="where the page's links to lessons lead (default: lessons/)")
    args = parser.parse_args()
    with user_errors():
        out, lessons = Path(args.out), args.lessons
        if out.is_dir():
            raise ValueError(f"{out} is a folder: give the name of a file, like atlas.html")
        if lessons is None and LESSONS.is_dir():
            lessons = Path(os.path.relpath(LESSONS, out.resolve().parent)).as_posix()
        run = load_checkpoint(args.run, device_array("cpu"))
        files.write(out, make(run, args.prompt, lessons).encode())
        say(f"{out}: {out.stat().st_size / 1e6:.1f} MB; open it in a browser")


if __name__ == "__main__":
    as_command(main)
