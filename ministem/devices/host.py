"""Tables in the host's memory, for a model on a GPU."""

import numpy as np

from ..backend import upload_ints
from ..tables import Tables
from . import gpu


class HostTables(Tables):
    """Tables in the host's memory, and the model on a GPU, which reads and writes their rows there itself.

    prefetch lets it fetch the next batch's rows on a second stream while it computes with this one's. The
    hazard: the step under way will update some of the same rows, and what was fetched is then out of date.
    So those, and only those, are read again when the batch's turn comes."""

    def __init__(self, arrays):
        """arrays: name -> array on the host, which is copied"""
        pairs = {name: gpu.in_host_memory(a) for name, a in arrays.items()}
        super().__init__({name: device for name, (_, device) in pairs.items()})
        self.host = {name: host for name, (host, _) in pairs.items()}
        self.stream, self.ahead = gpu.second_stream(), None  # ahead: what prefetch has begun
        self.now, self.before = np.arange(0), gpu.event()  # the latest batch's rows; all work before it

    def zeros(self):
        return HostTables({name: np.zeros_like(a) for name, a in self.host.items()})

    def __getitem__(self, name):
        """The whole (V,·) array, on the host, when the GPU has nothing left to write there."""
        return self.whole[name]

    @property
    def whole(self):
        gpu.wait()
        return self.host

    def write(self, name, rows, values):
        if isinstance(rows, np.ndarray):  # not an optimiser's step, but an edit of any row
            self.ahead = None
        super().write(name, rows, values)

    def prefetch(self, ids, targets):
        """Begin to fetch what fetch(ids, targets) will want."""
        again = np.flatnonzero(np.isin(np.unique(ids), self.now))
        with self.stream:
            # what came before the batch under way has updated rows, and used memory that we may be given now
            self.stream.wait_event(self.before)
            batch = super().fetch(ids, targets)
            (again,) = upload_ints([again], like=self.arrays["embed"])
            self.ahead = (ids, targets), batch, again, gpu.event()

    def fetch(self, ids, targets=None):
        (wanted, batch, again, done), self.ahead = self.ahead or 4 * (None,), None
        if wanted and np.array_equal(ids, wanted[0]) and np.array_equal(targets, wanted[1]):
            gpu.wait_for(done)
            for name, block in batch.blocks.items():
                block[again] = self.read(name, batch.rows[again])
        else:
            batch = super().fetch(ids, targets)
        self.now, self.before = np.unique(ids), gpu.event()
        return batch
