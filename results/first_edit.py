"""The edit of lesson 01, as JSON beside this file: Spain reads the rows of Germany, in four ways.

    python results/first_edit.py

Models are found in runs/edit, or trained (results/edit.py has the settings).
"""

import argparse
import datetime
import importlib.metadata
import json
import platform
import shlex
import sys
from pathlib import Path

import edit as rates
import numpy as np

from ministem import atlas, backend
from ministem.data import load_corpus
from ministem.knowledge import edit, measure

HERE = Path(__file__).resolve().parent
PROMPT = "The capital of {} is"
# what is overridden -> how far from the country's position, and in which layers
WAYS = {
    "the country, all four layers": (0, None),
    "the word before it, all four layers": (-1, None),
    "the country, the last layer only": (0, [3]),
    "the country, the token embedding only": (0, ["embed"]),
}


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--runs", type=Path, default=Path("runs/edit"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    with backend.blas_threads(args.threads):
        seeds = [one(args, seed) for seed in range(args.seeds)]
    record = dict(
        command=shlex.join(["python", "results/first_edit.py", *sys.argv[1:]]),
        date=datetime.date.today().isoformat(),
        versions={p: importlib.metadata.version(p) for p in ("numpy", "scipy", "tiktoken")}
        | {"python": platform.python_version()},
        settings=rates.DEFAULT, seeds=seeds,
    )  # fmt: skip
    (HERE / "first_edit.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


def one(args, seed):
    run = rates.model(args, f"atlas-{seed}", load_corpus("atlas", seed), seed, **rates.DEFAULT)
    capital = {c.name: c.capital for c in atlas.load()}
    pairs = [("Spain", "Germany")]
    pairs += [p for p in rates.some_pairs(capital, 401, seed) if p != pairs[0]][:400]
    texts = [run.tokenizer.encode(PROMPT.format(old)) for old, _ in pairs]
    first = {name: run.tokenizer.encode(f" {answer}")[0] for name, answer in capital.items()}
    found = dict(seed=seed, tokens=[run.tokenizer.shown(id) for id in texts[0]], odds={}, share={})

    def ask(changes, layers):
        """-> top (pairs,): the likeliest next token; odds of the five likeliest for the first pair"""
        top, odds = np.zeros(len(texts), int), None
        for group, logits in measure.batches(run, texts, changes, layers):
            for row, j in zip(logits, group, strict=True):
                last = row[len(texts[j]) - 1].astype("float64")
                top[j] = last.argmax()
                if j == 0:
                    p = np.exp(last - last.max())
                    p /= p.sum()
                    odds = {run.tokenizer.shown(i): float(p[i]) for i in np.argsort(-p)[:5].tolist()}
        return top, odds

    top, found["odds"]["no override"] = ask(None, None)
    # only where the model knows the answer, and the other answer does not begin with the same token
    able = [j for j, (old, new) in enumerate(pairs) if top[j] == first[old] != first[new]]
    for way, (offset, layers) in WAYS.items():
        changes = [
            [(t + offset, rows) for t, rows in edit.plan(run.tokenizer, PROMPT.format(old), [(old, new)])]
            for old, new in pairs
        ]
        top, found["odds"][way] = ask(changes, layers)
        found["share"][way] = dict(
            new=float(np.mean([top[j] == first[pairs[j][1]] for j in able])),
            old=float(np.mean([top[j] == first[pairs[j][0]] for j in able])),
            of=len(able),
        )
    print(json.dumps(found), flush=True)
    return found


if __name__ == "__main__":
    main()
