"""train.py and sample.py as a user runs them: whole commands, in a folder of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from commands import ROOT, TEXT, TINY, command

from ministem.run import cli
from ministem.run.checkpoint import file_hash, load_checkpoint, read_sums


def run(script, *args, cwd, check=0, **more):
    done = command(script, *args, cwd=cwd, **more)
    out, err = done.out.decode(), done.err.decode()
    assert done.code == check, f"{script} {args}\n{out}\n{err}"
    assert "Traceback" not in err and "Exception" not in err, err
    return out, err


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "tokens_per_s"} for line in lines]


def state(folder, step=6):
    """What a checkpoint holds, the hashes of weights and moments among it; but not where things are kept."""
    folder = folder / f"step-{step:06d}"
    content, sums = json.loads((folder / "state.json").read_text()), read_sums(folder)
    assert all(digest == file_hash(folder / name) for name, digest in sums.items())
    del sums["state.json"]  # it has folders in it
    return sums | {key: content[key] for key in ("step", "losses", "corpus", "line")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A small run of 6 steps on a small text."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "fox.txt").write_text(TEXT)
    run("train.py", "--data", "fox.txt", *TINY, "--steps", 6, "--eval-every", 2, cwd=folder)
    return folder


def test_a_run_leaves_what_the_readme_says(trained):
    folder = trained / "runs" / "fox"
    files = sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())
    step = ["SHA256SUMS", "model.safetensors", "optimizer.safetensors", "state.json"]
    assert files == [".lock", "config.json", "metrics.jsonl", *[f"step-000004/{f}" for f in step],
                     *[f"step-000006/{f}" for f in step], "vocab.tiktoken"]  # fmt: skip
    assert [line["step"] for line in metrics(folder)] == [2, 4, 6]


def test_what_is_printed(trained):
    """The numbers first, then a line per evaluation, on stderr; what was learned on stdout."""
    out, err = run("train.py", "--data", "fox.txt", *TINY, "--steps", 2, "--out", "a", cwd=trained)
    for word in ("parameters", "active", "MFLOP", "MiB", "tables", "nats/byte", "tokens/s", "rows"):
        assert word in err and word not in out
    assert "python sample.py --run a" in out
    assert "\r" not in err  # no progress bar where there is no terminal


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_a_resumed_run_equals_an_uninterrupted_one(trained, tmp_path, stop_at):
    """Losses, weights and moments, bit for bit; stopped between evaluations too."""
    (tmp_path / "fox.txt").write_text(TEXT)
    stopper = f"""if True:  # Ctrl-C at the end of a given step: the loop asks for the rate once a step
        import os, signal, sys
        sys.argv[0] = "train.py"
        sys.path.insert(0, {str(ROOT)!r})
        import train
        schedule = train.cosine_schedule
        def stop(step, *rest):
            if step == {stop_at}:
                os.kill(os.getpid(), signal.SIGINT)
            return schedule(step, *rest)
        train.cosine_schedule = stop
        train.main()"""
    args = ["--data", "fox.txt", *TINY, "--steps", "6", "--eval-every", "2"]
    command = [sys.executable, "-c", stopper, *args]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    assert f"saved at step {stop_at}" in done.stderr and "--resume runs/fox" in done.stderr
    run("train.py", "--resume", "runs/fox", cwd=tmp_path)
    resumed, whole = tmp_path / "runs" / "fox", trained / "runs" / "fox"
    assert metrics(resumed) == metrics(whole)
    assert state(resumed) == state(whole)


def test_a_killed_run_goes_on_from_its_last_checkpoint(trained, tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    args = ["--data", "fox.txt", *TINY, "--steps", "6", "--eval-every", "2"]
    step = tmp_path / "runs" / "fox" / "step-000002"
    command = [sys.executable, str(ROOT / "train.py"), *args]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not step.exists() and process.poll() is None:
        time.sleep(0.005)
    process.kill()
    process.wait()
    run("train.py", "--resume", "runs/fox", cwd=tmp_path)
    assert metrics(tmp_path / "runs" / "fox") == metrics(trained / "runs" / "fox")
    ours, theirs = (load_checkpoint(p / "runs" / "fox") for p in (tmp_path, trained))
    assert all(ours.params[n].tobytes() == theirs.params[n].tobytes() for n in ours.params)


def test_evaluating_more_often_changes_nothing(trained, tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    run("train.py", "--data", "fox.txt", *TINY, "--steps", 6, "--eval-every", 1, cwd=tmp_path)
    for file in ("model.safetensors", "optimizer.safetensors"):
        often = (tmp_path / "runs" / "fox" / "step-000006" / file).read_bytes()
        assert often == (trained / "runs" / "fox" / "step-000006" / file).read_bytes()


def test_resume_refuses_what_would_not_be_the_same_run(trained, tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    run("train.py", "--data", "fox.txt", *TINY, "--steps", 2, cwd=tmp_path)
    _, err = run("train.py", "--resume", "runs/fox", "--lr", "1", cwd=tmp_path, check=2)
    assert "--lr cannot change" in err and err.count("\n") == 1
    (tmp_path / "fox.txt").write_text(TEXT + "More.")
    _, err = run("train.py", "--resume", "runs/fox", cwd=tmp_path, check=2)
    assert "fox.txt has changed since" in err
    _, err = run("train.py", "--resume", "runs/wolf", cwd=tmp_path, check=2)
    assert "runs/wolf/config.json is missing" in err


TEXTS = {
    "korean": "나는 학교에 갑니다. 그는 집에 있습니다. " * 40,
    "emoji": "👩‍👩‍👧 🇪🇸 ok 🎉\n" * 60,
    "crlf": "one\r\ntwo\r\n\r\nthree\r" * 60,
    "nul": "a\0b\0\0c " * 100,
    "nospaces": "天地玄黄宇宙洪荒日月盈昃" * 60,
    "oneline": "just one line without an end " * 40,
    "special": "<|endoftext|> is text here. " * 40,
}


@pytest.mark.parametrize("name", TEXTS)
def test_any_text_trains_and_samples(tmp_path, name):
    """... and a prompt in it comes back exactly, followed by text that decodes."""
    text = TEXTS[name]
    (tmp_path / f"{name}.txt").write_bytes(text.encode())
    run("train.py", "--data", f"{name}.txt", *TINY, "--steps", 3, cwd=tmp_path)
    saved = load_checkpoint(tmp_path / "runs" / name)
    assert saved.tokenizer.decode(saved.tokenizer.encode(text)) == text
    assert saved.tokenizer.eot not in saved.tokenizer.encode(text)
    prompt = text[:9]
    out, _ = run("sample.py", "--prompt", "-", "--tokens", 5, cwd=tmp_path, input=prompt.encode())
    assert out.startswith(prompt)


@pytest.mark.parametrize("data, message", [
    (b"short", "its training part has"), (b"", "is empty"), (b"\xff\xfea\0b\0", "UTF-16"),
    (b"caf\xe9 au lait " * 50, "not UTF-8: byte 0xe9 at offset 3"), (b"abcdefghij", "validation part"),
])  # fmt: skip
def test_a_text_that_cannot_be_used_is_one_line(tmp_path, data, message):
    (tmp_path / "text.txt").write_bytes(data)
    _, err = run("train.py", "--data", "text.txt", *TINY, "--steps", 2, cwd=tmp_path, check=2)
    assert message in err.splitlines()[-1] and not (tmp_path / "runs").exists()


@pytest.mark.parametrize("flags, message", [
    (["--steps", "0"], "--steps 0 is for use with --init-from"), (["--steps", "9" * 30], "--steps"),
    (["--lr", "nan"], "--lr: must be a number > 0"), (["--lr", "1e999"], "--lr"),
    (["--batch", "-4"], "--batch"),
    (["--dim", "10", "--heads", "3"], "dim 10 does not divide into n_heads 3"),
    (["--dim", "6", "--heads", "2"], "even"), (["--seed", "1.5"], "--seed"), (["--ffn", "moe"], "moe"),
    (["--heads", "4", "--kv-heads", "3"], "n_heads 4 does not divide into n_kv_heads 3"),
    (["--stem-layers", "7"], "[7]"), (["--stem-layers", "first"], "--stem-layers is one of all"),
    (["--vocab-size", "100"], "--vocab-size"), (["--vocab-size", "400"], "too small"),
    (["--data", "none.txt"], "No such file"), (["--resume", "runs/none"], "missing"),
    (["--tokenizer", "gpt3"], "no stock vocabulary 'gpt3'"),
])  # fmt: skip
def test_nonsense_is_refused_before_any_work(tmp_path, flags, message):
    out, err = run("train.py", *flags, cwd=tmp_path, check=2)
    assert message in err.splitlines()[-1], err
    assert not out and not list(tmp_path.iterdir())


def test_a_taken_name_gets_a_number_and_a_taken_out_is_refused(trained):
    args = ["--data", "fox.txt", *TINY, "--steps", 1]
    _, err = run("train.py", *args, cwd=trained)
    assert "runs/fox-2" in err
    _, err = run("train.py", *args, "--out", "runs/fox", cwd=trained, check=2)
    assert "holds a run already" in err


def test_samples(trained):
    args = ["--run", "runs/fox", "--prompt", "The quick", "--tokens", 8]
    first, err = run("sample.py", *args, cwd=trained)
    assert first.startswith("The quick") and "step 6" in err and "step 6" not in first
    assert run("sample.py", *args, cwd=trained)[0] == first
    assert run("sample.py", *args, "--seed", 1, cwd=trained)[0] != first
    assert run("sample.py", *args, "--tokens", 0, cwd=trained)[0] == "The quick\n"
    three = run("sample.py", *args, "--samples", 3, cwd=trained)[0].split("---\n")
    assert len(three) == 3 and three[0] == first
    long, err = run("sample.py", "--run", "runs/fox", "--prompt", TEXT, "--tokens", 3, cwd=trained)
    assert long.startswith(TEXT) and "the model sees the last 8" in err
    greedy = [run("sample.py", *args, "--temperature", 0, "--seed", s, cwd=trained)[0] for s in (0, 1)]
    assert greedy[0] == greedy[1]


@pytest.mark.parametrize("flags, message", [
    (["--prompt", ""], "prompt is empty"), (["--temperature", "-1"], "--temperature"),
    (["--temperature", "nan"], "--temperature"), (["--top-k", "0"], "--top-k"), (["--top-p", "0"], "--top-p"),
    (["--top-p", "1.01"], "at most 1"), (["--run", "none"], "none is not a folder"),
    (["--run", "fox.txt"], "not a folder"), (["--tokens", "-1"], "--tokens"),
    (["--samples", "0"], "--samples"),
])  # fmt: skip
def test_sample_refuses_nonsense(trained, flags, message):
    out, err = run("sample.py", *flags, cwd=trained, check=2)
    assert message in err.splitlines()[-1] and not out


def test_sample_without_a_run_says_so(tmp_path):
    _, err = run("sample.py", cwd=tmp_path, check=2)
    assert "python train.py" in err


def test_bytes_that_are_no_utf8_in_a_prompt_become_the_replacement_character(trained):
    out, _ = run("sample.py", "--prompt", os.fsdecode(b"caf\xe9"), "--tokens", 0, cwd=trained)
    assert out == "caf\ufffd\n"


def test_a_closed_pipe_is_no_error(trained):
    script = f"{sys.executable} {ROOT / 'sample.py'} --run runs/fox --tokens 400 --samples 3 | head -c 1"
    done = subprocess.run(["bash", "-c", script], cwd=trained, capture_output=True, text=True)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr


def test_gpu_without_cupy_is_one_line_and_cpu_never_imports_it(tmp_path):
    try:
        import cupy  # noqa: F401

        pytest.skip("CuPy is installed here")
    except ImportError:
        pass
    _, err = run("train.py", "--device", "gpu", cwd=tmp_path, check=2)
    assert err.count("\n") == 1 and ".[gpu]" in err and "--device cpu" in err


def test_a_run_that_blows_up_stops_and_names_the_last_good_checkpoint(tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    args = ["--data", "fox.txt", *TINY, "--steps", 4, "--eval-every", 1, "--out", "r"]
    run("train.py", *args, "--lr", "1e-3", cwd=tmp_path)
    args = ["--init-from", "r", "--data", "fox.txt", "--batch", 4, "--eval-every", 1, "--out", "s"]
    args += ["--steps", 100, "--lr", "1e38", "--warmup", 10**9]  # from 1e29 up, in steps as small
    _, err = run("train.py", *args, cwd=tmp_path, check=2)
    last = err.splitlines()[-1]
    assert "step" in last and "Lower --lr" in last
    folders = sorted((tmp_path / "s").glob("step-*"))
    assert folders or "there is none" in last
    assert not folders or str(folders[-1].relative_to(tmp_path)) in last
    for folder in folders:
        saved = load_checkpoint(folder)
        assert all(np.isfinite(p).all() for p in saved.params.values())


def shell(command, cwd):
    """A bash command line; PY is the interpreter, ROOT the repository -> returncode, stdout, stderr"""
    command = command.replace("PY ", sys.executable + " ").replace("ROOT", str(ROOT))
    command = command.replace("TINY", " ".join(TINY))
    done = subprocess.run(["bash", "-c", command], cwd=cwd, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_full_disk_is_one_line_and_the_old_checkpoint_stays(tmp_path):
    """ulimit -f lets every write beyond 20 KB fail, as a full disk does: a checkpoint does not fit."""
    (tmp_path / "fox.txt").write_text(TEXT)
    train = "PY ROOT/train.py --data fox.txt TINY --steps 4 --eval-every 2"
    code, _, err = shell("ulimit -f 20; " + train, tmp_path)
    assert code == 2 and "cannot be written" in err.splitlines()[-1]
    folder = tmp_path / "runs" / "fox"
    assert not list(folder.glob("*step-*")) and not list(folder.rglob("*.tmp"))
    run("train.py", "--data", "fox.txt", *TINY, "--steps", 2, "--out", folder, cwd=tmp_path)
    before = (folder / "metrics.jsonl").read_text()
    shell("ulimit -f 0; PY ROOT/train.py --resume runs/fox", tmp_path)
    assert (folder / "metrics.jsonl").read_text() == before


@pytest.mark.parametrize("command", [
    "PY ROOT/sample.py --run runs/fox --tokens 5 >&-", "PY ROOT/sample.py --run runs/fox --tokens 5 2>&-",
    "PY ROOT/sample.py --run runs/fox --tokens 5 --prompt - <&-",
    "PY ROOT/train.py --data fox.txt TINY --steps 2 --out a 2>&1 | head -c 10",
    "PY ROOT/train.py --data fox.txt TINY --steps 2 --out b | true",
    "PY ROOT/train.py --data fox.txt TINY --steps 2 --out c >/dev/full",
    "LC_ALL=C PYTHONUTF8=0 PYTHONIOENCODING=ascii PY ROOT/sample.py --run runs/fox --prompt 日本",
])  # fmt: skip
def test_closed_full_and_narrow_streams(trained, tmp_path, command):
    """... are no reason for a traceback, nor for training to stop."""
    for name in ("fox.txt", "runs"):
        (tmp_path / name).symlink_to(trained / name)
    code, out, err = shell(command, tmp_path)
    if "<&-" in command:
        assert code == 2 and "the prompt is empty" in err
    else:
        assert code == (2 if "/dev/full" in command else 0), err
        assert "sample.py" not in command or ">&-" in command.replace("2>&-", "") or len(out) > 2
    for out in "abc":
        if f"--out {out}" in command:
            assert (tmp_path / out / "step-000002").exists()


def test_a_model_that_is_no_longer_finite_is_never_saved(tmp_path):
    """A rate of 1e20 makes the weights overflow in step 1; the norm of its gradient was fine."""
    (tmp_path / "fox.txt").write_text(TEXT)
    args = ["--data", "fox.txt", *TINY, "--steps", 4, "--eval-every", 1, "--lr", "1e20", "--warmup", 0]
    _, err = run("train.py", *args, cwd=tmp_path, check=2)
    assert "step 1" in err.splitlines()[-1] and "Lower --lr" in err and "Warning" not in err
    assert not list(tmp_path.rglob("step-*")) and not list(tmp_path.rglob("metrics.jsonl"))


def test_a_model_too_large_for_memory_is_one_line(tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    code, _, err = shell("ulimit -v 4000000; PY ROOT/train.py --data fox.txt TINY --dim 1000000", tmp_path)
    assert code == 2 and "not enough memory" in err.splitlines()[-1]
    _, err = run("train.py", "--data", "fox.txt", *TINY, "--layers", 10**6, cwd=tmp_path, check=2)
    assert "n_layers must be at most 1000" in err


def test_a_run_stopped_before_its_first_checkpoint_does_not_block_its_name(tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    args = ["--data", "fox.txt", *TINY, "--steps", 2, "--out", "here"]
    run("train.py", *args, cwd=tmp_path)
    for folder in (tmp_path / "here").glob("step-*"):
        shutil.rmtree(folder)
    run("train.py", *args, cwd=tmp_path)
    _, err = run("train.py", *args[:-1], "here/step-5", cwd=tmp_path, check=2)
    assert "change --out" in err


@pytest.fixture
def copied(trained, tmp_path):
    """A copy of the trained run that may be damaged."""
    shutil.copytree(trained / "runs" / "fox", tmp_path / "run")
    (tmp_path / "fox.txt").write_text(TEXT)
    return tmp_path


@pytest.mark.parametrize("name, value, message", [
    ("lr", "x", "--lr: must be a number > 0"), ("lr", -1, "--lr: must be a number > 0"),
    ("steps", "many", "--steps: must be a whole number >= 0, got 'many'"), ("batch", 0, "--batch: must be"),
    ("eval_every", 0, "--eval-every: must be"), ("seed", -1, "--seed: must be"),
    ("clip", [1], "--clip: must be a number >= 0"),
    ("data", 1.5, "1.5, which run was trained on, is gone"), ("threads", -1, "--threads: must be"),
    ("warmup", {}, "--warmup: must be"), ("bogus", 1, "unrecognized arguments: --bogus=1"),
    ("ffn", "moe", "--ffn: invalid choice: 'moe'"), ("out", "", "--out: must not be empty"),
])  # fmt: skip
def test_settings_in_a_run_folder_are_checked_like_flags(copied, name, value, message):
    """... and the message says in which file they stand."""
    content = json.loads((copied / "run" / "config.json").read_text())
    content["settings"][name] = value
    (copied / "run" / "config.json").write_text(json.dumps(content))
    _, err = run("train.py", "--resume", "run", cwd=copied, check=2)
    assert message in err.splitlines()[-1] and (name == "data" or "run/config.json: error" in err), err


@pytest.mark.parametrize("line", ["{}", "[]", '{"step": "x"}', '{"step": {}}', "\x00\x00", '{"step": 5'])
def test_a_damaged_line_of_metrics_is_dropped_on_resume(trained, copied, line):
    with open(copied / "run" / "metrics.jsonl", "a") as file:
        file.write(line)
    run("train.py", "--resume", "run", cwd=copied)
    assert metrics(copied / "run") == metrics(trained / "runs" / "fox")


def test_ctrl_c_is_never_a_traceback(trained):
    command = [sys.executable, str(ROOT / "sample.py"), "--run", "runs/fox", "--tokens", "1000000"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen(command, cwd=trained, **pipes)
    process.stdout.read(1)  # it writes
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT and "Traceback" not in err


NOTEBOOK = """if True:  # a notebook's streams have no `reconfigure`, and no file behind them
    import io, sys
    class OutStream(io.TextIOBase):
        def __init__(self):
            self.text = []
        def write(self, text):
            self.text.append(text)
            return len(text)
    sys.stdout, sys.stderr = OutStream(), OutStream()
    sys.argv = ["train.py", *sys.argv[1:]]
    import train, sample, lessons.check
    train.main()
    sys.argv = ["sample.py", "--run", "r", "--prompt", "The quick", "--tokens", "3"]
    sample.main()
    sys.__stdout__.write("".join(sys.stdout.text))"""


def test_the_scripts_run_in_a_notebook(tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    line = [sys.executable, "-c", NOTEBOOK, "--data", "fox.txt", *TINY, "--steps", "2", "--out", "r"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and "The quick" in done.stdout, done.stderr


def test_control_characters_are_escaped_on_a_terminal_and_only_there(monkeypatch):
    """ESC would move a terminal's cursor, BEL ring; line breaks, tabs and letters of every script stay."""
    text = "a\x1b[31m\a\0\r\x85b\n\tc 日本é\u3000\u2028\xa0"
    assert cli.printable(text) == text  # pytest captures: no terminal
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli.printable(text) == "a\\x1b[31m\\x07\\x00\\r\\x85b\n\tc 日本é\u3000\\u2028\xa0"


def test_sample_writes_through_it(trained):
    """... what a prompt holds, too."""
    import pty

    ours, theirs = pty.openpty()
    line = [sys.executable, ROOT / "sample.py", "--run", "runs/fox", "--prompt", "-", "--tokens", "3"]
    pipes = dict(stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.PIPE)
    process = subprocess.Popen(line, cwd=trained, **pipes)
    os.close(theirs)
    process.communicate(b"fox\x1b[2J")
    seen = os.read(ours, 1 << 16)
    os.close(ours)
    assert b"fox\\x1b[2J" in seen and b"\x1b" not in seen
