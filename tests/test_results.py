"""Recorded results say how they were made, hold no trace of the machine but its versions, and are what the
figures were drawn from."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = sorted((ROOT / "results").glob("*.json"))
FIGURES = sorted((ROOT / "results" / "figures").glob("*.svg"))


def test_there_are_results():
    assert len(RESULTS) >= 3 and len(FIGURES) >= 5


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_a_result_names_its_command_versions_and_date(path):
    text = path.read_text("utf-8")
    content = json.loads(text)
    assert content["command"].startswith("python ") and content["versions"]["numpy"] and content["date"]
    script = path.parent.parent / content["command"].split()[1]
    assert script.exists() and not re.search(r"/(tmp|root|home|work|mnt)\b|NaN|Infinity", text)


@pytest.mark.parametrize("name, key", [
    ("capacity_models", "recall"), ("language_models", "val_nats_per_byte"),
])  # fmt: skip
def test_a_summary_says_what_its_runs_say(name, key):
    path = ROOT / "results" / f"{name}.json"
    content = json.loads(path.read_text("utf-8"))
    for model, summary in content["summary"].items():
        runs = [run for run in content["runs"] if run["model"] == model]
        assert [run["seed"] for run in runs] == content["seeds"] and len(runs) >= 3
        found = [run[key] for run in runs]
        low, mean, high = summary[key]
        assert (low, high) == (min(found), max(found)) and abs(mean - sum(found) / len(found)) < 1e-4
        assert all(run["curve"][-1][key] == run[key] for run in runs)


def test_the_recorded_costs_are_those_of_the_code_as_it_is_now():
    """Counting is exact, so the record must come out again to the last digit (of small models, here)."""
    names = ("default", "capacity")
    code = f"import json, cost; print(json.dumps({{n: cost.model(n, cost.OURS[n]) for n in {names}}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT / "results", capture_output=True, text=True)
    again = json.loads(done.stdout)
    recorded = json.loads((ROOT / "results" / "cost_count.json").read_text("utf-8"))["models"]
    assert {name: recorded[name] for name in again} == again


def test_figures_are_drawn_from_the_records_as_they_are(tmp_path):
    if find_spec("matplotlib") is None:
        pytest.skip('needs matplotlib: pip install -e ".[lessons]"')
    drawn_with = re.search(r"Matplotlib v([\d.]+)", FIGURES[0].read_text("utf-8")).group(1).rstrip(".")
    if drawn_with != version("matplotlib"):
        pytest.skip(f"the figures were drawn with matplotlib {drawn_with}: another may draw other bytes")
    command = [sys.executable, "results/figures.py", "--out", tmp_path]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FIGURES}
    for path in FIGURES:
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), f"{path.name}: draw it again"


def test_without_matplotlib_one_line_says_what_to_install(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('no matplotlib')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "results/figures.py", "--out", tmp_path], cwd=ROOT,
                          env=os.environ | dict(PYTHONPATH=path), capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "[lessons]" in done.stderr


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.name)
def test_a_figure_has_a_title_a_white_ground_no_date_and_is_small(path):
    svg = path.read_text("utf-8")
    assert re.search(r"<svg[^>]*>\s*<title>[^<]{40,}</title>", svg) and "<dc:date>" not in svg
    assert "fill: #ffffff" in svg and path.stat().st_size < 40_000


@pytest.mark.parametrize("command", ["cache.py --data no.txt", "language.py context --text no.txt"])
def test_an_experiment_without_its_text_says_so_in_one_line(command):
    words = [sys.executable, *f"results/{command}".split()]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "cannot read no.txt" in done.stderr
