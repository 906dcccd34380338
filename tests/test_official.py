"""The way out, walked: the official STEM code goes on with a run of ours, on CPUs, and it comes back.

    STEM_CODE=/path/to/STEM python -m pytest tests/test_official.py

needs a checkout of github.com/Infini-AI-Lab/STEM (walked with commit dcc9b73), PyTorch and omegaconf.
"""

import json
import os
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from ministem.config import Config, init_params
from ministem.convert.folders import export_run, import_run
from ministem.convert.lingua import to_lingua
from ministem.data import draw_batch
from ministem.generate import generate
from ministem.model import loss_and_grads
from ministem.optim import AdamW
from ministem.run.checkpoint import Run, load_checkpoint
from ministem.tokenizer import train_bpe

CODE = os.environ.get("STEM_CODE")
missing = [name for name in ("torch", "omegaconf") if not find_spec(name)]
pytestmark = [
    pytest.mark.skipif(not CODE, reason="STEM_CODE names no checkout of the official code"),
    pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}"),
]

CPU = str(Path(__file__).with_name("official_cpu.py"))
PROMPT = "The capital of Spain is"
FACTS = {"Spain": "Madrid", "Norway": "Oslo", "Japan": "Tokyo", "South Africa": "Pretoria", "Peru": "Lima"}
TEXT = "".join(f"The capital of {c} is {town}.\n{town} lies in {c}.\n" for c, town in FACTS.items()) * 40


def trained(folder, **changes):
    """A run that has learned its text, so that greedy answers are not a matter of rounding."""
    tokenizer = train_bpe(TEXT, 320, (" South Africa",))
    sizes = dict(dim=24, n_layers=3, n_heads=4, n_kv_heads=2, ffn_dim=40, context=32, rope_theta=5e4)
    config = Config(tokenizer.n_vocab, **sizes | changes)
    params, tables = init_params(config, seed=1)
    ids, optimizer = np.array(tokenizer.encode(TEXT)), AdamW(lr=1e-2)
    for step in range(60):
        x, y = draw_batch(ids, 8, 32, seed=0, step=step)
        _, grads = loss_and_grads(params, config, tables.fetch(x), y)
        optimizer.step(params, tables, grads)
    text = folder.with_name("facts.txt")
    text.write_text(TEXT)
    return Run(folder, config, dict(data=str(text), batch=4), tokenizer, params, tables)


def command(*args, processes=None, text=""):
    """Run official_cpu.py, by torchrun if there is a number of processes -> its output. It must succeed."""
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = os.environ | dict(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1", PYTHONUTF8="1")
    done = subprocess.run(
        [sys.executable, *(run if processes else []), CPU, *map(str, args)],
        input=text, capture_output=True, text=True, encoding="utf-8", env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def answers(launch, checkpoint):
    said = command(launch, CODE, "generate", checkpoint, "max_gen_len=8", "dtype=fp32", "device=cpu",
                   text=PROMPT + "\n\n")  # fmt: skip
    return said.split("Generated Text: ")[1].split("\n\nTokens per second")[0]


def our_answer(run):
    ids = generate(run.params, run.tables, run.config, run.tokenizer.encode(PROMPT), 8, temperature=0)
    return run.tokenizer.decode(list(ids))


@pytest.mark.parametrize("stem_layers, processes", [((0, 2), 1), ((0, 2), 2), ((), 1)])
def test_official_training_goes_on_with_our_run_and_it_comes_back(tmp_path, stem_layers, processes):
    import torch
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    run = trained(tmp_path / "run", stem_layers=stem_layers)
    assert not export_run(run, tmp_path / "out", "lingua", processes)
    launch, dump = tmp_path / "out/launch.py", tmp_path / "out/dump"
    assert our_answer(run).startswith(" Madrid.")
    if processes == 1:
        assert answers(launch, tmp_path / "out") == our_answer(run)

    command(launch, CODE, "batches", processes, tmp_path / "ids.npy")
    command(launch, CODE, "train", "steps=2", "logging.freq=1", "optim.warmup=1", processes=processes)
    batches = np.load(tmp_path / "ids.npy")
    assert batches.shape == (processes, 4 // processes, 32, 2)
    assert run.tokenizer.eot not in batches, "training has never seen that token"
    ours = [
        loss_and_grads(run.params, run.config, run.tables.fetch(batch[..., 0]), batch[..., 1])[0]
        for batch in batches
    ]
    theirs = json.loads((dump / "metrics.jsonl").read_text().splitlines()[0])
    assert theirs["global_step"] == 1
    np.testing.assert_allclose(theirs["loss/out"], np.mean(ours), rtol=1e-5)

    checkpoint = dump / "checkpoints/0000000002"
    import_run(checkpoint, tmp_path / "new")
    new = load_checkpoint(tmp_path / "new")
    assert new.config == run.config and new.tokenizer.hash == run.tokenizer.hash
    with warnings.catch_warnings(action="ignore"):  # that there is no process group
        dcp_to_torch_save(checkpoint, tmp_path / "all.pth")
    found = torch.load(tmp_path / "all.pth", weights_only=True)["model"]
    found = {"lm_transformer." + name.removeprefix("lm_transformer."): a for name, a in found.items()}
    shards = [torch.load(checkpoint / f"stem_shards/stem_model_mp{i}.pt", weights_only=True)
              for i in range(processes if stem_layers else 0)]  # fmt: skip
    if shards:
        found |= {name: torch.cat([shard[name] for shard in shards], 1) for name in shards[0]}
    state, before = (to_lingua(r.params, r.tables, r.config) for r in (new, run))
    assert state.keys() == found.keys()
    for name, a in state.items():
        assert a.tobytes() == found[name].detach().numpy().tobytes(), name
        moved = np.abs(a - before[name]).max()
        assert 0 < moved < 0.01, f"{name} moved by {moved} in two steps from ours"

    assert answers(launch, checkpoint) == our_answer(new)


def test_as_many_processes_as_shards_or_none(tmp_path):
    export_run(trained(tmp_path / "run", stem_layers=(0, 2)), tmp_path / "out", "lingua", 2)
    done = subprocess.run(
        [sys.executable, CPU, str(tmp_path / "out/launch.py"), CODE, "train"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "tables are cut into 2, processes: 1" in done.stderr
    assert not (tmp_path / "out/dump").exists()
