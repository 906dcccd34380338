"""What the benchmarks share: workers in processes of their own, turns, the weather, the machine.

A benchmark calls itself anew for each measurement (`--work`, a dict as JSON), since two libraries in
one process get in each other's way, and lets its sides take turns, since one after the other they
would be measured in different weather. Of several rounds the median counts.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # run from a checkout, installed or not

from ministem import backend  # noqa: E402

SIZES = {  # the model, then the texts in a batch
    "tiny": (dict(vocab_size=64, dim=32, n_layers=2, n_heads=2, ffn_dim=64, context=16), 4),
    "small": (dict(vocab_size=2048, dim=128, n_layers=4, n_heads=4, ffn_dim=384, context=128), 16),
    "large": (dict(vocab_size=8192, dim=384, n_layers=6, n_heads=6, ffn_dim=1024, context=256), 8),
}
# the large one with texts of other lengths, always 2,048 tokens a step
SIZES |= {f"T{T}": (SIZES["large"][0] | dict(context=T), 2048 // T) for T in (128, 256, 512, 1024, 2048)}
QUIET = 0.2  # cores that other programs may keep busy meanwhile before a round counts as disturbed


# ------------------------------------------------------------------------------- texts and options


def zipf(V, n, rng):
    """n ids below V, drawn as text draws its words: a few of them all the time, most of them hardly ever."""
    often = 1 / (np.arange(V) + 2.7)
    return rng.permutation(V)[rng.choice(V, n, p=often / often.sum())]


def texts(config, B):
    """-> ids, targets (B,T): a batch that fills the model's context"""
    T = config.context
    text = zipf(config.vocab_size, B * T + 1, np.random.default_rng(1))
    return text[:-1].reshape(B, T), text[1:].reshape(B, T)


def options(doc, rounds=None):
    """-> a parser with what every benchmark understands, and (rounds) what those with workers do"""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--quick", action="store_true", help="tiny sizes, one round: does it run? the times mean nothing")
    add("--json", metavar="FILE", help="write all measurements there too")
    parser.set_defaults(work=None)
    if rounds:
        add("--rounds", type=int, default=rounds, help=f"processes started per side (default {rounds})")
        add("--threads", type=int, default=backend.available_cores(),
            help="for every side (default: the cores this process may use)")  # fmt: skip
        add("--patience", type=float, default=0, metavar="S", help="for each process, wait and measure again "
            "for up to S seconds until other programs leave the machine alone (default 0)")  # fmt: skip
        add("--work", help=argparse.SUPPRESS)
    return parser


def parse(parser, work=None):
    """-> the arguments. In a worker process: does `work` instead, prints what that returns, and ends."""
    args = parser.parse_args()
    if getattr(args, "threads", 1) < 1:
        parser.error(f"--threads {args.threads}: at least 1")
    if args.work:
        print(json.dumps(work(**json.loads(args.work))))
        sys.exit()
    if args.quick:
        args.rounds, args.seconds = 1, 0
    return args


# ---------------------------------------------------------------------------------------- the weather


def cpu_seconds():
    """-> what the whole machine has spent so far, what our own children have; None where unknown"""
    if not os.path.exists("/proc/stat"):
        return None
    with open("/proc/stat") as f:
        user, nice, system, _, _, irq, softirq, steal = map(int, f.readline().split()[1:9])
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    machine = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    return machine, children.ru_utime + children.ru_stime


def others(before, seconds):
    """-> how many cores somebody else kept busy in these seconds"""
    after = cpu_seconds()
    if not (before and after):
        return float("nan")
    (machine, children), (machine0, children0) = after, before
    return max(0.0, machine - machine0 - (children - children0)) / seconds


def wait_for_quiet(until):
    """Until nobody else uses more than a tenth of a core, or the time is up."""
    while time.monotonic() < until:
        before = cpu_seconds()
        time.sleep(1)
        if not others(before, 1) > 0.1:
            return


# -------------------------------------------------------------------------------- workers, taking turns


def timed(function, *args, times=1):
    """-> ms; of several times the median"""
    ms = []
    for _ in range(times):
        start = time.perf_counter()
        function(*args)
        ms.append(1e3 * (time.perf_counter() - start))
    return statistics.median(ms)


def environment(threads, torch=False):
    """BLAS takes its thread count from here; torch brings its own, and where it works NumPy's can sleep."""
    openblas = 1 if torch else threads
    counts = dict(OPENBLAS_NUM_THREADS=openblas, OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
    return os.environ | {name: str(n) for name, n in counts.items()}


def run_worker(script, work, env, patience=0):
    """-> the worker's dict and who disturbed it, or {"error": its last words}"""
    command = [sys.executable, str(script), "--work", json.dumps(work)]
    until = time.monotonic() + patience
    while True:
        wait_for_quiet(until)
        before, start = cpu_seconds(), time.monotonic()
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        disturbed = others(before, time.monotonic() - start)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return {"error": next((x for x in reversed(lines) if "Error" in x), lines[-1]).strip()}
        # chosen by what others did, never by how long we took
        if not disturbed > QUIET or time.monotonic() > until:
            return json.loads(done.stdout.splitlines()[-1]) | {"others": round(disturbed, 2)}


def take_turns(script, jobs, args):
    """jobs: {name: (what the worker is told, its environment)} -> {name: [its dicts]}, {name: error}

    Back and forth, so that no side always comes after the same neighbour."""
    results, errors = {name: [] for name in jobs}, {}
    for i in range(args.rounds):
        for name in list(jobs) if i % 2 == 0 else list(jobs)[::-1]:
            if name in errors:
                continue
            answer = run_worker(script, *jobs[name], args.patience)
            if "error" in answer:
                errors[name] = answer["error"]
            else:
                results[name].append(answer)
        print(f"round {i + 1} of {args.rounds} done", file=sys.stderr)
    return {name: rounds for name, rounds in results.items() if rounds}, errors


def undisturbed(rounds):
    """Where some rounds were quiet and others were not, only the quiet ones count."""
    return [r for r in rounds if not r["others"] > QUIET] or rounds


def median(rounds, key):
    """-> the median over the rounds that count of what the workers say under `key` (a number or a list)"""
    found = [r[key] for r in undisturbed(rounds)]
    return statistics.median(x for value in found for x in (value if isinstance(value, list) else [value]))


def print_weather(results, errors):
    """What did not run, and whether the times can be trusted."""
    for name, error in errors.items():
        print(f"{name}: did not run: {error}")
    worst = max((r["others"] for rounds in results.values() for r in undisturbed(rounds)), default=0)
    if worst > QUIET:
        print(f"other programs kept up to {worst:.1f} cores busy meanwhile: measure again on a quiet machine")


# --------------------------------------------------------------------------------------- the machine


def machine(threads, *packages):
    """Prints what a reader needs to know to compare with another machine. -> the same as a dict"""
    from threadpoolctl import threadpool_info

    cpu = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as f:
            cpu = next((x.split(":")[1].strip() for x in f if x.startswith("model name")), cpu)
    about = dict(cpu=cpu, cores=backend.available_cores(), threads=threads, python=platform.python_version(),
                 numpy=np.__version__)  # fmt: skip
    about["blas"] = ", ".join(f"{lib['internal_api']} {lib['version']}" for lib in threadpool_info())
    for name in packages:
        try:
            about[name] = version(name)
        except PackageNotFoundError:
            about[name] = "not installed"
    print(" | ".join(f"{name} {value}" for name, value in about.items()))
    return about


def write_json(args, about, **found):
    if args.json:
        command = " ".join(["python", "benchmarks/" + os.path.basename(sys.argv[0]), *sys.argv[1:]])
        machine = {name: about.pop(name) for name in ("cpu", "cores", "threads")}
        about = dict(command=command, date=datetime.date.today().isoformat(), **machine, versions=about)
        Path(args.json).write_text(json.dumps(about | found, indent=1) + "\n")
