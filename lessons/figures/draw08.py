"""Figures of lesson 08: pay only for the rows you touch."""

from lessons.figures.__main__ import DENSE, STEM

FLOATS, U = 128 + 4 * 384, 512  # of a token in all tables of the default model; distinct tokens in a batch
# ms a step: `python benchmarks/vocab.py --threads 1`, the table in README.md
ROWS_MS = {1024: 7.9, 4096: 8.1, 16384: 7.9, 65536: 8.9, 262144: 8.7}
DENSE_MS = {1024: 5.1, 16384: 27, 65536: 264}


def cost_against_vocabulary(fig):
    """What a step costs depends on the rows that it touches: with all rows it grows with the vocabulary, with
    those of the batch it does not."""
    left, right = fig.subplots(1, 2)
    sizes = list(ROWS_MS)
    row = 4 * FLOATS / 1e6  # megabytes of one token's rows; as large are both moments
    rows = [row * U + 6 * row * U for V in sizes]  # fetched, then three of a kind read and written
    dense = [row * U + 6 * row * V for V in sizes]
    left.loglog(sizes, dense, "s-", color=DENSE, label="all rows")
    left.loglog(sizes, rows, "o-", color=STEM, label="rows of the batch")
    left.set(xlabel="vocabulary", ylabel="megabytes touched in a step", title="counted")
    left.legend()
    right.loglog(list(DENSE_MS), list(DENSE_MS.values()), "s-", color=DENSE, label="PyTorch, dense")
    right.loglog(sizes, list(ROWS_MS.values()), "o-", color=STEM, label="ministem")
    right.set(xlabel="vocabulary", ylabel="ms, row work of a step", title="measured", ylim=(1, 1000))
    right.legend()
    for ax in (left, right):
        ax.set_xticks(sizes[::2], [f"{V:,}" for V in sizes[::2]])
        ax.set_xticks([], minor=True)
    return fig
