"""train.py and sample.py as whole commands, in a fraction of a second each.

Most of a short command's time goes into starting Python and importing NumPy. So one process imports all of it
once and then forks for every command: the child has a working folder, streams, limits and a user of its own,
and can be killed, at a time or at the n-th thing that it does to a file. Where there is no safe fork (on
anything but Linux) each command is a new Python process, and what needs the fork is skipped.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import namedtuple
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORKS = sys.platform == "linux"
TINY = ["--dim", "16", "--layers", "2", "--heads", "2", "--context", "8", "--batch", "4", "--warmup", "2",
        "--vocab-size", "300", "--threads", "1"]  # fmt: skip
TEXT = "The quick brown fox jumps over the lazy dog. " * 60
Done = namedtuple("Done", "code out err seconds")  # code: as subprocess has it, -9 for a SIGKILL; of CPU time
SIGNALS = signal.SIGHUP, signal.SIGINT, signal.SIGTERM
_server = []


def command(script, *args, cwd, input=b"", signals=(), die_at=None, limits=None, user=None, env=None):
    """Run `script args` in the folder cwd -> Done, with bytes.

    signals: [(seconds of CPU time from the start, number)] to send. die_at: n, killed before the n-th change
    of a name in the file system (a file opened for writing, renamed or removed, a folder made or removed).
    limits: {resource.RLIMIT_...: n}. user: the id of a user to be. env: changes of the environment."""
    args = [str(arg) for arg in args]
    with tempfile.TemporaryDirectory() as streams:
        for name, data in (("in", input), ("out", b""), ("err", b"")):  # there even if it is killed at once
            Path(streams, name).write_bytes(data)
        if not FORKS:
            line = [sys.executable, str(ROOT / script), *args]
            env = os.environ | (env or {})
            done = subprocess.run(line, cwd=cwd, input=input, capture_output=True, env=env)
            return Done(done.returncode, done.stdout, done.stderr, None)
        job = dict(script=script, args=args, cwd=str(cwd), streams=streams, signals=signals, die_at=die_at,
                   limits=limits or {}, user=user, env=env or {})  # fmt: skip
        if not _server or _server[0].poll() is not None:
            env = os.environ | {"PYTHONPATH": str(ROOT)}
            pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            _server[:] = [subprocess.Popen([sys.executable, __file__], env=env, **pipes)]
        _server[0].stdin.write(json.dumps(job) + "\n")
        _server[0].stdin.flush()
        code, seconds = json.loads(_server[0].stdout.readline())
        return Done(code, Path(streams, "out").read_bytes(), Path(streams, "err").read_bytes(), seconds)


def once_each(encoding):
    """tiktoken.Encoding takes 50 ms, and most of these tests need the same few: each is made once."""
    known = {}

    def find(name, *, pat_str, mergeable_ranks, special_tokens):
        key = name, pat_str, tuple(mergeable_ranks), tuple(special_tokens.items())
        if key not in known:
            more = dict(mergeable_ranks=mergeable_ranks, special_tokens=special_tokens)
            known[key] = encoding(name, pat_str=pat_str, **more)
        return known[key]

    return find


# ------------------------------------------------------------------------------------- the other process


def serve():
    import scipy.sparse  # noqa: F401
    import tiktoken

    import sample
    import train
    from ministem import backend, tokenizer
    from ministem.knowledge import inside

    backend._blas()
    "".encode("utf-8-sig")  # another user may not be able to read where Python is
    tiktoken.Encoding = once_each(tiktoken.Encoding)
    tokenizer.train_bpe(TEXT, 300)  # the children find it made
    mains = {"train.py": train.main, "sample.py": sample.main, "ministem.knowledge.inside": inside.main}
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child is the command
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if not child:
            try:
                be(job, mains)
            except BaseException:
                traceback.print_exc()
            os._exit(70)
        ended, signals = (0, 0, None), sorted(job["signals"])
        clock = ~child << 3 | 2  # Linux's number of the clock that shows the CPU time of a process
        while signals and not ended[0]:
            if time.clock_gettime(clock) < signals[0][0]:
                time.sleep(0.001)
                ended = os.wait4(child, os.WNOHANG)
            else:
                os.kill(child, signals.pop(0)[1])
        _, status, used = ended if ended[0] else os.wait4(child, 0)
        answer = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime
        print(json.dumps(answer), file=answers, flush=True)


def be(job, mains):
    """The child: become the command, and end as an interpreter would."""
    import resource

    for fd, name, flags in ((0, "in", os.O_RDONLY), (1, "out", 0o1101), (2, "err", 0o1101)):
        os.dup2(os.open(os.path.join(job["streams"], name), flags, 0o666), fd)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.chdir(job["cwd"])
    os.environ.update(job["env"])
    resource.setrlimit(resource.RLIMIT_CPU, (120, 120))  # what does not end has failed
    for kind, n in job["limits"].items():
        resource.setrlimit(int(kind), (n, n))
    if job["user"] is not None:
        os.setgroups([])
        os.setgid(job["user"])
        os.setuid(job["user"])
    sys.argv = [job["script"], *job["args"]]
    if job["die_at"] is not None:
        left = [job["die_at"]]

        def die(event, args):
            changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir") or (
                event == "open" and isinstance(args[1], str) and args[1][0] in "wxa"
            )
            if changes:
                left[0] -= 1
                if left[0] < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(die)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    code = 0
    try:
        mains[job["script"]]()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    serve()
