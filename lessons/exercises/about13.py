"""How exercise 13 is checked: outputs of a small dense model; means of which some positions come later."""

import numpy as np

from lessons.check import Task, mutant
from ministem.config import Config, init_params
from ministem.knowledge.means import outputs, running_means


def model(rng):
    config = Config(11, dim=8, n_layers=2, n_heads=2, ffn_dim=6, context=5, stem_layers=())
    params, tables = init_params(config, 0, "float64")
    for i in (0, 1):  # as after training, when gains are not 1
        params[f"layers.{i}.norm1"], params[f"layers.{i}.norm2"] = rng.uniform(0.5, 2, (2, 8))
    batch = tables.fetch(rng.integers(0, 11, (2, 5)))
    return dict(params=params, config=config, batch=batch, layers=[0, 1], kind="stem")


def positions(rng):
    slot = np.array([[0, 3, 3, 1, 3], [5, 0, 0, 3, 5]])  # rows 2 and 4 are not met, 0, 3 and 5 repeatedly
    seen = np.array([4, 0, 7, 2, 0, 0])  # 4 was never met, and has what the token alone gives
    return dict(rows=rng.standard_normal((6, 4)), seen=seen, xw=rng.standard_normal((2, 5, 4)), slot=slot)


TAKEN, UP = '{"stem": u, "gate": a}[kind]', '@ params[f"layers.{i}.w_up"]'
NEW, MEAN = "sum_rows(xw, slot, len(rows))", "total / np.maximum(after, 1) + (after == 0) * rows"
TASKS = [
    Task(
        solution=outputs,
        args=model,
        look=lambda given, found: tuple(found),
        results=("layer_0", "layer_1"),
        mutants={
            "x is what came before the norm: Wu never sees that": mutant(
                outputs, TAKEN, f"(norm2[0] / norm2[1]) {UP}"
            ),
            "x lacks the gain g of the norm: out = n * g, and the cache begins with n": mutant(
                outputs, TAKEN, f"norm2[0] {UP}"
            ),
            "x is attention's, of norm1: the FFN has a norm of its own": mutant(
                outputs, TAKEN, f"(norm1[0] * norm1[2]) {UP}"
            ),
            "this is x Wg: the gate comes first in the cache": mutant(outputs, TAKEN, "a"),
            "this is the product, silu(x Wg) * (x Wu): the table takes the place of one factor": mutant(
                outputs, TAKEN, "a * s * u"
            ),
        },
    ),
    Task(
        solution=running_means,
        args=positions,
        results=("means",),
        mutants={
            "a count of zero has no mean: rows 2 and 4 are not met and must stay as they are": mutant(
                running_means, MEAN, "np.where(n > 0, total / np.maximum(after, 1), 0)"
            ),
            "a count of zero has no mean: row 4 was never met, and becomes 0": mutant(
                running_means, " + (after == 0) * rows", ""
            ),
            "every batch weighs the same; a mean over many positions must weigh more": mutant(
                running_means, MEAN, f"np.where(n > 0, (rows + {NEW} / np.maximum(n, 1)) / 2, rows)"
            ),
            "the old positions are in the sum but not in the count": mutant(
                running_means, MEAN, "np.where(n > 0, total / np.maximum(n, 1), rows)"
            ),
            "the mean so far counts as one position; it stands for `seen` of them": mutant(
                running_means, "before * rows", "rows"
            ),
            "sum[slot] = xw keeps one of a token's positions": mutant(
                running_means, f"total = before * rows + {NEW}",
                "new = np.zeros_like(rows); new[slot] = xw; total = before * rows + new",
            ),
            "a repeated token is counted once": mutant(running_means, "# (U,1)", "> 0"),
        },
    ),
]  # fmt: skip

HINTS = (
    "outputs: glu_forward kept a = x Wg, its sigmoid, and u = x Wu. Or do x @ w_up yourself.",
    "running_means: a mean over `seen` positions is a sum, once it is multiplied by `seen`. Add the new sum "
    "of each row, and divide by all positions; sum_rows adds up what belongs to a row, ones as well.",
    "Rows without any position, old or new, have no mean: divide by at least 1, and keep those rows.",
)
