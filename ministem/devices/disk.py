"""Tables on disk: a row is read into memory when a batch needs it, and the rest of the table never is.

Two kinds of Tables (tables.py), one to train and one to read:

DiskTables   are trained. Their files are sparse: only written rows take disk space. A new table is never
             written out: the CHUNK around a row is drawn (config.initial_rows) when the row is first read.
             Rows are read and written through np.memmap. The files are unlinked temporary files: however the
             program ends, the system removes them; what lasts is in checkpoints. (On Windows
             they are deleted on closing, and may take the room of the whole table from the start.)
SavedTables  are those of a checkpoint, which holds the rows that training has written. All others still have
             their initial values, and are drawn again. Rows can be changed (edit.py), but only in memory:
             the checkpoint stays as it is.

Both give the same numbers as tables in memory, bit for bit. Read after tables.py. Left out: tables on disk
for a model on a GPU; a cache of our own, since the system caches pages in free memory.
"""

import mmap
import os
import tempfile
import threading
import weakref

import numpy as np

from ..config import initial_rows, shapes
from ..tables import CHUNK, Tables
from . import files


class OnDisk(Tables):
    """What both kinds share. seed: for drawing initial rows (None: they are zero, as moments are)."""

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
        """-> the initial values of the rows from `start` (a multiple of CHUNK) on, up to CHUNK of them"""
        if self.seed is not None:
            return initial_rows(self.config, self.seed, name, start)
        V, width = self.shape(name)
        return np.zeros((min(CHUNK, V - start), width), "float32")

    def parts(self, name):
        V = self.shape(name)[0]
        for start in range(0, V, CHUNK):
            yield start, self.read(name, np.arange(start, min(V, start + CHUNK)))


class DiskTables(OnDisk):
    """Tables in unlinked temporary files, in a folder of the file system that is to hold them.

    Trained rows have a file of their own, in the order in which they were first written: frequent rows are
    then neighbours, and few pages of the file change in a step."""

    def __init__(self, folder, config, seed=None):
        self.folder, self.lock, self.files = folder, threading.Lock(), {}
        sizes = shapes(config)[1]
        super().__init__(config, seed, {name: self.map(name, size) for name, size in sizes.items()})
        self.slot = {name: np.full(V, -1, "int32") for name, (V, _) in sizes.items()}  # -1: not trained
        self.filled = dict.fromkeys(sizes, 0)  # slots in use
        self.room = dict.fromkeys(sizes, 0)  # slots that have disk space
        if seed is not None:  # initial rows, in the order of the table; which CHUNKs are drawn
            self.new = {name: self.map("new " + name, size) for name, size in sizes.items()}
            self.made = {name: np.zeros(-(-V // CHUNK), bool) for name, (V, _) in sizes.items()}

    def map(self, name, shape):
        """A new sparse file -> its memory map"""
        with files.named(self.folder):
            self.files[name] = file = tempfile.TemporaryFile(dir=self.folder, buffering=0)
            weakref.finalize(self, file.close)
            file.truncate(4 * shape[0] * shape[1])
            array = np.memmap(file, "float32", "r+", shape=shape)
        if hasattr(mmap, "MADV_RANDOM"):  # or the system reads megabytes around each row
            array.base.madvise(mmap.MADV_RANDOM)
        return array.view(np.ndarray)

    def extend(self, name, start, rows):
        """Write rows into a hole of a file, from its row `start` on.

        Not through its map: there a full disk kills the program (SIGBUS), and here it raises OSError. Once a
        row has disk space, it may be changed through the map."""
        file, data = self.files[name].fileno(), memoryview(rows).cast("B")
        with files.named(self.folder):
            os.lseek(file, start * rows[0].nbytes, os.SEEK_SET)
            while data:
                data = data[os.write(file, data) :]

    def read(self, name, rows):
        slots, out = self.slot[name][rows], np.zeros((len(rows), self.shape(name)[1]), "float32")
        written = slots >= 0
        out[written] = self.arrays[name][slots[written]]
        if self.seed is not None:
            untrained = rows[~written]
            self.make(name, untrained)
            out[~written] = self.new[name][untrained]
        return out

    def write(self, name, rows, values):
        with self.lock:  # the optimizer writes from several threads
            slot, n = self.slot[name], self.filled[name]
            first = rows[slot[rows] < 0]
            need = n + len(first)
            while need > self.room[name]:
                room = self.room[name]  # doubled if that is enough, so that files seldom grow
                more = min(max(need - room, room), CHUNK, len(slot) - room)
                self.extend(name, room, np.zeros((more, values.shape[1]), "float32"))
                self.room[name] += more
            slot[first] = np.arange(n, need)
            self.filled[name] = need
        self.arrays[name][slot[rows]] = values

    def make(self, name, rows):
        """Draw the CHUNKs of these rows that have not been drawn yet."""
        made, chunks = self.made[name], rows // CHUNK
        if made[chunks].all():
            return
        with self.lock:
            for chunk in np.unique(chunks[~made[chunks]]).tolist():
                self.extend("new " + name, chunk * CHUNK, self.initial(name, chunk * CHUNK))
                made[chunk] = True

    def written(self, name):
        """-> (R,): the rows that have been written, sorted. All others have their initial values."""
        return np.flatnonzero(self.slot[name] >= 0)

    def zeros(self):
        return DiskTables(self.folder, self.config)

    def parts(self, name):
        for start in range(0, self.shape(name)[0], CHUNK):  # drawn again: what was never read stays a hole
            slots = self.slot[name][start : start + CHUNK]
            part = self.initial(name, start)
            part[slots >= 0] = self.arrays[name][slots[slots >= 0]]
            yield start, part

    def take(self, tables):
        """Copy the rows of other Tables, on disk or not, that may differ from initial ones. These may have
        tables that those lack."""
        for name in tables.names:
            rows = tables.written(name) if isinstance(tables, OnDisk) else np.arange(self.shape(name)[0])
            for i in range(0, len(rows), CHUNK):
                part = rows[i : i + CHUNK]
                self.write(name, part, tables.read(name, part))
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
        trained = np.zeros(len(rows), bool)
        inside = at < len(saved)
        trained[inside] = saved[at[inside]] == rows[inside]
        out[trained] = self.arrays[name][at[trained]]
        first = rows // CHUNK * CHUNK
        for start in np.unique(first[~trained]).tolist():
            drawn = ~trained & (first == start)
            out[drawn] = self.initial(name, start)[rows[drawn] - start]
        for i, row in enumerate(rows.tolist()) if changed else ():
            out[i] = changed.get(row, out[i])
        if not np.isfinite(out).all():
            raise ValueError(f"{self.folder}: {name} has numbers that are not finite; remove that checkpoint")
        return out

    def write(self, name, rows, values):
        self.changed[name] |= {row: value.copy() for row, value in zip(rows.tolist(), values, strict=True)}

    def written(self, name):
        return np.union1d(self.rows[name], np.array(list(self.changed[name]), "int64"))
