import numpy as np

from ministem.tables import Batch


def fetch(self, ids, targets=None):
    rows, slot = np.unique(ids, return_inverse=True)
    slot = slot.reshape(ids.shape)
    slots = {name: slot for name in self.arrays}
    blocks = {name: self.read(name, rows) for name in self.arrays}
    return Batch(rows, slots, blocks)


def distinct_so_far(ids):
    return [len(set(ids[: n + 1].tolist())) for n in range(len(ids))]


def lru_hits(ids, size):
    cache, hits = {}, 0
    for id in ids:
        hits += id in cache
        cache.pop(id, None)
        cache[id] = True
        if len(cache) > size:
            del cache[next(iter(cache))]
    return hits / len(ids)
