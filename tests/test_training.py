"""The numbers that a training writes down, computed once more by other means."""

import json

import numpy as np
import pytest
from commands import TINY, command

from ministem.model import forward
from ministem.run.checkpoint import load_checkpoint

SENTENCES = "나는 학교에 갑니다", "그는 집에 있습니다", "우리는 물을 마십니다", "스페인의 수도는 마드리드"


def test_validation_losses_are_those_of_the_text_in_nats_per_token_and_per_byte(tmp_path):
    """In Korean, where a token has several bytes and a character three; of a text of more than 20 batches, of
    which 20 are evaluated on the way and all in the end. Softmax in float64, a window at a time."""
    rng, B, T = np.random.default_rng(0), 4, 8  # of TINY
    text = "".join(f"{rng.choice(SENTENCES)} {rng.integers(1000)}.\n" for _ in range(1200))
    (tmp_path / "ko.txt").write_text(text, "utf-8")
    line = ["--data", "ko.txt", *TINY, "--steps", 4, "--eval-every", 2, "--lr", 0.02, "--out", "run"]
    done = command("train.py", *line, cwd=tmp_path)
    assert done.code == 0, done.err
    lines = list(map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()))
    assert [line["step"] for line in lines] == [2, 4] and lines[0]["val_loss"] != lines[1]["val_loss"]
    for line in lines:
        run = load_checkpoint(tmp_path / "run" / f"step-{line['step']:06d}")
        val = text[int(0.9 * len(text)) :]
        ids = run.tokenizer.encode(val)
        assert len(ids) > 1 + 22 * B * T and len(ids) < 0.7 * len(val.encode())
        end = len(ids) - 1 if line["step"] == 4 else 20 * B * T
        losses = []
        for i in range(0, end, T):
            window, targets = ids[i : min(i + T, end)], ids[i + 1 : min(i + T, end) + 1]
            logits = forward(run.params, run.config, run.tables.fetch([window]))[0].astype("float64")
            log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            losses += [-log_p[t, target] for t, target in enumerate(targets)]
        assert len(losses) == end
        per_byte = np.mean(losses) * len(ids) / len(val.encode())
        assert line["val_tokens"] == end
        assert line["val_loss"] == pytest.approx(np.mean(losses), rel=1e-5)
        assert line["val_nats_per_byte"] == pytest.approx(per_byte, rel=1e-5)
