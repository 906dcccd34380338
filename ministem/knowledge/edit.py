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
import hashlib
import json
from collections import namedtuple
from dataclasses import asdict, dataclass, replace

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ..backend import download, upload
from ..devices import files
from ..tables import RowSparse
from .naming import row_changes

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

    "embed" among them adds the token embedding. Edits leave it alone; it is for testing where a fact is read.
    Raises ValueError if a layer has no table."""
    stem = [name for name in tables.names if name != "embed"]
    if layers is None:
        names = stem
    else:
        names = [layer if layer == "embed" else f"layers.{layer}.table" for layer in layers]
    for name in names or ["no table at all"]:
        if name not in tables.names:
            having = ", ".join(name.split(".")[1] for name in stem) or "none"
            raise ValueError(f"nothing to edit in {name}: the layers with a table are {having}")
    return names


def while_generating(tables, edits, layers=None):
    """edits: a list of (t, ids), t a place in the whole text -> the `override` that generate() takes.

    It is called with each batch and the place in the text where that begins, so it finds the position
    whether the prompt comes at once, token by token, or in a window that has moved on."""

    def apply(batch, first):
        T = batch.slots["embed"].shape[1]
        inside = [(0, t - first, ids) for t, ids in edits if first <= t < first + T]
        return override(batch, tables, inside, layers)

    return apply


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


def only_tables(grads, ids=None):
    """Of all gradients those of STEM tables, and of these the rows of `ids` (None: every row).

    What gets no gradient is not touched by the optimiser: the rest of the model stays as it is, bit for bit.
    The token embedding is left out too. We have tried it: ten invented countries taught to the default model
    among 2,000 old sentences were recalled 93 % without it and 90 % with it, alone 81 % and 86 %."""
    of_tables = {}
    for name, grad in grads.items():
        if isinstance(grad, RowSparse) and name != "embed":
            if ids is not None:
                keep = upload(np.flatnonzero(np.isin(download(grad.rows), ids)), grad.values)
                grad = RowSparse(grad.rows[keep], grad.values[keep], grad.shape)
            of_tables[name] = grad
    return of_tables


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
            parts = []
            for (start, old), (_, new) in zip(before.parts(name), after.parts(name), strict=True):
                old, new = (np.ascontiguousarray(download(part)) for part in (old, new))
                bits = f"u{old.itemsize}"  # compared as bits: -0.0 and 0.0 are equal, and not the same bytes
                rows = np.flatnonzero((old.view(bits) != new.view(bits)).any(1))
                parts.append((start + rows, old[rows], new[rows]))
            rows, old, new = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
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
