"""How many rows would a small, fast cache of the tables have ready? As JSON beside this file.

    python results/cache.py --data input.txt

Hit rates of an LRU and an LFU cache (measure.hit_rate, exact), empty at first, of several sizes, for two
streams of row numbers, on a text's own vocabularies:

    tokens    every token of the text, in order: what is looked up while a text is written or read
    batches   the distinct tokens of each training batch, sorted: what Tables.fetch asks for, once a step

All tables of a model are asked for the same rows, so the rates are those of each of them. `fixed` is a cache
that holds the rows asked for most often in the whole stream from the beginning on, and never changes.
"""

import argparse
import datetime
import importlib.metadata
import json
import platform
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from ministem import data, train_bpe  # noqa: E402
from ministem.knowledge import measure  # noqa: E402


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", required=True, help="a text file in UTF-8")
    parser.add_argument("--steps", type=int, default=400, help="training batches, of 16 x 128 tokens")
    args = parser.parse_args()
    start, text = time.perf_counter(), data.read_text(args.data)
    found = []
    for V in (2048, 8192):
        tokenizer = train_bpe(text, V)
        ids = np.array(tokenizer.encode(text))
        batches = [np.unique(data.draw_batch(ids, 16, 128, 0, step)[0]) for step in range(args.steps)]
        streams = {"tokens": ids.tolist(), "batches": np.concatenate(batches).tolist()}
        for name, stream in streams.items():
            distinct = len(set(stream))
            once = dict(vocab_size=tokenizer.n_vocab, stream=name, asked=len(stream), distinct=distinct,
                        rows_per_batch=round(len(stream) / args.steps) if name == "batches" else None,
                        best_possible=round(1 - distinct / len(stream), 4))  # fmt: skip
            for size in (V // 64, V // 32, V // 16, V // 8, V // 4, V // 2):
                rates = {policy: measure.hit_rate(stream, size, policy) for policy in ("lru", "lfu")}
                often = Counter(stream).most_common(size)
                rates["fixed"] = sum(n for _, n in often) / len(stream)
                rates = {policy: round(rate, 4) for policy, rate in rates.items()}
                found.append(once | dict(size=size, share_of_rows=round(size / V, 4)) | rates)
                print(json.dumps(found[-1]), flush=True)
    record = dict(
        command=f"python results/cache.py --data input.txt --steps {args.steps}",
        date=datetime.date.today().isoformat(), seconds=round(time.perf_counter() - start), seed=0,
        versions={p: importlib.metadata.version(p) for p in ("numpy", "tiktoken")}
        | {"python": platform.python_version()},
        characters=len(text), paper="LFU above 80 % (project page); neither cache size nor text is given",
        rates=found,
    )  # fmt: skip
    (HERE / "cache.json").write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
