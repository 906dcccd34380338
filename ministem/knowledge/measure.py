"""Measures: parameters, FLOPs and memory of a configuration; loss and recall of a model.

What only experiments need (rates of edits, angles, caches) is in results/measures.py."""

from dataclasses import dataclass

import numpy as np

from ..backend import download
from ..config import shapes
from ..data import windows_in_order
from ..generate import generate
from ..model import forward, head_loss_forward, trunk_forward
from . import edit


@dataclass(frozen=True)
class Count:
    total: int  # all parameters, every table row included
    active: int  # parameters that one token's forward pass uses: of each table a single row
    flops: int  # forward FLOPs per token at a full context, 2 per multiply-add, matrix products only
    train_bytes: int  # float32: parameters, two moments, gradients of what is dense
    table_bytes: int  # of these, the tables and their moments: what --tables disk keeps on disk


def count(config):
    """-> Count. A lookup costs no FLOPs; attention at T keys costs 4 T H D per token."""
    dense, tables = shapes(config)
    n_dense = sum(int(np.prod(s)) for s in dense.values())
    n_tables = sum(int(np.prod(s)) for s in tables.values())
    active = n_dense + sum(row for _, row in tables.values())
    products = sum(int(np.prod(s)) for s in dense.values() if len(s) == 2)
    attention = 2 * config.n_layers * config.context * config.dim
    flops = 2 * (products + attention)
    return Count(n_dense + n_tables, active, flops, 16 * n_dense + 12 * n_tables, 12 * n_tables)




def evaluate(run, ids, B, limit=None):
    """Mean loss over windows of ids (N,), in nats per token."""
    total, n = 0.0, 0
    for inputs, targets in windows_in_order(ids, B, run.config.context, limit):
        batch = run.tables.fetch(inputs, targets)
        x, _ = trunk_forward(run.params, run.config, batch)
        loss, _ = head_loss_forward(x, run.params["head"], batch.targets, grads=False)
        total, n = total + float(loss) * targets.size, n + targets.size
    return total / n



def answer(run, prompt, max_new_tokens=24):
    """The model's continuation of `prompt`, up to the end of the sentence (greedy)."""
    text = ""
    ids = run.tokenizer.encode(prompt)
    for token in generate(run.params, run.tables, run.config, ids, max_new_tokens, temperature=0):
        text += run.tokenizer.decode([token])
        if "." in text or "\n" in text:
            break
    return text.split(".")[0].split("\n")[0].strip()


def recall(run, questions, B=64):
    """Ask every question -> {relation: share answered right}, and a list of True/False, one per question.

    Right means the whole answer and its full stop, decoded greedily: each of its tokens is the likeliest one
    after the right ones before it. So one forward pass over the sentence decides."""
    sentences = [sentence(run.tokenizer, q.prompt, q.answer) for q in questions]
    right = recites(run, sentences, B=B)
    answers = {q.relation: [] for q in questions}
    for q, ok in zip(questions, right, strict=True):
        answers[q.relation].append(ok)
    return {relation: sum(oks) / len(oks) for relation, oks in answers.items()}, right


def sentence(tokenizer, prompt, answer):
    """-> the ids of prompt, answer and full stop, and how many of them belong to the prompt."""
    before, ids = tokenizer.encode(prompt), tokenizer.encode(f"{prompt} {answer}.")
    assert ids[: len(before)] == before, f"{prompt!r} and its answer share a token"
    return ids, len(before)


def batches(run, texts, changes=None, layers=None, B=64):
    """Lists of ids, in batches of similar length -> yields the indices of a batch, and its logits (B,T,V).

    changes: for each text the rows that it reads instead of its own, [(t, ids)] as from naming.plan."""
    by_length = sorted(range(len(texts)), key=lambda j: len(texts[j]))
    for i in range(0, len(by_length), B):
        group = by_length[i : i + B]
        inputs = np.zeros((len(group), len(texts[group[-1]])), int)  # shorter texts end in padding,
        for row, j in zip(inputs, group, strict=True):  # which no earlier position can see
            row[: len(texts[j])] = texts[j]
        batch = run.tables.fetch(inputs)
        if changes:
            edits = [(b, t, ids) for b, j in enumerate(group) for t, ids in changes[j]]
            batch = edit.override(batch, run.tables, edits, layers)
        yield group, forward(run.params, run.config, batch)


def recites(run, sentences, changes=None, layers=None, B=64):
    """sentences: [(ids, length of the prompt)] -> for each, whether greedy decoding completes it so."""
    right = [False] * len(sentences)
    for group, logits in batches(run, [ids for ids, _ in sentences], changes, layers, B):
        for row, j in zip(download(logits.argmax(-1)), group, strict=True):
            ids, n = sentences[j]
            right[j] = row[n - 1 : len(ids) - 1].tolist() == ids[n:]
    return right


def go_on(run, prompts, changes=None, layers=None, max_new_tokens=16):
    """prompts: lists of ids -> the model's continuations, up to the full stop (greedy, all at once)."""
    texts, answers = [list(ids) for ids in prompts], [""] * len(prompts)
    for _ in range(max_new_tokens):
        unfinished = [j for j, text in enumerate(answers) if "." not in text]
        active = [changes[j] for j in unfinished] if changes else None
        for group, logits in batches(run, [texts[j] for j in unfinished], active, layers):
            for row, j in zip(download(logits.argmax(-1)), group, strict=True):
                j = unfinished[j]
                texts[j].append(int(row[len(texts[j]) - 1]))
                answers[j] = run.tokenizer.decode(texts[j][len(prompts[j]) :])
    return answers
