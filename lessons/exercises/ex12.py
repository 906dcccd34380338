"""Exercise 12: which rows a name reads, and reading them. Test it with: python -m lessons.check 12"""

from dataclasses import replace  # noqa: F401

import numpy as np  # noqa: F401

from ministem.knowledge.edit import table_names  # noqa: F401


def recipe(how, n_old, new, tokenizer):
    """A name of n_old tokens shall read the rows of another, `new` (ids) -> a list of n_old tuples of ids:
    a position reads the mean of the rows in its tuple.

    how: "copy" (lined up at the first token; where `new` ends, it starts again) or "average" (every position
    reads the mean of all of `new`). No other is asked for, and neither needs the tokenizer."""
    raise NotImplementedError("lesson 12")


def override(batch, tables, edits, layers=None):
    """-> a Batch in which some positions read other rows; `batch` and `tables` stay as they are.

    edits: a list of (b, t, ids): position t of text b reads the mean of the rows `ids` in each of the STEM
    tables table_names(tables, layers). All other positions, and the token embedding, read what they did.

    batch.slots[name] (B,T) int, batch.blocks[name] (U,·): the model will read block[slot] of each table.
    tables.read(name, array of ids) -> their rows. replace(batch, slots=..., blocks=...) -> the new Batch."""
    raise NotImplementedError("lesson 12")
