"""Text in, batches of token ids out.

A corpus is a training text and a validation text. The default is the atlas (atlas.py), whose validation text
is the withheld sentences; of a file it is the last tenth. Batches are windows at random offsets; the draw
depends on the seed and the step alone, so a resumed run sees the same batches.
Left out: corpora that do not fit in memory, shuffling by document.
"""

import codecs
import hashlib
import os
import stat
from collections import Counter
from dataclasses import dataclass
from unicodedata import category

import numpy as np

from . import atlas

VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Corpus:
    """What a run trains on, and is validated on."""

    name: str
    train: str
    val: str
    names: tuple = ()  # strings that become one token each
    questions: tuple = ()  # atlas questions, for recall

    @property
    def hash(self):
        """Hex digest of both texts: a resumed run checks that its corpus is still the same."""
        return hashlib.sha256(f"{len(self.train)}|{self.train}{self.val}".encode()).hexdigest()


def load_corpus(source, seed, whole=False):
    """source: "atlas", or the path of a text file in UTF-8 -> Corpus. Raises ValueError.

    whole: all of a file is to be learned, and judged by; nothing is held out."""
    if source == "atlas":
        train, questions = atlas.corpus(seed)
        val = atlas.val_text(questions)
        return Corpus("atlas", train, val, tuple(atlas.names()), tuple(questions))
    text = read_text(source)
    if whole:
        return Corpus(str(source), text, text)
    cut = int(len(text) * (1 - VALIDATION_SHARE))
    return Corpus(str(source), text[:cut], text[cut:])


def read_text(path):
    """A whole text file, decoded (see there).

    Raises ValueError with one line for anything that is not a readable, non-empty UTF-8 text file; folders,
    pipes and devices, too (a run that is resumed reads its text again, and a pipe has it once)."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISDIR(mode):
            raise ValueError(f"{path} is a folder; --data takes one text file")
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path} is not a regular file; write its text to a file first")
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    text = decode(data, path)
    if not text:
        raise ValueError(f"{path} is empty: there is nothing to learn from")
    return text


def decode(data, source, errors="strict"):
    """UTF-8 bytes -> text, character for character: line ends of every kind, NULs and what looks like a
    special token are text like any other; only a leading byte-order mark is dropped.

    source: where they come from. Raises ValueError with one line for other encodings, with their name or
    with the first byte that is wrong (errors="replace": that becomes U+FFFD)."""
    encoding = other_encoding(data)
    if encoding:
        raise ValueError(f"{source} is {encoding}; convert it first: iconv -f {encoding} -t UTF-8")
    try:
        return data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{source} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start} (line {line});"
            " convert it first, for instance: iconv -f LATIN1 -t UTF-8"
        ) from None


MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def other_encoding(data):
    """-> "UTF-16LE" or the like if that is what these bytes are, else None.

    A byte-order mark settles it. Without one, English in UTF-16 is valid UTF-8 too: every other byte is a
    NUL. So what has NULs is also read as UTF-16, and is that if it makes sense so: hardly any character is a
    control character or unassigned; NULs are as frequent as spaces and line ends make them; and it is not
    valid UTF-8, or most characters are below U+2000. (Letters of UTF-8, in pairs, are Chinese characters.)"""
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            return encoding
    start = data[: 1 << 20]
    if start.count(0) < 8:
        return None
    try:
        data.decode()
        most_are_low = 1 / 2
    except UnicodeDecodeError:
        most_are_low = 0
    for encoding in ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE"):
        try:
            counts = Counter(codecs.getincrementaldecoder(encoding)().decode(start))
        except UnicodeDecodeError:
            continue

        def share(kind, counts=counts):
            return sum(n for c, n in counts.items() if kind(c)) / counts.total()

        if (
            share(lambda c: category(c) in ("Cc", "Cn", "Co") and c not in "\t\n\r\f") < 0.01
            and share(lambda c: ord(c) < 256 or ord(c) % 256 == 0) > 0.005
            and share(lambda c: c < "\u2000") >= most_are_low
        ):
            return encoding
    return None


def argument(text):
    """A command-line argument as the text that was typed.

    In a C locale, with UTF-8 mode switched off, Python makes of each byte that is not ASCII a lone surrogate.
    Here they are decoded. For text alone: names of files have to stay as they are."""
    if not any("\udc80" <= c <= "\udcff" for c in text):
        return text
    return os.fsencode(text).decode("utf-8", "surrogateescape")


def draw_batch(ids, B, T, seed, step):
    """B windows of T+1 tokens from ids (N,), at offsets drawn from (seed, step) -> inputs, targets (B,T).

    targets[b,t] is the token that follows inputs[b,t]."""
    starts = np.random.default_rng([seed, step]).integers(0, len(ids) - T, B)
    window = ids[starts[:, None] + np.arange(T + 1)]
    return window[:, :-1], window[:, 1:]


def windows_in_order(ids, B, T, limit=None):
    """Cut ids (N,) into windows of T predictions, B at a time -> yields inputs, targets (≤B, T).

    Every token but the first is predicted once; a last, shorter window comes alone. limit: at most about
    this many predictions, from the beginning (exactly: see n_predictions)."""
    n = n_predictions(len(ids), T, limit)
    whole = n // T
    for i in range(0, whole, B):
        places = T * np.arange(i, min(i + B, whole))[:, None] + np.arange(T)
        yield ids[places], ids[places + 1]
    if n % T:
        yield ids[None, whole * T : n], ids[None, whole * T + 1 : n + 1]


def n_predictions(n_ids, T, limit=None):
    """How many tokens windows_in_order predicts: all but the first, or the whole windows within the limit."""
    if limit is None or limit >= n_ids - 1:
        return n_ids - 1
    return limit // T * T or limit
