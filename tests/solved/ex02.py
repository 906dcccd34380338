"""The exercises, solved as a reader might: only with what the pages teach. Used by test_mine.py."""

import numpy as np


def sum_rows(values, slot, n_rows):
    B, T, F = values.shape
    out = np.zeros((n_rows, F))
    for b in range(B):
        for t in range(T):
            out[slot[b, t]] += values[b, t]
    return out


def number(words):
    vocab = sorted(set(words))
    return vocab, [vocab.index(word) for word in words]


def bigram_step(table, x, y, rate):
    scores = table[x]
    p = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    p[np.arange(table.shape[1]) == y[..., None]] -= 1
    np.add.at(table, x, -rate * p / y.size)
