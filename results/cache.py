"""How many rows would a small, fast cache of the tables have ready? As JSON beside this file.

    python results/cache.py --data input.txt

Hit rates of an LRU and an LFU cache (measures.hit_rate, exact), empty at first, of several sizes, for two
streams of row numbers, on a text's own vocabularies:

    tokens    every token of the text, in order: what is looked up while a text is written or read
    batches   the distinct tokens of each training batch, sorted: what Tables.fetch reads, once a step

All tables of a model are read at the same rows, so the rates are those of each of them. `fixed` is a cache
that holds the most frequent rows of the whole stream from the beginning on, and never changes.
"""

from collections import Counter

import common
import numpy as np
from measures import hit_rate

from ministem import data, train_bpe


def cache(args):
    text, rates = data.read_text(args.data), []
    for V in (2048, 8192):
        tokenizer = train_bpe(text, V)
        ids = np.array(tokenizer.encode(text))
        batches = [np.unique(data.draw_batch(ids, 16, 128, 0, step)[0]) for step in range(args.steps)]
        streams = {"tokens": ids.tolist(), "batches": np.concatenate(batches).tolist()}
        for name, stream in streams.items():
            distinct = len(set(stream))
            about = dict(vocab_size=tokenizer.n_vocab, stream=name, asked=len(stream), distinct=distinct,
                         rows_per_batch=round(len(stream) / args.steps) if name == "batches" else None,
                         best_possible=round(1 - distinct / len(stream), 4))  # fmt: skip
            for size in (V // 64, V // 32, V // 16, V // 8, V // 4, V // 2):
                hits = {policy: hit_rate(stream, size, policy) for policy in ("lru", "lfu")}
                hits["fixed"] = sum(n for _, n in Counter(stream).most_common(size)) / len(stream)
                hits = {policy: round(rate, 4) for policy, rate in hits.items()}
                rates.append(about | dict(size=size, share_of_rows=round(size / V, 4)) | hits)
                print(rates[-1], flush=True)
    paper = "LFU above 80 % (project page); neither cache size nor text is given"
    return dict(characters=len(text), seed=0, paper=paper, rates=rates)


if __name__ == "__main__":
    options = dict(data=("input.txt", "a text file in UTF-8"), steps=(400, "batches of 16 x 128 tokens"))
    common.main(__doc__, dict(cache=cache), **options)
