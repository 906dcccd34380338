"""Let a trained model write.

    python sample.py                                        the newest run goes on from an empty line
    python sample.py --prompt "The capital of Spain is"     ... from your words
    echo "Once upon" | python sample.py --prompt -          ... from standard input

The text goes to stdout, everything else to stderr.
"""

import argparse
import sys

from ministem.cli import say, user_errors
from train import number, whole


def main():
    with user_errors():
        args = parse_arguments()
        prompt = read_prompt(args.prompt)

        from ministem import backend, checkpoint
        from ministem.generate import generate
        from ministem.tokenizer import StreamDecoder

        like = backend.device_array(args.device)
        model = checkpoint.load_checkpoint(args.run or checkpoint.newest_run(), like)
        say(f"{model.run}, step {model.step}")
        ids = model.tokenizer.encode(prompt)
        if len(ids) > model.config.context:
            say(f"the prompt has {len(ids)} tokens; the model sees the last {model.config.context}")
        for i in range(args.samples):
            decoder = StreamDecoder(model.tokenizer)
            print(prompt, end="", flush=True)
            tokens = generate(
                model.params, model.tables, model.config, ids, args.tokens,
                args.temperature, args.top_k, args.top_p, args.seed + i,
            )  # fmt: skip
            for token in tokens:
                print(decoder.feed([token]), end="", flush=True)
            print(decoder.flush())
            if i + 1 < args.samples:
                print("---")


def parse_arguments():
    parser = argparse.ArgumentParser(description="Let a trained model write.")
    parser.add_argument(
        "--prompt",
        default="\n",
        help="text to go on from, or - for standard input (default: an empty line)",
    )
    parser.add_argument(
        "--run", help="run folder, or one of its step folders (default: the newest in runs/)"
    )
    parser.add_argument(
        "--tokens", type=whole(0), default=100, help="how many to add (default: %(default)s)"
    )
    parser.add_argument(
        "--samples", type=whole(1), default=1, help="how many texts (default: %(default)s)"
    )
    parser.add_argument(
        "--temperature",
        type=number(0),
        default=0.8,
        help="0: always the likeliest (default: %(default)s)",
    )
    parser.add_argument("--top-k", type=whole(1), help="choose among the k likeliest tokens")
    parser.add_argument(
        "--top-p",
        type=number(0, exclusive=True),
        help="choose among the likeliest, up to this probability",
    )
    parser.add_argument(
        "--seed", type=whole(0), default=0, help="same seed, same text (default: %(default)s)"
    )
    parser.add_argument(
        "--device", choices=("cpu", "gpu"), default="cpu", help="(default: %(default)s)"
    )
    args = parser.parse_args()
    if args.top_p is not None and args.top_p > 1:
        parser.error(f"argument --top-p: must be at most 1, got {args.top_p}")
    return args


def read_prompt(prompt):
    if prompt == "-":
        prompt = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not prompt:
        raise ValueError("the prompt is empty: give at least one character, or leave --prompt out")
    return prompt


if __name__ == "__main__":
    main()
