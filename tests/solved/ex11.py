import numpy as np

from ministem.tables import Batch


def fetch(self, ids, targets=None):
    rows, slot = np.unique(ids, return_inverse=True)
    slot = slot.reshape(ids.shape)
    slots = {name: slot for name in self.arrays}
    blocks = {name: self.read(name, rows) for name in self.arrays}
    return Batch(rows, slots, blocks)
