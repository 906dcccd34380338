"""Tables on disk: a row comes into memory when a batch needs it, and the rest of the table never does.

Two kinds of Tables (tables.py), for the two things that are done with a model:

DiskTables   are trained. Their files are as long as the tables and empty at first: a file system gives room
             only to what is written. A new table is never written out: the CHUNK around a row is drawn
             (model.initial_rows) when the row is read for the first time. Rows are read through np.memmap
             and written by os.pwrite. The files have no names, so whatever ends the program, the system
             clears them away; what is kept is in checkpoints.
SavedTables  are those of a checkpoint, and hold the rows that training has written, one after the other.
             All others are still what they were drawn as, and are drawn again. Rows can be changed (edit.py),
             but only in memory: the checkpoint stays as it is.

The numbers are those of tables in memory, bit for bit. Read after tables.py. Left out: tables on disk for a
model on a GPU; a cache of our own, since the system keeps the pages that are used in memory that is free.
"""

import mmap
import os
import tempfile
import threading
import weakref

import numpy as np

from .model import initial_rows, shapes
from .tables import CHUNK, Tables

PIECE = 1 << 12  # bytes written at a time


class OnDisk(Tables):
    """What both kinds share. seed: what new rows are drawn from (None: they are zero, as moments are)."""

    def __init__(self, config, seed, arrays):
        super().__init__(arrays)
        self.config, self.seed = config, seed

    def __getitem__(self, name):
        raise ValueError(f"{name} is on disk, where it is read by row: use --tables ram for the whole of it")

    @property
    def whole(self):
        return {}

    def shape(self, name):
        return shapes(self.config)[1][name]

    def initial(self, name, start):
        """-> the rows from `start` (a multiple of CHUNK) on, up to CHUNK of them, as they are untrained"""
        if self.seed is not None:
            return initial_rows(self.config, self.seed, name, start)
        V, width = self.shape(name)
        return np.zeros((min(CHUNK, V - start), width), "float32")

    def parts(self, name):
        V = self.shape(name)[0]
        for start in range(0, V, CHUNK):
            yield start, self.read(name, np.arange(start, min(V, start + CHUNK)))


class DiskTables(OnDisk):
    """Tables in files without a name, in a folder of the file system that is to hold them."""

    def __init__(self, folder, config, seed=None):
        self.folder, self.files, self.lock = folder, {}, threading.Lock()
        arrays, self.made, self.changed = {}, {}, {}
        for name, (V, width) in shapes(config)[1].items():
            self.files[name] = file = tempfile.TemporaryFile(dir=folder, buffering=0)
            weakref.finalize(self, file.close)
            file.truncate(4 * V * width)
            table = np.memmap(file, "float32", "r", shape=(V, width))
            if hasattr(mmap, "MADV_RANDOM"):  # or the system reads megabytes around each row
                table.base.madvise(mmap.MADV_RANDOM)
            arrays[name] = table.view(np.ndarray)
            self.made[name] = np.zeros(-(-V // CHUNK), bool)  # which CHUNKs have been drawn
            self.changed[name] = np.zeros(V, bool)  # which rows have been written since
        super().__init__(config, seed, arrays)

    def read(self, name, rows):
        if self.seed is not None:
            self.make(name, rows)
            return super().read(name, rows)
        there = self.changed[name][rows]  # the rest is zero: no need to look for it in the file
        out = np.zeros((len(rows), self.shape(name)[1]), "float32")
        out[there] = self.arrays[name][rows[there]]
        return out

    def write(self, name, rows, values):
        self.make(name, rows)  # the rows around them
        data, size = memoryview(np.ascontiguousarray(values, "float32")).cast("B"), 4 * values.shape[1]
        starts = np.flatnonzero(np.diff(rows, prepend=-2) != 1)
        stops = np.append(starts[1:], len(rows))
        for i, j, row in zip(starts.tolist(), stops.tolist(), rows[starts].tolist(), strict=True):
            self.put(name, row * size, data[i * size : j * size])  # neighbours in one go
        self.changed[name][rows] = True

    def put(self, name, place, data):
        """Write bytes at a place of the file.

        Not by storing into a mapping of it: there a full disk ends the program without a word (SIGBUS), here
        it raises OSError. And in small PIECES: Linux keeps in memory as one unit what is written at once, and
        the larger that is, the longer it takes to change a row of it."""
        file = self.files[name].fileno()
        try:
            while data:
                n = os.pwrite(file, data[:PIECE], place)
                data, place = data[n:], place + n
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.folder)) from None

    def make(self, name, rows):
        """Draw the CHUNKs in which these rows are, as far as that has not been done."""
        made, chunks = self.made[name], rows // CHUNK
        if self.seed is None or made[chunks].all():
            return  # what a file has never been given reads as zeros
        with self.lock:  # the optimizer writes from several threads
            for chunk in np.unique(chunks[~made[chunks]]).tolist():
                drawn = memoryview(self.initial(name, chunk * CHUNK)).cast("B")
                self.put(name, chunk * CHUNK * 4 * self.shape(name)[1], drawn)
                made[chunk] = True

    def written(self, name):
        """-> (R,): the rows that have been written, sorted. All others are what they were drawn as."""
        return np.flatnonzero(self.changed[name])

    def zeros(self):
        return DiskTables(self.folder, self.config)

    def parts(self, name):
        for start in range(0, self.shape(name)[0], CHUNK):  # what nobody has read yet is drawn, not made
            unmade = self.seed is not None and not self.made[name][start // CHUNK]
            yield start, self.initial(name, start) if unmade else self.arrays[name][start : start + CHUNK]

    def take(self, tables):
        """Write into these the rows of other Tables, on disk or not, that may differ from untrained ones."""
        for name in self.names:
            rows = tables.written(name) if isinstance(tables, OnDisk) else np.arange(self.shape(name)[0])
            for i in range(0, len(rows), CHUNK):
                some = rows[i : i + CHUNK]
                self.write(name, some, tables.read(name, some))
        return self


class SavedTables(OnDisk):
    """Tables of a checkpoint. rows: name -> (R,) sorted ids; arrays: name -> (R,·), mapped files."""

    def __init__(self, config, seed, rows, arrays, folder):
        super().__init__(config, seed, arrays)
        self.rows, self.folder = rows, folder
        self.changed = {name: {} for name in arrays}  # id -> row, in memory alone

    def read(self, name, rows):
        saved, changed, rows = self.rows[name], self.changed[name], np.asarray(rows)
        out = np.empty((len(rows), self.shape(name)[1]), "float32")
        at = np.searchsorted(saved, rows)
        there = np.zeros(len(rows), bool)
        inside = at < len(saved)
        there[inside] = saved[at[inside]] == rows[inside]
        out[there] = self.arrays[name][at[there]]
        first = rows // CHUNK * CHUNK
        for start in np.unique(first[~there]).tolist():
            here = ~there & (first == start)
            out[here] = self.initial(name, start)[rows[here] - start]
        for i, row in enumerate(rows.tolist()) if changed else ():
            out[i] = changed.get(row, out[i])
        if not np.isfinite(out).all():
            raise ValueError(f"{self.folder}: {name} has numbers that are not finite; remove that checkpoint")
        return out

    def write(self, name, rows, values):
        self.changed[name] |= {row: value.copy() for row, value in zip(rows.tolist(), values, strict=True)}

    def written(self, name):
        return np.union1d(self.rows[name], np.array(list(self.changed[name]), "int64"))
