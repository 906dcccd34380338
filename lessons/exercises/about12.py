"""How exercise 12 is checked: an edit happens once per STEM layer, at its place, and nowhere else."""

from dataclasses import replace

import numpy as np

from lessons.check import Task, mutant
from lessons.exercises.about11 import what_positions_read
from ministem.knowledge.edit import override, table_names
from ministem.knowledge.naming import recipe
from ministem.tables import Tables

V = 11


def copy_args(rng):
    return dict(how="copy", n_old=5, new=[8, 2, 6], tokenizer=None)


def average_args(rng):
    return dict(how="average", n_old=2, new=[8, 2, 6], tokenizer=None)


def weights(given, tuples):
    """-> (n_old,V): how much of each row a position reads."""
    read = np.zeros((len(tuples), V))
    for position, ids in zip(read, tuples, strict=True):
        np.add.at(position, np.array(ids), 1 / max(1, len(ids)))
    return (read,)


def args(rng):
    C, F = 3, 4
    shapes = {"embed": (V, C), "layers.0.table": (V, F), "layers.2.table": (V, F)}
    tables = Tables({name: rng.standard_normal(shape) for name, shape in shapes.items()})
    batch = tables.fetch(np.array([[9, 2, 9, 9, 4], [4, 7, 9, 1, 2]]))  # token 9 stands there four times
    return dict(batch=batch, tables=tables, edits=[(0, 2, (8,)), (1, 2, (3, 6)), (1, 3, (8,))], layers=None)


def one_layer(rng):
    return args(rng) | dict(layers=[2])


def look(given, new):
    batch, tables, *_ = given
    kept = what_positions_read(batch), tables.arrays.values()
    return *what_positions_read(new), *(np.concatenate([a.reshape(-1) for a in arrays]) for arrays in kept)


def past_the_end(batch, tables, edits, layers=None):
    """Written as a reader would, with the slot one too large."""
    slots, blocks = dict(batch.slots), dict(batch.blocks)
    for name in table_names(tables, layers):
        slots[name] = slots[name].copy()
        for b, t, ids in edits:
            row = tables.read(name, np.array(ids)).mean(0, keepdims=True)
            blocks[name] = np.concatenate([blocks[name], row])
            slots[name][b, t] = len(blocks[name])
    return replace(batch, slots=slots, blocks=blocks)


COPY = "slot = slots[name].copy()"
TASKS = [
    Task(
        solution=recipe,
        args=copy_args,
        look=weights,
        results=("rows that `copy` reads",),
        mutants={
            "where the new name ends, its last token is repeated: it should start again": mutant(
                recipe, "new[i % n]", "new[min(i, n - 1)]"
            ),
            "lined up at the last token: copy begins with the first": mutant(
                recipe, "new[i % n]", "new[(i - n_old) % n]"
            ),
        },
    ),
    Task(
        solution=recipe,
        args=average_args,
        look=weights,
        results=("rows that `average` reads",),
        mutants={
            "the new name was cut to the old one's length before averaging": mutant(
                recipe, "[tuple(new)] * n_old", "[tuple(new[:n_old])] * n_old"
            ),
            "one tuple for each of the n_old positions is due": mutant(
                recipe, "[tuple(new)] * n_old", "[tuple(new)]"
            ),
            "each position reads one token of the new name: this is copy": mutant(
                recipe, "[tuple(new)] * n_old", "[(new[i % n],) for i in range(n_old)]"
            ),
        },
    ),
    Task(
        solution=override,
        args=args,
        look=look,
        results=("embed", "layer 0", "layer 2", "the old batch (to stay)", "the tables (to stay)"),
        mutants={
            "the token embedding was edited as well: it is no STEM table": mutant(
                override, "table_names(tables, layers)", "tables.names"
            ),
            "only the first STEM layer reads the new row": mutant(
                override, "table_names(tables, layers)", "table_names(tables, layers)[:1]"
            ),
            "the slot points one row too far: behind a block of U rows the first new row is row U": (
                past_the_end
            ),
            "rows are added up where their mean should be taken": mutant(override, ".mean(0,", ".sum(0,"),
            "the row in the block was exchanged: every position with that token reads the new one": mutant(
                override,
                COPY,
                "slot = slots[name].copy(); block = block.copy(); "
                "block[slot[b, t]] = np.concatenate(added)[place]",
            ),
            "the new row went into the table: every later prompt would read it": mutant(
                override,
                COPY,
                "slot = slots[name].copy(); "
                "tables.write(name, batch.rows[slot[b, t]], np.concatenate(added)[place])",
            ),
            "the slots were changed in place: all tables of the batch share that array": mutant(
                override, COPY, "slot = slots[name]"
            ),
        },
    ),
    Task(
        solution=override,
        args=one_layer,
        look=look,
        results=("embed", "layer 0", "layer 2", "the old batch (to stay)", "the tables (to stay)"),
        mutants={
            "layers is ignored: only the tables table_names(tables, layers) are to be read otherwise": mutant(
                override, "table_names(tables, layers)", "table_names(tables)"
            ),
        },
    ),
]

HINTS = (
    "recipe is a line each; i % n starts again. override: leave the old rows, and put new ones behind them.",
    "Behind a block of U rows, the first new row is row U. Let the edited position's slot be U, in a copy.",
    "Per table: block = np.concatenate([block, rows.mean(0, keepdims=True)]); slot[b, t] = len(block) - 1.",
)
