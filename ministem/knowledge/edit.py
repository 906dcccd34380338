"""Knowledge editing: what a model knows about a token sits in table rows, and rows can be exchanged.

An *override* lets some positions of a prompt read other tokens' rows: the word stays "Spain", its STEM
layers read "Germany". Nothing is written anywhere. A *row edit* writes the same choice into the tables, for
every later prompt. A *patch* is the changed rows of a table, old values and new: a row edit is one, and so
is what training only tables leaves behind (train.py --tables-only).

model.py knows nothing of this: it reads row slot[b,t] of a block, and here the slot or the row is another.
Read after tables.py. Left out: finding the one layer or row that matters, as ROME and MEMIT do in dense
models. In a STEM layer the address of a fact is the token's id.
"""

import contextlib
import difflib
import hashlib
import json
import unicodedata
from bisect import bisect_left, bisect_right
from collections import namedtuple
from dataclasses import asdict, dataclass, replace
from itertools import accumulate

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..backend import download, upload
from ..devices import files
from ..tables import RowSparse

# ------------------------------------------------------------------------------------------ overrides


def override(batch, tables, edits, layers=None):
    """-> a Batch in which some positions read other rows. For inference: it has rows without a gradient.

    edits: a list of (b, t, ids). Position t of text b reads the row of the one id, or the mean of the rows of
    several, in the STEM tables of `layers` (None: in all; see table_names). Ids, token embeddings and the
    tables themselves stay as they are: the rows wanted are put behind the block, and slots point there."""
    if not edits:
        return batch
    B, T = batch.slots["embed"].shape
    for b, t, ids in edits:
        if not (0 <= b < B and 0 <= t < T):
            raise ValueError(f"no position {t} in text {b}: the batch has {B} texts of {T} tokens")
        if not len(ids) or min(ids) < 0 or max(ids) >= tables.shape("embed")[0]:
            raise ValueError(f"position {t} cannot read the rows {ids}: they are not in the tables")
    extra = list(dict.fromkeys(tuple(ids) for *_, ids in edits))  # each choice of ids needs one row
    b, t, place = np.array([(b, t, extra.index(tuple(ids))) for b, t, ids in edits]).T
    slots, blocks = dict(batch.slots), dict(batch.blocks)
    for name in table_names(tables, layers):
        block = blocks[name]
        added = [tables.read(name, np.array(ids)).mean(0, keepdims=True) for ids in extra]
        slot = slots[name].copy()
        slot[upload(b, slot), upload(t, slot)] = upload(place + len(block), slot)
        slots[name], blocks[name] = slot, np.concatenate([block, *added])
    return replace(batch, slots=slots, blocks=blocks)


def table_names(tables, layers=None):
    """Which tables an edit is about: those of all STEM layers, or of `layers`, a list of layer numbers.

    "embed" among them adds the token embedding. No edit of ours touches that; it is there to ask where a fact
    is read from. Raises ValueError if a layer has no table."""
    stem = [name for name in tables.names if name != "embed"]
    if layers is None:
        wanted = stem
    else:
        wanted = [layer if layer == "embed" else f"layers.{layer}.table" for layer in layers]
    for name in wanted or ["no table at all"]:
        if name not in tables.names:
            having = ", ".join(name.split(".")[1] for name in stem) or "none"
            raise ValueError(f"nothing to edit in {name}: the layers with a table are {having}")
    return wanted


def while_generating(tables, edits, layers=None):
    """edits: a list of (t, ids), t a place in the whole text -> the `override` that generate() takes.

    It is called with each batch and the place in the text where that begins, so it finds the position
    whether the prompt comes at once, token by token, or in a window that has moved on."""

    def apply(batch, first):
        T = batch.slots["embed"].shape[1]
        inside = [(0, t - first, ids) for t, ids in edits if first <= t < first + T]
        return override(batch, tables, inside, layers)

    return apply


# ------------------------------------------------------------------------------- names in a prompt


def find(tokenizer, prompt, name, every=False):
    """Which tokens of the prompt are the name -> [(start, stop)]: its last occurrence, or every one.

    The space before a word is often a part of its token: " Spain" is the name "Spain". A part of a longer
    word is not the name ("Niger" in "Nigeria"), nor is a part of a longer token.
    Raises ValueError, with the prompt as it was tokenised, if the name cannot be found."""
    ids = tokenizer.encode(prompt)
    tokens = [tokenizer.token_bytes(id) for id in ids]
    text, starts = b"".join(tokens), [0, *accumulate(map(len, tokens))]  # token i: starts[i]..starts[i+1]
    # as the tokenizer reads it: an odd character is then odd in the same way on both sides
    wanted = tokenizer.decode_bytes(tokenizer.encode(name.strip()))
    if not wanted:
        raise ValueError(f"{name!r} is no name to search for")
    spans, there, at = [], False, text.find(wanted)
    while at >= 0:
        there, end = True, at + len(wanted)
        first, stop = bisect_right(starts, at) - 1, bisect_left(starts, end)
        # what else these tokens hold: spaces before it, or a part of a character (tokens are made of bytes,
        # and 日本の may well be [日本 and a third of の][two thirds of の])
        more = text[starts[first] : at].strip(), text[end : starts[stop]]
        whole = not any(part.decode(errors="ignore") for part in more) and not in_a_word(text, at, end)
        if whole and not (every and spans and first < spans[-1][1]):  # "aa" is in "aaa" once, not twice
            spans.append((first, stop))
        at = text.find(wanted, at + 1)
    if not spans:
        how = "stands in the prompt only inside a longer word or token" if there else "is not in the prompt"
        more = "..." if len(ids) > 40 else ""
        raise ValueError(f"{name!r} {how}, whose tokens are: {more}{shown(tokenizer, ids[-40:])}")
    return spans if every else spans[-1:]


def in_a_word(text, start, end):
    """Whether text[start:end] (all in bytes) goes on as a word on either side.

    Where there is upper and lower case, words have spaces between them. Where there is not, in 日本の首都,
    nobody knows without a dictionary: there the borders of tokens have to do."""

    def letter(c):
        return c.isdigit() or c.lower() != c.upper()

    around = text[max(0, start - 4) : start], text[end : end + 4]  # a character has at most four bytes
    before, after = (part.decode(errors="ignore") for part in around)
    name = text[start:end].decode(errors="ignore")
    if after and unicodedata.category(after[0])[0] == "M":  # an accent that belongs to the last letter
        return True
    return any(a and b and letter(a[-1]) and letter(b[0]) for a, b in ((before, name), (name, after)))


def spelling(tokenizer, name, space=None):
    """name -> ids, with a space before it or without.

    None: as it is likeliest to stand in a text, with a space if that becomes a part of its first token. (It
    does not where words are written without spaces.)"""
    with_space, without = (tokenizer.encode(before + name.strip()) for before in (" ", ""))
    if not without:
        raise ValueError(f"{name!r} is no name")
    if space is None:
        space = bool(tokenizer.token_bytes(with_space[0]).strip())
    return with_space if space else without


def spelling_at(tokenizer, ids, start, name):
    """name -> ids, as it would be spelled at place `start` of ids: with a space, if there is one."""
    before = tokenizer.decode_bytes(ids[:start])[-1:], tokenizer.token_bytes(ids[start])[:1]
    return spelling(tokenizer, name, space=None if any(c.isspace() for c in before) else False)


HOW = ("auto", "one-to-one", "align-end", "copy", "pad", "subset", "average")


def recipe(how, n_old, new, tokenizer):
    """A name of n_old tokens shall read the rows of another, `new` (ids) -> a tuple of ids for each token.

    one-to-one  token by token; refuses names of different lengths. Where lengths are equal, all others but
                average do the same
    align-end   lined up at the last token: a longer name loses its front, a shorter one repeats its first
    copy        lined up at the first token: a longer one loses its end, a shorter one starts again
    pad         as align-end, but the front is filled with <|endoftext|>. Most texts never contain that, and
                then its row is as small as at initialisation: the layer adds next to nothing
    subset      of a longer name, the tokens with the longest spelling, in their order; else as align-end.
                (The paper keeps "the most representative" tokens and names no rule)
    average     each token reads the mean of all rows
    auto        subset: of 400 pairs with names of 2 to 5 tokens it changed 69 % of the answers, align-end 68,
                copy 66, pad 64, average 38 (results/edit_names.json: means of three seeds, up to 10 apart)"""
    n = len(new)
    if how not in HOW:
        raise ValueError(f"no way {how!r} to handle names: choose from {', '.join(HOW)}")
    if how == "one-to-one" and n != n_old:
        raise ValueError(f"one-to-one needs names of one length; these have {n_old} and {n} tokens")
    if how == "average":
        return [tuple(new)] * n_old
    if how == "copy":
        return [(new[i % n],) for i in range(n_old)]
    if how in ("auto", "subset") and n > n_old:
        longest = sorted(range(n), key=lambda i: -len(tokenizer.token_bytes(new[i])))[:n_old]
        return [(new[i],) for i in sorted(longest)]
    front = tokenizer.eot if how == "pad" else new[0]
    return [(id,) for id in ([front] * (n_old - n) + list(new))[-n_old:]]


def plan(tokenizer, prompt, pairs, how="auto", every=False):
    """pairs: [("Spain", "Germany"), ...] -> [(t, ids)]: which place in the prompt shall read whose rows.

    The new name is spelled as it would be in the old one's place."""
    edits, ids = {}, tokenizer.encode(prompt)
    for old, new in pairs:
        for start, stop in find(tokenizer, prompt, old, every):
            spelled = spelling_at(tokenizer, ids, start, new)
            for t, row in enumerate(recipe(how, stop - start, spelled, tokenizer), start):
                if t in edits:
                    raise ValueError(f"two edits want to change the same token of {old!r}")
                edits[t] = row
    return sorted(edits.items())


# ------------------------------------------------------------------------------ saying what is read


def notes(tokenizer, prompt, pairs, how="auto", every=False, rows=False, first=0):
    """What an edit will do, as lines for its user: which rows are read in whose place, and what may not be
    what was meant (names that fall into pieces, rows that the prompt does not read).

    pairs, how, every: as for plan. rows: it is for edit_rows. first: the first place that the model sees."""
    lines, ids = [], tokenizer.encode(prompt)

    def those_of(reads):
        return ("the mean of " if len(reads) > 1 else "") + shown(tokenizer, reads)

    for t, reads in [] if rows else plan(tokenizer, prompt, pairs, how, every):
        gone = "" if t >= first else ", but the model sees only what comes later"
        lines.append(f"token {t} {shown(tokenizer, [ids[t]])} reads the rows of {those_of(reads)}{gone}")
    for old, new in pairs:
        if not rows:
            for start, _ in find(tokenizer, prompt, old, every):
                lines += in_pieces(tokenizer, new, spelling_at(tokenizer, ids, start, new))
            continue
        old_ids = spelling(tokenizer, old)
        for row, reads in row_changes(tokenizer, old, new, how).items():
            lines.append(f"the rows of {shown(tokenizer, [row])} become those of {those_of(reads)}")
        lines += in_pieces(tokenizer, old, old_ids) + in_pieces(tokenizer, new, spelling(tokenizer, new))
        if not any(ids[i : i + len(old_ids)] == old_ids for i in range(len(ids))):
            try:
                start, stop = find(tokenizer, prompt, old)[0]
                why = f"has {old!r} as {shown(tokenizer, ids[start:stop])}, without a space before it"
            except ValueError:
                why = f"has no {old!r}"
            lines.append(f"the prompt does not read the rows of {shown(tokenizer, old_ids)}: it {why}")
    return list(dict.fromkeys(lines))


def in_pieces(tokenizer, name, ids):
    """-> [] if ids, the name as it is read or written, are one token; else [a warning, a line]."""
    if len(ids) == 1:
        return []
    if len(spelling(tokenizer, name, space=True)) == 1:
        return [f"{name!r} is one token only with a space before it; here it is {shown(tokenizer, ids)}"]
    known = ", ".join(names_like(tokenizer, name))
    known = known and f"; tokens like it: {known}"
    return [f"{name!r} is no token but {shown(tokenizer, ids)}, pieces that other words have too{known}"]


def names_like(tokenizer, name, n=3):
    """-> up to n words or names that are one token, the likest first: for "USA" those with such initials,
    like "United States", else by difflib's ratio."""
    tokens = [tokenizer.token_bytes(id).decode(errors="ignore") for id in range(tokenizer.n_vocab)]
    words = {t[1:].casefold(): t[1:] for t in tokens if t[:1] == " " and t[1:2].isalpha() and len(t) > 3}
    short = name.replace(".", "")
    if short.isupper():
        initials = {word: "".join(filter(str.isupper, word)) for word in words.values() if " " in word}
        if found := [word for word, upper in initials.items() if len(upper) > 1 and short.startswith(upper)]:
            return found[:n]
    return [words[word] for word in difflib.get_close_matches(name.strip().casefold(), words, n)]


def shown(tokenizer, ids):
    """Tokens as text that can be printed, each in brackets: [ Sp][ain]"""
    return "".join(f"[{tokenizer.shown(id)}]" for id in ids)


# ----------------------------------------------------------------------------- row edits and patches


def edit_rows(tables, tokenizer, old, new, how="auto", layers=None):
    """The rows of the name `new` into those of `old`, for every later prompt -> a Patch, not yet applied.

    A token of `old` that other names have too changes for them as well; one that `old` has twice gets what
    its last place would read."""
    names = table_names(tables, layers)
    reads = row_changes(tokenizer, old, new, how)
    rows = np.array(sorted(reads))
    changes = {}
    for name in names:
        values = [download(tables.read(name, np.array(reads[row])).mean(0)) for row in rows]
        changes[name] = (rows, download(tables.read(name, rows)), np.stack(values))
    return Patch(changes, vocabulary=tokenizer.hash)


def row_changes(tokenizer, old, new, how="auto"):
    """-> {row: ids}: what edit_rows writes into which rows, those of one id or the mean of several"""
    ids = spelling(tokenizer, old)
    return dict(zip(ids, recipe(how, len(ids), spelling(tokenizer, new), tokenizer), strict=True))


def only_tables(grads, ids=None):
    """Of all gradients those of STEM tables, and of these the rows of `ids` (None: every row).

    What gets no gradient is not touched by the optimiser: the rest of the model stays as it is, bit for bit.
    The token embedding is left out too. We have tried it: ten invented countries taught to the default model
    among 2,000 old sentences were recalled 93 % without it and 90 % with it, alone 81 % and 86 %."""
    kept = {}
    for name, grad in grads.items():
        if isinstance(grad, RowSparse) and name != "embed":
            if ids is not None:
                keep = upload(np.flatnonzero(np.isin(download(grad.rows), ids)), grad.values)
                grad = RowSparse(grad.rows[keep], grad.values[keep], grad.shape)
            kept[name] = grad
    return kept


def fingerprint(run):
    """What a patch fits: hashes of the vocabulary and of the base, which is configuration and dense weights.

    The tables are no part of it: patches on different rows may be applied one after the other."""
    base = hashlib.sha256(json.dumps(asdict(run.config), sort_keys=True).encode())
    for name in sorted(run.params):
        base.update(name.encode() + download(run.params[name]).tobytes())
    return dict(vocabulary=run.tokenizer.hash, base=base.hexdigest())


OLD, NEW = 1, 2  # where a Patch's changes have the old rows, and the new ones
Moved = namedtuple("Moved", "id token bytes distance")  # distance {table name: how far its row moved}


@dataclass(frozen=True)
class Patch:
    """Changed rows: old values and new ones. What it is for is told by the hashes of fingerprint()."""

    changes: dict  # table name -> rows (U,), old (U,·), new (U,·): on the host, rows sorted
    vocabulary: str = ""  # "": any
    base: str = ""

    @classmethod
    def between(cls, before, after, vocabulary="", base=""):
        """Tables, Tables -> the Patch that makes the first into the second."""
        if {n: before.shape(n) for n in before.names} != {n: after.shape(n) for n in after.names}:
            raise ValueError("the two models have different tables: there is no patch between them")
        changes = {}
        for name in before.names:
            found = []
            for (start, old), (_, new) in zip(before.parts(name), after.parts(name), strict=True):
                old, new = (np.ascontiguousarray(download(part)) for part in (old, new))
                bits = f"u{old.itemsize}"  # compared as bits: -0.0 and 0.0 are equal, and not the same bytes
                rows = np.flatnonzero((old.view(bits) != new.view(bits)).any(1))
                found.append((start + rows, old[rows], new[rows]))
            rows, old, new = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
            if len(rows):
                changes[name] = rows, old, new
        return cls(changes, vocabulary, base)

    @property
    def nbytes(self):
        return sum(a.nbytes for change in self.changes.values() for a in change)

    def check(self, run):
        """Raises ValueError if this patch was made for another vocabulary or another base model."""
        for what, hash in fingerprint(run).items():
            made_for = getattr(self, what)
            if made_for not in ("", hash):
                called = dict(vocabulary="vocabulary", base="base model (shape and dense weights)")[what]
                raise ValueError(
                    f"the patch is for another {called}: made for {made_for[:8]}, {run.folder} has {hash[:8]}"
                )

    def apply(self, tables):
        """Old rows become new ones. ValueError, and nothing is changed, if the tables hold other ones."""
        self._check(tables, OLD, "applied")
        self._write(tables, NEW)

    def revert(self, tables):
        """New rows become old ones, byte for byte. ValueError, and no change, if the new are not there."""
        self._check(tables, NEW, "reverted")
        self._write(tables, OLD)

    def _check(self, tables, expected, verb):
        """Raises ValueError if the tables do not hold the expected rows (OLD or NEW) of all changes."""
        for name, change in self.changes.items():
            rows, values = change[0], change[expected]
            if name not in tables.names or values.shape[1:] != tables.shape(name)[1:]:
                raise ValueError(f"the patch cannot be {verb}: {name} is not a table of this model")
            if rows[-1] >= tables.shape(name)[0]:
                raise ValueError(f"the patch cannot be {verb}: {name} has no row {rows[-1]}")
            now = download(tables.read(name, rows))
            differ = [row for row, a, b in zip(rows, now, values, strict=True) if a.tobytes() != b.tobytes()]
            if differ:
                state = "old" if expected == OLD else "new"
                raise ValueError(
                    f"the patch cannot be {verb}: row {differ[0]} of {name} is not its {state} one; "
                    f"was something else applied in between, or this one already?"
                )

    def _write(self, tables, which):
        for name, change in self.changes.items():
            now = tables.read(name, change[0])  # tells the device
            tables.write(name, change[0], upload(change[which], like=now))

    def describe(self, tokenizer):
        """-> [Moved], a token each: what is kept of it, and how far its rows move. The farthest first."""
        moved = {}
        for name, (rows, old, new) in self.changes.items():
            for row, distance in zip(rows.tolist(), np.linalg.norm(new - old, axis=1), strict=True):
                moved.setdefault(row, {})[name] = float(distance)
        size = {name: old[0].nbytes + new[0].nbytes + 8 for name, (_, old, new) in self.changes.items()}
        tokens = [Moved(row, tokenizer.shown(row), sum(size[n] for n in d), d) for row, d in moved.items()]
        return sorted(tokens, key=lambda m: -sum(m.distance.values()))

    def save(self, path):
        """Write a .safetensors file. A crash leaves the old file or the new one, never half of one."""
        arrays = {}
        for name, change in self.changes.items():
            arrays |= {f"{name}/{part}": a for part, a in zip(("rows", "old", "new"), change, strict=True)}
        # one entry, since safetensors writes several in any order, and equal patches should be equal files
        about = {"ministem patch 1": json.dumps([self.vocabulary, self.base])}
        files.write(path, save(arrays, about))

    @classmethod
    def load(cls, path):
        """Read what save wrote. Raises ValueError for a file that is damaged or something else."""
        open(path, "rb").close()  # so that a file that is not there is told apart from one that is damaged
        try:
            with safe_open(path, "numpy") as file:
                about = file.metadata() or {}
                arrays = {key: file.get_tensor(key) for key in file.keys()}
        except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path} is damaged, or no patch: {error}") from None
        try:
            vocabulary, base = json.loads(about["ministem patch 1"])
        except (KeyError, ValueError, TypeError):
            raise ValueError(f"{path} is no patch; train.py --save-patch makes them") from None
        changes, names = {}, sorted({key.rpartition("/")[0] for key in arrays})
        for name in names:
            rows, old, new = change = [arrays.get(f"{name}/{part}") for part in ("rows", "old", "new")]
            whole = all(a is not None and a.size for a in change) and old.dtype == new.dtype == "float32"
            whole = whole and rows.ndim == 1 and old.ndim == 2 and old.shape == new.shape
            whole = whole and len(old) == len(rows) and rows.dtype == "int64" and rows[0] >= 0
            if not (whole and (np.diff(rows) > 0).all()):
                raise ValueError(f"{path} is damaged: what it says about {name} does not fit together")
            if not (np.isfinite(old).all() and np.isfinite(new).all()):
                raise ValueError(f"{path}: {name} has numbers that are not finite; it cannot be applied")
            changes[name] = rows, old, new
        return cls(changes, vocabulary, base)


def apply_patches(run, paths):
    """Files of Patch.save, in order, into the tables of a run. ValueError: one does not fit."""
    for patch in map(Patch.load, paths):
        patch.check(run)
        patch.apply(run.tables)


@contextlib.contextmanager
def applied(patches, tables):
    """Inside, the patches are applied, in order. At the end the old rows are back, the last patch's first,
    whatever happens: an error, or an interrupt while a patch is being applied."""
    with contextlib.ExitStack() as undo:
        for patch in patches:
            patch._check(tables, OLD, "applied")
            undo.callback(patch._write, tables, OLD)
            patch._write(tables, NEW)
        yield
