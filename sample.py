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

        folder = args.run or checkpoint.newest_run()
        run = checkpoint.load_checkpoint(folder, backend.device_array(args.device))
        say(f"{run.folder}, step {run.step}")
        ids = run.tokenizer.encode(prompt)
        if len(ids) > run.config.context:
            say(f"the prompt has {len(ids)} tokens; the model sees the last {run.config.context}")
        for i in range(args.samples):
            decoder = StreamDecoder(run.tokenizer)
            print(run.tokenizer.decode(ids), end="", flush=True)
            new = generate(run.params, run.tables, run.config, ids, args.tokens,
                           args.temperature, args.top_k, args.top_p, args.seed + i)  # fmt: skip
            for token in new:
                print(decoder.feed([token]), end="", flush=True)
            print(decoder.flush())
            if i + 1 < args.samples:
                print("---")


def parse_arguments():
    parser = argparse.ArgumentParser(description="Let a trained model write.")

    def option(name, help, **more):
        default = "" if more.get("default") is None else f" (default: {more['default']!r})"
        parser.add_argument("--" + name, help=help + default, **more)

    option("prompt", "text to go on from, or - for standard input", default="\n")
    option("run", "run folder, or one of its step folders (default: the newest in runs/)")
    option("tokens", "how many to add", type=whole(0), default=100)
    option("samples", "how many texts", type=whole(1), default=1)
    option("temperature", "0: always the likeliest token", type=number(0), default=0.8)
    option("top-k", "choose among the k likeliest tokens", type=whole(1))
    option("top-p", "choose among the likeliest, up to this probability", type=number(0, exclusive=True))
    option("seed", "same seed, same text", type=whole(0), default=0)
    option("device", "cpu or gpu", choices=("cpu", "gpu"), default="cpu")
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
