"""How much CPU time passes before anything happens?

    python benchmarks/startup.py

CPU seconds of whole processes, user and system, median of several taken in turns; a wish for --help should
cost less than half a second. Beside them, which of the heavier packages each one imports: `--help` needs
none of them, the shape of a model (Config) needs NumPy.
"""

import os
import resource
import statistics
import subprocess
import sys

from common import ROOT, machine, options, parse, write_json

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "python -c 'import numpy'": ["-c", "import numpy"],
    "import ministem": ["-c", "import ministem"],
    "from ministem.model import Config": ["-c", "from ministem.model import Config"],
    "python sample.py --help": [str(ROOT / "sample.py"), "--help"],
    "python train.py --help": [str(ROOT / "train.py"), "--help"],
}
HEAVY = ["cupy", "numpy", "regex", "safetensors", "scipy", "threadpoolctl", "tiktoken", "torch", "tqdm"]


def run(command, *flags):
    """-> CPU seconds, what went to stderr"""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, *flags, *command], check=True, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": path})  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done.stderr


def imported(command):
    """-> the heavy packages among all modules that it imports"""
    lines = run(command, "-X", "importtime")[1].splitlines()
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if "import time" in line}
    return [name for name in HEAVY if name in modules]


def main():
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="times each command is run (default 5)")
    args = parse(parser)
    about = machine(1)
    packages = {name: imported(command) for name, command in COMMANDS.items()}  # and writes .pyc files, too
    seconds = {name: [] for name in COMMANDS}
    for _ in range(args.rounds):
        for name, command in COMMANDS.items():
            seconds[name].append(run(command)[0])
    found = {name: statistics.median(times) for name, times in seconds.items()}
    print(f"\n{'':<36}{'CPU s':>7}{'less python':>13}  imports")
    for name, t in found.items():
        print(f"{name:<36}{t:7.3f}{t - found['python -c pass']:13.3f}  {', '.join(packages[name]) or '-'}")
    write_json(args, about, cpu_seconds=found, imports=packages, all=seconds)


if __name__ == "__main__":
    main()
