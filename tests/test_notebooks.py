"""Each page is a notebook too: made from it, and run by a real kernel with the page's results."""

import json

import pytest

from lessons import notebooks, run

PAGES = run.pages()


@pytest.mark.parametrize("number", PAGES)
def test_a_notebook_is_its_page(number):
    """After a change of a page: python -m lessons.notebooks"""
    made = notebooks.HERE / f"{PAGES[number].stem}.ipynb"
    assert made.read_text("utf-8") == notebooks.dumps(notebooks.notebook(PAGES[number]))


def test_they_are_all_there_and_small():
    there = sorted(path.name for path in notebooks.HERE.iterdir() if path.suffix == ".ipynb")
    assert there == sorted(f"{path.stem}.ipynb" for path in PAGES.values())
    assert sum(path.stat().st_size for path in notebooks.HERE.glob("*.ipynb")) < 1_200_000


@pytest.mark.parametrize("number", PAGES)
def test_a_kernel_runs_a_notebook_from_its_own_folder(number):
    nbclient = pytest.importorskip("nbclient", reason='needs nbclient: pip install -e ".[lessons]"')
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel", reason='needs ipykernel: pip install -e ".[lessons]"')
    path = notebooks.HERE / f"{PAGES[number].stem}.ipynb"
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    where = {"metadata": {"path": str(notebooks.HERE)}}
    nbclient.NotebookClient(book, timeout=120, resources=where).execute()
    assert notebooks.compare(PAGES[number], book) == []
    shown = [o for cell in book.cells for o in cell.get("outputs", []) if "data" in o]
    assert shown and all("image/svg+xml" in o["data"] for o in shown if o["output_type"] == "display_data")


def test_nothing_only_shown_comes_alive_and_no_link_leads_nowhere():
    for path in PAGES.values():
        book = notebooks.notebook(path)
        sources = [cell["source"] for cell in book["cells"] if cell["cell_type"] == "code"]
        for fence in run.FENCE.finditer(path.read_text("utf-8")):
            if fence[1] != "output":
                alive = fence[1] == "python" and "skip" not in fence[2].split()
                assert (fence[3].rstrip("\n") in sources) == alive
        for cell in book["cells"]:
            if cell["cell_type"] == "markdown":
                assert "![" not in cell["source"] and "```python skip" not in cell["source"]
                for link in notebooks.re.findall(r"\]\(([^)#]+)", run.FENCE.sub("", cell["source"])):
                    assert link.startswith("http") or (notebooks.HERE / link).exists(), link


def test_a_link_to_a_hosted_notebook_is_shown_when_there_is_an_address(monkeypatch):
    assert "hosted" not in notebooks.dumps(notebooks.notebook(PAGES["03"])) or notebooks.address()
    monkeypatch.setattr(notebooks, "address", lambda: "https://github.com/someone/ministem")
    book = notebooks.dumps(notebooks.notebook(PAGES["03"]))
    assert "github/someone/ministem/blob/main/lessons/notebooks/03_a_gradient_you_can_trust.ipynb" in book
    assert "https://github.com/someone/ministem" in book


def test_a_copy_says_what_it_has_otherwise():
    mine = json.loads(notebooks.dumps(notebooks.notebook(PAGES["03"])))
    assert notebooks.compare(PAGES["03"], mine) == []
    with_code = [cell for cell in mine["cells"] if cell["cell_type"] == "code"]
    with_code[1]["source"] += "\nx = 1"
    with_output = next(cell for cell in with_code[2:] if notebooks.printed(cell))
    with_output["outputs"][0]["text"] = "7\n"
    mine["cells"].remove(with_code[-1])
    mine["cells"].append(dict(cell_type="code", id="new", source="1", outputs=[]))
    said = notebooks.compare(PAGES["03"], mine)
    assert f"{with_code[1]['id']} has other code" in said[0] and "  + 7" in said
    assert (
        any(line.startswith(f"{with_code[-1]['id']} is gone") for line in said) and said[-1] == "new is new"
    )
