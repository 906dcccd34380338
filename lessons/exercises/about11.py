"""How exercise 11 is checked: what a position reads is bit for bit its row, and no byte too many is read."""

import numpy as np

from lessons.check import Task, mutant
from ministem.tables import Tables
from results.measures import hit_rate


class Counted(Tables):
    """Tables that count the bytes which `read` brings."""

    bytes_read = 0

    def read(self, name, rows):
        values = super().read(name, rows)
        self.bytes_read += values.nbytes
        return values


def args(rng):
    V, C, F = 11, 3, 4
    arrays = {"embed": rng.standard_normal((V, C)), "layers.0.table": rng.standard_normal((V, F))}
    ids = np.array([[9, 2, 9, 9, 4], [4, 7, 9, 1, 2]])  # 5 distinct tokens, three of them in both texts
    return dict(self=Counted(arrays), ids=ids)


def what_positions_read(batch):
    """-> [(B,T,·)], block[slot] of each table; zeros where a slot points outside of its block"""
    read = []
    for name, block in batch.blocks.items():
        if block.ndim != 2:
            raise ValueError(f"block of {name} has shape {block.shape}, expected (U,·): row j for rows[j]")
        slot = np.asarray(batch.slots[name])
        inside = (slot >= 0) & (slot < len(block))
        read.append(np.where(inside[..., None], block[np.where(inside, slot, 0)], 0))
    return read


def look(given, batch):
    tables, ids = given
    rows = np.full(ids.size, -1)  # filled up with -1, so that lists of any length can be compared
    rows[: len(batch.rows)] = batch.rows[: ids.size]
    return rows, *what_positions_read(batch), tables.bytes_read


def distinct_so_far(ids):
    new = np.zeros(len(ids), int)
    new[np.unique(ids, return_index=True)[1]] = 1
    return new.cumsum()


def lru_hits(ids, size):
    return hit_rate(ids, size, "lru")


def fifo(ids, size):
    cache, hits = [], 0
    for id in ids:
        hits += id in cache
        if id not in cache:
            cache = [*cache, id][-size:]
    return hits / len(ids)


UNIQUE = "rows, slot = np.unique(ids, return_inverse=True)"
TASKS = [
    Task(
        solution=distinct_so_far,
        args=lambda rng: dict(ids=np.array([9, 2, 9, 9, 4, 4, 7, 2])),
        results=("out",),
        mutants={
            "repeats count as well: that is the length": lambda ids: np.arange(1, len(ids) + 1),
            "this is how many there are in the end, and each beginning has its own number": (
                lambda ids: np.full(len(ids), len(set(ids.tolist())))
            ),
            "entry L-1 is for the first L tokens, and here the L-th is not counted": (
                lambda ids: np.array([len(set(ids[:n].tolist())) for n in range(len(ids))])
            ),
        },
    ),
    Task(
        solution=Tables.fetch,
        args=args,
        look=look,
        results=("rows (-1: none)", "embed[ids]", "table[ids]", "bytes read"),
        causes=("rows (-1: none)", "embed[ids]", "table[ids]", "bytes read"),
        mutants={
            "every position fetches its own row: repeated tokens are fetched again and again": mutant(
                Tables.fetch, UNIQUE, "rows, slot = ids.reshape(-1), np.arange(ids.size)"
            ),
            "repeats are found within each text, but two texts of a batch share tokens too": mutant(
                Tables.fetch,
                UNIQUE,
                "parts = [np.unique(text) for text in ids]; rows = np.concatenate(parts); "
                "starts = np.cumsum([0] + [len(part) for part in parts[:-1]]); slot = np.stack("
                "[start + np.searchsorted(*pair) for start, pair in zip(starts, zip(parts, ids))])",
            ),
            "the whole table is read, and the rows are picked from it afterwards": mutant(
                Tables.fetch, "self.read(name, rows) for", "self.read(name, np.arange(V))[rows] for"
            ),
            "blocks and slots are of different order: row j of a block is that of token rows[j]": mutant(
                Tables.fetch, "self.read(name, rows) for", "self.read(name, rows[::-1]) for"
            ),
            "slots are the ids themselves: they are places in the table, not in the block": mutant(
                Tables.fetch, UNIQUE, "rows = np.unique(ids); slot = ids"
            ),
            "rows come in the order in which tokens first occur; the optimizer wants them sorted": mutant(
                Tables.fetch,
                UNIQUE,
                "rows = np.array(list(dict.fromkeys(ids.flat))); "
                "slot = np.argsort(rows)[np.searchsorted(np.sort(rows), ids)]",
            ),
        },
    ),
    Task(
        solution=lru_hits,
        args=lambda rng: dict(ids=(rng.integers(0, 40, 300) ** 2 // 60).tolist(), size=6),
        results=("share of hits",),
        mutants={
            "the row goes out that came in first; a hit makes a row the youngest again": fifo,
            "the cache has one row too many": lambda ids, size: lru_hits(ids, size + 1),
            "the cache has one row too few": lambda ids, size: lru_hits(ids, size - 1),
            "this is a number of hits, and the share was asked for": (
                lambda ids, size: lru_hits(ids, size) * len(ids)
            ),
            "this is the share of misses": lambda ids, size: 1 - lru_hits(ids, size),
        },
    ),
]

HINTS = (
    "The distinct ids are np.unique(ids). What else do you need to know about each of the B*T positions?",
    "np.unique(ids, return_inverse=True) also says where each position's id stands among the distinct ones.",
    "That inverse is the slot, the same one for every table, in the shape of ids. A block is one `read`. "
    "lru_hits: a dict keeps the order in which keys came in; pop and put back makes a key the youngest.",
)
