"""Recorded results say how they were made, and hold no trace of the machine but its versions."""

import json
from pathlib import Path

import pytest

RESULTS = sorted((Path(__file__).resolve().parent.parent / "results").glob("*.json"))


def test_there_are_results():
    assert len(RESULTS) >= 3


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_result_names_its_command_versions_and_date(path):
    content = json.loads(path.read_text("utf-8"))
    assert content["command"].startswith("python ") and content["versions"]["numpy"] and content["date"]
    script = path.parent.parent / content["command"].split()[1]
    assert script.exists() and "/tmp" not in path.read_text("utf-8")
