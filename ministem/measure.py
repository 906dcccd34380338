"""Counting and judging: parameters, FLOPs and memory of a configuration; loss and recall of a model."""

from dataclasses import dataclass

import numpy as np

from .backend import download, upload
from .data import windows_in_order
from .generate import generate
from .model import forward, head_loss_forward, shapes, trunk_forward


@dataclass(frozen=True)
class Count:
    total: int  # all parameters, every table row included
    active: int  # parameters that one token's forward pass uses: of each table a single row
    flops: (
        int  # forward FLOPs per token at a full context, 2 per multiply-add, matrix products only
    )
    train_bytes: int  # float32: parameters, two moments, gradients of what is dense


def count(config):
    """-> Count. A lookup costs no FLOPs; attention at T keys costs 4 T H D per token."""
    dense, tables = shapes(config)
    n_dense = sum(int(np.prod(s)) for s in dense.values())
    n_tables = sum(int(np.prod(s)) for s in tables.values())
    active = n_dense + sum(row for _, row in tables.values())
    products = sum(int(np.prod(s)) for s in dense.values() if len(s) == 2)
    attention = 2 * config.n_layers * config.context * config.dim
    return Count(
        n_dense + n_tables, active, 2 * (products + attention), 16 * n_dense + 12 * n_tables
    )


def evaluate(run, ids, B, limit=None):
    """Mean loss over windows of ids (N,), in nats per token."""
    total, n = 0.0, 0
    for inputs, targets in windows_in_order(ids, B, run.config.context, limit):
        x, _ = trunk_forward(run.params, run.config, run.tables.fetch(inputs))
        loss, _ = head_loss_forward(x, run.params["head"], upload(targets, like=x))
        total, n = total + float(loss) * targets.size, n + targets.size
    return total / n


def answer(run, prompt, max_new_tokens=24):
    """What the model says after `prompt`, up to the end of the sentence (greedy)."""
    text = ""
    ids = run.tokenizer.encode(prompt)
    for token in generate(run.params, run.tables, run.config, ids, max_new_tokens, temperature=0):
        text += run.tokenizer.decode([token])
        if "." in text or "\n" in text:
            break
    return text.split(".")[0].split("\n")[0].strip()


def recall(run, questions, B=64):
    """Ask every question -> {relation: share answered right}, and a list of True/False, one per question.

    Right means the whole answer and its full stop, greedily. That is the case exactly if each of its
    tokens is the likeliest one after the right ones before it, so one pass over the sentence tells."""
    right = [False] * len(questions)
    encoded = []
    for q in questions:
        prompt, ids = run.tokenizer.encode(q.prompt), run.tokenizer.encode(q.text)
        assert ids[: len(prompt)] == prompt, f"{q.prompt!r} and its answer share a token"
        encoded.append((ids, len(prompt)))
    by_length = sorted(range(len(questions)), key=lambda j: len(encoded[j][0]))
    for i in range(0, len(by_length), B):
        group = by_length[i : i + B]
        inputs = np.zeros((len(group), len(encoded[group[-1]][0])), int)  # short ones end in padding,
        for row, j in zip(inputs, group, strict=True):  # which no earlier position can see
            row[: len(encoded[j][0])] = encoded[j][0]
        logits = forward(run.params, run.config, run.tables.fetch(inputs))
        for row, j in zip(download(logits.argmax(-1)), group, strict=True):
            ids, n = encoded[j]
            right[j] = row[n - 1 : len(ids) - 1].tolist() == ids[n:]
    answers = {q.relation: [] for q in questions}
    for q, ok in zip(questions, right, strict=True):
        answers[q.relation].append(ok)
    return {relation: sum(oks) / len(oks) for relation, oks in answers.items()}, right
