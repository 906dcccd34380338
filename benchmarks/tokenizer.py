"""How fast is a BPE trainer in plain Python? Ratios to the Rust one of Hugging Face's tokenizers.

    pip install tokenizers
    python benchmarks/tokenizer.py --data tinyshakespeare.txt

Both train a byte-level vocabulary of the same size, in turns, and the middle one of three times
counts. Ratios are what carries over to another machine, seconds do not. Three questions: how many
times slower than Rust are we; does our time grow with the text and no faster; what happens to texts
without spaces. (The cuts differ a little: theirs are GPT-2's, ours come after 64 characters at the
latest. On endless words Rust's time grows with the square of the length, so there it gets 50 KB.)
"""

import argparse
import os
import platform
import random
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # run from a checkout, installed or not

from ministem.tokenizer import merges, train_bpe  # noqa: E402


def rust(text, vocab_size):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>"],
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer.get_vocab_size()


def ours(text, vocab_size):
    return train_bpe(text, vocab_size).n_vocab


def merges_alone(text, vocab_size):
    """All of text as a single word: what the trainer does when nothing cuts the text up."""
    wanted = vocab_size - 257
    return 257 + sum(1 for _, _pair in zip(range(wanted), merges({text: 1}), strict=False))


def medians(functions, *args, runs=3):
    """Seconds for each function, taken in turns, so that a busy moment hits them all."""
    times = [[] for _ in functions]
    for _ in range(runs):
        for function, found in zip(functions, times, strict=True):
            start = time.perf_counter()
            size = function(*args)
            found.append(time.perf_counter() - start)
            assert size <= args[1], (function.__name__, size)
    return [statistics.median(found) for found in times]


def chinese(n):
    """n characters without a space or a stop, some far more frequent than others."""
    rng = random.Random(0)
    return "".join(chr(0x4E00 + int(rng.paretovariate(0.7)) % 3000) for _ in range(n))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", required=True, type=Path, help="a text file in UTF-8")
    parser.add_argument("--vocab", type=int, default=1024, help="tokens (default: 1024)")
    parser.add_argument("--no-rust", action="store_true", help="only our own times")
    args = parser.parse_args()
    packages = ["tiktoken", "regex"] + ["tokenizers"] * (not args.no_rust)
    print(f"python {platform.python_version()},", ", ".join(f"{p} {version(p)}" for p in packages))
    print(f"{os.cpu_count()} cores; {args.vocab} tokens; median of 3\n")
    print(f"{'text':32} {'MB':>5} {'ours s':>8} {'rust s':>8} {'ours/rust':>10}")

    both = [ours] if args.no_rust else [ours, rust]
    text = args.data.read_text(encoding="utf-8")
    shuffled = list(text)
    random.Random(0).shuffle(shuffled)  # letters at random: ten times the text, as many new words
    shuffled = "".join(shuffled)
    runs = {"one letter": "a" * 10**6, "spaces": " " * 10**6, "Chinese": chinese(10**6 // 3)}
    cases = {  # name: text, functions
        args.data.name: (text, both),
        f"{args.data.name} x10": (text * 10, both),
        "its letters shuffled, 1/10": (shuffled[: len(shuffled) // 10], both),
        "its letters shuffled": (shuffled, both),
    }
    for name, run in runs.items():
        cases[f"no gaps: {name}, 1/20"] = run[: len(run) // 20], both
        cases[f"no gaps: {name}"] = run, [ours]
        cases[f"no gaps: {name}, as one word"] = run, [merges_alone]
    seconds = []
    for name, (case, functions) in cases.items():
        found = medians(functions, case, args.vocab)
        report(name, case, *found)
        seconds.append(found[0])
    print(f"\nten times the text: {seconds[1] / seconds[0]:.1f} times the time")
    print(f"ten times the text, in new words: {seconds[3] / seconds[2]:.1f} times the time")

def report(name, text, ours, rust=None):
    megabytes = len(text.encode()) / 1e6
    versus = "" if rust is None else f" {rust:8.3f} {ours / rust:10.1f}"
    print(f"{name:32} {megabytes:5.1f} {ours:8.3f}{versus}", flush=True)


if __name__ == "__main__":
    main()
