"""Exercise 02: a tokenizer (easy), the scatter-add, and a step of training (harder).

Test it with: python -m lessons.check 02"""

import numpy as np  # noqa: F401


def number(words):
    """words: a list of strings, N of them -> vocab, ids

    vocab: the different words, sorted. ids (N,) int: where in vocab each of the N words stands."""
    raise NotImplementedError("lesson 02")


def sum_rows(values, slot, n_rows):
    """values (B,T,F) float, slot (B,T) int -> (n_rows,F): row r is the sum of values where slot is r.

    A slot may occur many times, or never."""
    raise NotImplementedError("lesson 02")


def bigram_step(table, x, y, rate):
    """One step of training the table of scores: changes table (V,V) in place, and returns nothing.

    x, y (B,T) int: at each position the token that is there, and the one that came next. The gradient of the
    mean loss comes back to the scores table[x]; it goes home to the rows, times rate, and against it."""
    raise NotImplementedError("lesson 02")
