"""Token-indexed tables: which rows a batch needs, fetching them, and the gradient that has only those rows.

The ids of a batch are known before the model runs, so the rows it will need are known too. That is the
one seam of the whole system: fetch rows -> compute -> update rows. The model never sees a (V,F) table: it
gets a block of U rows and indexes that. Read after model.py. How rows are updated is in optim.py; tables
in files are in devices/disk.py, tables in the host's memory and a model on a GPU in devices/host.py.
"""

from dataclasses import dataclass, replace

import numpy as np

from . import backend

CHUNK = 1024  # rows of a table that are drawn, or walked through, together


@dataclass(frozen=True)
class RowSparse:
    """A gradient of shape (V,·) that is zero except in a few rows: `values[j]` belongs to row `rows[j]`."""

    rows: np.ndarray  # (U,) int, sorted, distinct; on the device that the table is on
    values: np.ndarray  # (U,·)
    shape: tuple[int, int]  # of the table, (V,·)

    def to_dense(self):
        """-> (V,·). For tests and lessons: training never does this."""
        dense = np.zeros_like(self.values, shape=self.shape)
        dense[backend.upload(self.rows, like=dense)] = self.values
        return dense


def check_ids(ids, V):
    """Raises ValueError unless ids are (B,T) tokens of a vocabulary of V. (Used as an index, -1 would be the
    last token, and a GPU wraps whatever is too large around, without a word.)"""
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or not ids.size:
        raise ValueError(f"token ids must be whole numbers of shape (B,T), got {ids.dtype} {ids.shape}")
    if ids.min() < 0 or ids.max() >= V:
        bad = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(f"token id {bad} is outside the vocabulary of {V} tokens")


@dataclass(frozen=True)
class Batch:
    """What the model needs of the tables to process ids (B,T)."""

    rows: np.ndarray  # (U,) int, the distinct ids, sorted; on the device that the tables are on
    slots: dict  # table name -> (B,T) int: position (b,t) reads row slots[name][b,t] of blocks[name]
    blocks: dict  # table name -> (U,·) array on the model's device; row j is that of token rows[j]
    targets: np.ndarray | None = None  # (B,T) int on the model's device, if given to fetch

    def part(self, start, stop):
        """Texts start..stop-1 of the batch. The blocks are shared, so gradients of parts can be added."""
        return replace(self, slots={name: slot[start:stop] for name, slot in self.slots.items()})


class Tables:
    """The model's tables by name: "embed" (V,C), and "layers.{i}.table" (V,F) for each STEM layer."""

    def __init__(self, arrays):
        self.arrays = dict(arrays)

    @property
    def names(self):
        return list(self.arrays)

    def __getitem__(self, name):
        """The whole (V,·) array."""
        return self.arrays[name]

    @property
    def whole(self):
        """{name: (V,·) array}: what there is in memory as a whole."""
        return self.arrays

    def shape(self, name):
        """-> (V, width of a row)"""
        return self.arrays[name].shape

    def zeros(self):
        """-> Tables of the same names and shapes, all zero, living where these do (Adam's moments)."""
        return Tables({name: np.zeros_like(table) for name, table in self.arrays.items()})

    def parts(self, name):
        """Walk through a table -> yields the number of a row, and CHUNK rows from there on (≤CHUNK,·)."""
        for start in range(0, self.shape(name)[0], CHUNK):
            yield start, self[name][start : start + CHUNK]

    def read(self, name, rows):
        """-> (U,·): a copy of these rows, on the model's device."""
        return self.arrays[name][backend.upload(rows, like=self.arrays[name])]

    def write(self, name, rows, values):
        """Put values (U,·) into these rows. `rows` must be distinct."""
        array = self.arrays[name]
        array[backend.upload(rows, like=array)] = backend.upload(values, like=array)

    def prefetch(self, ids, targets):
        """These will be fetched next. Tables that are where the model is have nothing to do ahead."""

    def fetch(self, ids, targets=None):
        """ids (B,T) int -> Batch: each distinct token's row once per table, however often it occurs.

        targets, (B,T) as well, go along: to a GPU there is one upload per step.
        Raises ValueError for an id outside the vocabulary."""
        V, _ = self.shape("embed")
        ids, *targets = [np.asarray(a) for a in (ids, targets) if a is not None]
        for a in (ids, *targets):
            check_ids(a, V)
        if ids.size == 1:  # as when a text is written, token by token: np.unique would take longer
            rows, slot = ids[0].copy(), np.zeros_like(ids)
        else:
            rows, slot = np.unique(ids, return_inverse=True)
        ints = [rows, slot.reshape(ids.shape), *targets]
        rows, slot, *targets = backend.upload_ints(ints, like=self.arrays["embed"])
        blocks = {name: self.read(name, rows) for name in self.arrays}
        return Batch(rows, {name: slot for name in self.arrays}, blocks, *targets)
