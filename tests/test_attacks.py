"""Kills at random moments, full disks, damaged files, nonsense on the command line: nothing is lost, and the
user is told in one line what is wrong."""

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys

import pytest
from commands import FORKS, ROOT, TEXT, TINY, command
from test_cli import metrics, run, state

from ministem.backend import device_array
from ministem.generate import generate
from ministem.run.checkpoint import load_checkpoint, place, step_folders

CPU = device_array("cpu")
pytestmark = pytest.mark.usefixtures("known_encodings")
TRAIN = ["--data", "fox.txt", *TINY, "--steps", "24", "--eval-every", "3", "--out", "run"]
forks = pytest.mark.skipif(not FORKS, reason="needs Linux: a fork for each try")


def samples(folder):
    return run("sample.py", "--run", folder / "run", "--tokens", 30, cwd=folder)[0]


def everything(folder):
    """All numbers of the newest checkpoint, wherever its tables are, as bytes."""
    run = load_checkpoint(folder, moments=True)
    place(run, "ram", CPU)
    tables = {name: run.tables[name] for name in run.tables.names}
    return {name: array.tobytes() for name, array in (run.params | tables | run.moments).items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nobody interrupts, the CPU time it took, and what it says."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "fox.txt").write_text(TEXT)
    done = command("train.py", *TRAIN, cwd=folder)
    assert done.code == 0, done.err
    return folder, done.seconds, samples(folder)


# -------------------------------------------------------------------------------------------------- kills


@forks
@pytest.mark.parametrize("seed", range(7))
def test_runs_killed_at_random_moments_end_as_if_nobody_had_killed_them(whole, tmp_path, seed):
    """28 kills: each of 7 runs is killed 4 times, by SIGKILL, SIGTERM, SIGHUP or Ctrl-C, once or twice. The
    last two runs have their tables on disk.

    After each kill there is a whole checkpoint (or none was due yet); in the end losses, weights, moments and
    samples equal those of the run that nobody killed, bit for bit."""
    folder, seconds, text = whole
    shutil.copy(folder / "fox.txt", tmp_path)
    rng, killed, start = random.Random(seed), 0, 0
    first = args = [*TRAIN, "--tables", "ram" if seed < 5 else "disk"]
    for _ in range(4):
        # somewhere in what is left to do; before 0.04 s Python itself may still be on its way into main()
        at = max(0.04, rng.uniform(0.1, 0.9) * seconds * (24 - start) / 24)
        number = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
        again = [(at + rng.uniform(0, 0.02), number)] if rng.random() < 0.5 else []
        done = command("train.py", *args, cwd=tmp_path, signals=[(at, number), *again])
        assert b"Traceback" not in done.err, done.err
        assert done.code in (0, 130, -number, 128 + number), done.err
        killed += done.code != 0
        steps = step_folders(tmp_path / "run")
        saved = load_checkpoint(tmp_path / "run", moments=True).step if steps else 0
        assert saved >= start, done
        assert b"stopped and saved" not in done.err or b"saved at step %d." % saved in done.err, done
        start, args = saved, (["--resume", "run"] if steps else first)
    assert killed
    run("train.py", *args, cwd=tmp_path)
    assert metrics(tmp_path / "run") == metrics(folder / "run")
    if seed < 5:
        assert state(tmp_path / "run", 24) == state(folder / "run", 24)
    assert (tmp_path / "run" / "step-000024" / "tables").exists() == (seed >= 5)
    assert everything(tmp_path / "run") == everything(folder / "run")
    assert samples(tmp_path) == text


@forks
def test_a_kill_between_any_two_changes_of_a_name_leaves_a_whole_checkpoint(tmp_path):
    """Killed before the 1st file is made, before the 2nd, ... up to the run's end: there is a checkpoint of
    the newest step or of the one before, and the run can be started again or gone on with."""
    (tmp_path / "fox.txt").write_text(TEXT)
    short = ["--data", "fox.txt", *TINY, "--steps", "3", "--eval-every", "1", "--out"]
    seen = set()
    for n in range(100):
        done = command("train.py", *short, f"run{n}", cwd=tmp_path, die_at=n)
        assert done.code in (0, -9) and b"Traceback" not in done.err, done.err
        folder = tmp_path / f"run{n}"
        steps = step_folders(folder)
        seen.add((len(steps), len(list(folder.glob(".*.tmp"))) if folder.exists() else None))
        if not steps and n % 3 == 0:  # nothing to resume: the same command works again
            assert command("train.py", *short, f"run{n}", cwd=tmp_path).code == 0
        for step in steps[1:] if n % 3 else steps:
            load_checkpoint(step, moments=True)
        logged = done.err.decode().count("| val")
        assert not logged or int(steps[-1].name[5:] if steps else 0) >= logged - 1
        if done.code == 0:
            break
    assert n > 25 and {(0, None), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)} <= seen, (n, seen)


@forks
def test_stopped_before_its_first_step_a_run_can_be_resumed(tmp_path):
    """It says that it has saved, so it must have; and stopped again at once, it has what it had."""
    (tmp_path / "fox.txt").write_text(TEXT)
    code = """if True:
        import os, signal, sys
        sys.argv[0] = "train.py"
        import train
        StopSignals = train.start.StopSignals
        ask = StopSignals.__enter__
        StopSignals.__enter__ = lambda self: (ask(self), os.kill(os.getpid(), signal.SIGTERM))[0]
        train.main()"""
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    for args in (TRAIN, ["--resume", "run"]):
        done = subprocess.run([sys.executable, "-c", code, *args], cwd=tmp_path, env=env, capture_output=True)
        assert done.returncode == 128 + signal.SIGTERM and b"saved at step 0" in done.stderr, done.stderr
        assert load_checkpoint(tmp_path / "run").step == 0
    run("train.py", "--resume", "run", cwd=tmp_path)


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_newest_checkpoint_is_passed_over(whole, tmp_path, file):
    """A power cut may leave half of the newest file: --resume says so, goes on from the step before, and ends
    where it would have ended. Sampling does not fall back without being told to."""
    shutil.copytree(whole[0] / "run", tmp_path / "run")
    (tmp_path / "fox.txt").write_text(TEXT)
    path = tmp_path / "run" / "step-000024" / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    if not file.startswith("optimizer"):
        _, err = run("sample.py", "--run", "run", cwd=tmp_path, check=2)
        assert file in err and "remove run/step-000024 to use the step before" in err
    _, err = run("train.py", "--resume", "run", "--data", "fox.txt", cwd=tmp_path)
    assert file in err and "going on from" in err and "step    24" in err and "step    21" not in err
    assert metrics(tmp_path / "run") == metrics(whole[0] / "run")
    assert state(tmp_path / "run", 24) == state(whole[0] / "run", 24)


# --------------------------------------------------------------------------------------------------- disks


@forks
@pytest.mark.parametrize("limit", [0, 100, 1000, 3000, 9000, 20_000, 60_000, 100_000])
def test_wherever_the_disk_is_full_it_is_one_line_and_nothing_is_half_written(whole, tmp_path, limit):
    """No file can grow beyond `limit` bytes: a new run says so; one that is resumed has what it had."""
    (tmp_path / "fox.txt").write_text(TEXT)
    limits = {resource.RLIMIT_FSIZE: limit}
    done = command("train.py", *TRAIN[:-2], "--out", "new", cwd=tmp_path, limits=limits)
    err = done.err.decode()  # with limit 0 not even that gets through
    assert done.code == 2 and "Traceback" not in err and (not limit or "new" in err.splitlines()[-1][:200])
    assert not list(tmp_path.rglob("*.tmp"))
    shutil.copytree(whole[0] / "run", tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "step-000024")
    done = command("train.py", "--resume", "run", "--data", "fox.txt", cwd=tmp_path, limits=limits)
    assert done.code == 2 and b"Traceback" not in done.err
    assert not list(tmp_path.rglob("*.tmp")) and load_checkpoint(tmp_path / "run").step == 21
    run("train.py", "--resume", "run", "--data", "fox.txt", cwd=tmp_path)
    assert metrics(tmp_path / "run") == metrics(whole[0] / "run")


@forks
@pytest.mark.skipif(FORKS and os.geteuid() != 0, reason="needs root, to be another user than the folder's")
def test_a_folder_that_may_not_be_written_to_is_one_line(whole, tmp_path_factory):
    folder = tmp_path_factory.mktemp("readonly")
    for path in (folder, folder.parent, folder.parent.parent):
        path.chmod(0o755)
    shutil.copytree(whole[0] / "run", folder / "run")
    (folder / "fox.txt").write_text(TEXT)
    before = sorted(folder.rglob("*"))
    for args, why in ((TRAIN[:-2], b"nothing can be written to"),
                      (["--resume", "run", "--data", "fox.txt"], b"Permission denied")):  # fmt: skip
        done = command("train.py", *args, cwd=folder, user=65534)
        assert done.code == 2 and why in done.err and b"Traceback" not in done.err, done.err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("out", ["fox.txt", "fox.txt/run", "run", "home", "x" * 300])
def test_a_folder_that_cannot_be_had_is_refused_before_any_work(whole, tmp_path, out):
    """A file, a file's inside, another run, somebody else's folder, a name that is too long."""
    (tmp_path / "fox.txt").write_text(TEXT)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter").write_text("dear")
    shutil.copytree(whole[0] / "run", tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    args = ["--data", "fox.txt", *TINY, "--out", out]
    _, err = run("train.py", *args, cwd=tmp_path, check=2)
    assert out in err and "training the tokenizer" not in err and err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_can_be_resumed_from_any_folder_and_its_text_may_move(tmp_path):
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    (tmp_path / "here" / "fox.txt").write_text(TEXT)
    run("train.py", *TRAIN[:-2], "--out", "run", cwd=tmp_path / "here")
    for step in step_folders(tmp_path / "here" / "run")[1:]:
        shutil.rmtree(step)
    _, err = run("train.py", "--resume", "../here/run", cwd=tmp_path / "there")
    assert "step    24" in err
    (tmp_path / "here" / "fox.txt").rename(tmp_path / "there" / "wolf.txt")
    _, err = run("train.py", "--resume", "../here/run", cwd=tmp_path / "there", check=2)
    assert "fox.txt" in err and "say --data" in err and err.count("\n") == 1
    run("train.py", "--resume", "../here/run", "--data", "wolf.txt", cwd=tmp_path / "there")
    (tmp_path / "there" / "wolf.txt").write_text(TEXT[::-1])
    _, err = run("train.py", "--resume", "../here/run", "--data", "wolf.txt", cwd=tmp_path / "there", check=2)
    assert "wolf.txt has changed" in err


def test_one_very_long_line_is_a_text_like_any_other(tmp_path):
    """4 MB of letters without a space, and of spaces without a letter: no line end ever comes."""
    (tmp_path / "long.txt").write_text("x" * 2_000_000 + " " * 2_000_000)
    run("train.py", "--data", "long.txt", *TINY, "--steps", 1, "--out", "run", cwd=tmp_path)


@forks
def test_a_pipe_is_refused_at_once_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    _, err = run("train.py", "--data", "fifo", *TINY, cwd=tmp_path, check=2)
    assert "fifo is not a regular file" in err and err.count("\n") == 1


# ------------------------------------------------------------------------------------------- command lines

VALUES = [
    "0", "1", "2", "3", "7", "-1", "1.5", "1e9", "999999999999", "9" * 40, "nan", "inf", "-inf", "1e-320",
    "1e308", "", " ", "x", "None", "True", "all", "1,0", "1/2", "0,0", "stem", "atlas", "fox.txt", "run",
    "run/step-000024", "none/of/these", "/", ".", "é", "\udcff", "a=b", "fox=dog", "=", "%s", "-", "--", "\n",
    "gpt2x", "1_0", "０", "0x10", "x" * 300,
]  # fmt: skip


def flags_of(script):
    """-> {flag: whether it takes a value}, from --help."""
    text = run(script, "--help", cwd=ROOT)[0]
    lines = [line.strip() for line in text.splitlines() if re.match(r"  --\w", line)]
    return {line.split()[0]: bool(re.match(r"--\S+ [A-Z{]", line)) for line in lines}


@forks
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("script", ["train.py", "sample.py"])
def test_no_command_line_is_answered_by_a_traceback(whole, tmp_path, script, seed):
    """240 command lines with a few random flags and values: each ends well, or with exit code 2 and a line
    that says why, and none leaves half a file."""
    rng, flags = random.Random(seed), flags_of(script)
    shutil.copytree(whole[0], tmp_path, dirs_exist_ok=True)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for _ in range(30):
        args = dict(zip(TINY[::2], TINY[1::2], strict=True)) | {"--data": "fox.txt", "--steps": "2"}
        args = args if script == "train.py" else {"--run": "run", "--tokens": "3"}
        for flag in rng.sample([*flags], rng.randint(1, 3)):
            args[flag] = rng.choice(VALUES) if flags[flag] else None
        if "--resume" in args and rng.random() < 0.7:  # with anything else it is refused
            args = {"--resume": args["--resume"]}
        heavy = "--steps --samples --tokens --layers --dim --ffn-dim --context --batch --vocab-size".split()
        for flag in heavy:  # possible, but not in a test
            if flag in args and re.fullmatch(r"[1-9]\d{2,15}", args[flag] or ""):
                args[flag] = TINY[TINY.index(flag) + 1] if flag in TINY else "2"
        line = [part for pair in args.items() for part in pair if part is not None]
        done = command(script, *line, cwd=tmp_path, input=b"The fox")
        err = done.err.decode()
        assert done.code in (0, 2) and "Traceback" not in err and "Warning" not in err, f"{line}\n{err}"
        assert done.code == 0 or err.strip().splitlines()[-1].count(": "), f"{line}\n{err}"
        assert not list(tmp_path.rglob("*.tmp")), line
        for path, data in before.items():
            assert path.read_bytes() == data, f"{line} changed {path}"


# ------------------------------------------------------------------------------------ prompts and terminals


@pytest.mark.parametrize("prompt", [
    b"The fox", b"\xff\xfe", "한국".encode()[:-1], b"\xe2\x82", b"\0\0", "\ufeffThe".encode(), b"\r\n\r",
    "日本語 العربية 🏴‍☠️".encode(), b"<|endoftext|>", TEXT.encode(), b" ", b"\x1b[31m",
])  # fmt: skip
def test_any_bytes_can_be_a_prompt_and_what_is_streamed_is_what_is_decoded(whole, prompt):
    """What is not UTF-8 shows as U+FFFD; the text printed piece by piece is that of all ids at the end."""
    done = command("sample.py", "--run", "run", "--prompt", "-", "--tokens", 40, cwd=whole[0], input=prompt)
    assert done.code == 0 and b"Traceback" not in done.err, done.err
    saved = load_checkpoint(whole[0] / "run")
    text = prompt.decode("utf-8", "replace")
    ids = saved.tokenizer.encode(text)
    new = generate(saved.params, saved.tables, saved.config, ids, 40, temperature=0.8)
    assert done.out.decode() == text + saved.tokenizer.decode(list(new)) + "\n"


@forks
def test_a_narrow_terminal_without_colours_gets_neither_colours_nor_long_bars(tmp_path):
    """40 columns, NO_COLOR, no UTF-8: no escape codes, and no line of the progress bar is wider."""
    import fcntl
    import pty
    import struct
    import termios

    (tmp_path / "fox.txt").write_text(TEXT)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 40, 0, 0))
    env = os.environ | dict(NO_COLOR="1", LC_ALL="C", PYTHONUTF8="0", TERM="xterm")
    env = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES")}
    line = [sys.executable, str(ROOT / "train.py"), *TRAIN]
    process = subprocess.Popen(line, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            seen += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    assert process.wait() == 0 and b"Traceback" not in seen and b"\x1b" not in seen, seen
    bars = [part for part in re.split(rb"[\r\n]", seen) if b"%|" in part]
    assert bars and max(map(len, bars)) <= 40, max(bars, key=len)


METRICS_FULL = """if True:  # the disk is full when a line of metrics is to reach it
    import os, sys
    sys.argv[0] = "train.py"
    fsync = os.fsync
    def full(handle):
        if os.readlink(f"/proc/self/fd/{handle}").endswith("metrics.jsonl"):
            raise OSError(28, "No space left on device")
        fsync(handle)
    os.fsync = full
    import train
    train.main()"""


@forks
def test_a_disk_that_is_full_when_metrics_are_written_names_their_file(tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    line = [sys.executable, "-c", METRICS_FULL, "--data", "fox.txt", *TINY, "--steps", "2", "--out", "run"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and said == "train.py: run/metrics.jsonl: No space left on device", done


CTRL_C_IN_CYTHON = """if True:  # Ctrl-C while numpy.random registers a class, where Cython swallows it
    import abc, os, runpy, signal, sys
    sys.argv[0] = "sample.py"
    register = abc.ABCMeta.register
    def interrupted(*args):
        if "numpy.random" in sys.modules:
            os.kill(os.getpid(), signal.SIGINT)
        return register(*args)
    abc.ABCMeta.register = interrupted
    runpy.run_path(os.environ["PYTHONPATH"] + "/sample.py", run_name="__main__")"""
CTRL_C_BETWEEN = """if True:  # Ctrl-C when user_errors, which makes one line of an error, has just been left
    import contextlib, os, runpy, signal, sys
    sys.argv[0] = "sample.py"
    leave = contextlib._GeneratorContextManager.__exit__
    def interrupted(self, *error):
        code = self.gen.gi_code
        leave(self, *error)
        if code.co_name == "user_errors":
            os.kill(os.getpid(), signal.SIGINT)
    contextlib._GeneratorContextManager.__exit__ = interrupted
    runpy.run_path(os.environ["PYTHONPATH"] + "/sample.py", run_name="__main__")"""

CTRL_C_IN_A_DESTRUCTOR = """if True:
    import os, signal, time, weakref
    from ministem.run.cli import as_command
    def main():
        weakref.finalize({1}, os.kill, os.getpid(), signal.SIGINT)  # a set that nobody keeps
        time.sleep(10)
    as_command(main)"""


@pytest.mark.parametrize("code", [CTRL_C_IN_CYTHON, CTRL_C_BETWEEN, CTRL_C_IN_A_DESTRUCTOR],
                         ids=["in an import", "at the end", "in a destructor"])  # fmt: skip
def test_ctrl_c_is_not_lost_and_never_a_traceback(whole, code):
    line = [sys.executable, "-c", code, "--run", "run", "--tokens", "3"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=whole[0], env=env, capture_output=True, text=True)
    assert done.returncode == -signal.SIGINT and "Traceback" not in done.stderr, done
