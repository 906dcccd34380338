"""Text in, batches of token ids out.

A corpus is a training text and a validation text. The default one is the atlas (atlas.py), whose
validation text is the withheld sentences; a file's is its last tenth. Batches are windows drawn at random
places; the draw depends on the seed and the step alone, so a resumed run sees what it would have seen.
Left out: corpora that do not fit in memory, shuffling by document.
"""

import hashlib
import os
import stat
from dataclasses import dataclass

import numpy as np

from . import atlas

VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Corpus:
    """What a run trains on and is judged by."""

    name: str
    train: str
    val: str
    names: tuple = ()  # strings that the tokenizer keeps whole
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
    """A whole UTF-8 file, character for character: line ends of every kind, NULs and what looks like a
    special token are text like any other; only a leading byte-order mark is dropped.

    Raises ValueError with one line for anything that is not a readable, non-empty UTF-8 text file: other
    encodings, with the first byte that is wrong; folders, pipes and devices (a run that is resumed reads its
    text again, and a pipe has it once)."""
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
    if data.startswith((b"\xff\xfe\0\0", b"\0\0\xfe\xff")):
        raise ValueError(f"{path} is UTF-32; convert it first: iconv -f UTF-32 -t UTF-8")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ValueError(f"{path} is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8")
    if b"\0" in data:  # without a mark, English in UTF-16 is valid UTF-8: every other byte is a NUL
        even, odd = data[::2].count(0), data[1::2].count(0)
        if even + odd >= 8 and (not even or not odd or even + odd > len(data) / 2):
            guess = f"UTF-{32 if even and odd else 16}{'BE' if even > odd else 'LE'}"
            raise ValueError(
                f"{path} has as many NULs as {guess} without a byte-order mark would;"
                f" convert it first: iconv -f {guess} -t UTF-8"
            )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path} is not UTF-8: byte 0x{data[error.start]:02x} at offset {error.start} (line {line});"
            " convert it first, for instance: iconv -f LATIN1 -t UTF-8"
        ) from None
    if not text:
        raise ValueError(f"{path} is empty: there is nothing to learn from")
    return text


def draw_batch(ids, B, T, seed, step):
    """B windows of T+1 tokens from ids (N,), at places drawn from (seed, step) -> inputs, targets (B,T).

    targets[b,t] is the token that follows inputs[b,t]."""
    starts = np.random.default_rng([seed, step]).integers(0, len(ids) - T, B)
    window = ids[starts[:, None] + np.arange(T + 1)]
    return window[:, :-1], window[:, 1:]


def windows_in_order(ids, B, T, limit=None):
    """Cut ids (N,) into windows of T predictions, B at a time -> yields inputs, targets (≤B, T).

    Every token but the first is predicted once; a last, shorter window comes alone. limit: at most about
    this many predictions, from the beginning."""
    n = len(ids) - 1 if limit is None else min(limit, len(ids) - 1)
    whole = n // T
    for i in range(0, whole, B):
        places = T * np.arange(i, min(i + B, whole))[:, None] + np.arange(T)
        yield ids[places], ids[places + 1]
    if n % T and (limit is None or not whole):
        yield ids[None, whole * T : n], ids[None, whole * T + 1 : n + 1]
