"""The pages as notebooks:  python -m lessons.notebooks

    python -m lessons.notebooks                     makes lessons/notebooks/*.ipynb anew, from the pages
    python -m lessons.notebooks --compare my.ipynb  what a copy of yours has otherwise than its page

A page is the source, its notebook is made: prose and blocks that are only shown become text cells, python
blocks code cells with the page's output, and each picture a code cell that shows it. The first code cell
finds the project, or gets it from the address that pyproject.toml has under project.urls (none today).
"""

import argparse
import json
import re
import tomllib
from pathlib import Path

from lessons.run import FENCE, ROOT, pages, same
from ministem.run.cli import as_command, fail

HERE = ROOT / "lessons/notebooks"
PICTURE = re.compile(r"^!\[([^]]+)\]\((figures/\w+\.(?:svg|png))\)$", re.M | re.S)
HOSTED = "https://colab.research.google.com/github/{}/blob/main/lessons/notebooks/{}"
SETUP = """# Run this first: it finds the project, or gets it, and goes to its folder.
import importlib, os, subprocess, sys
from pathlib import Path

address = "{address}"  # of the repository
here = Path.cwd()
root = next((p for p in (here, *here.parents) if (p / "lessons/run.py").exists()), None)
if root is None:
    assert address, "open this notebook where it lies, in lessons/notebooks of a copy of the project"
    subprocess.run(["git", "clone", "--depth", "1", address, "ministem"], check=True)
    root = here / "ministem"
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products: more threads only wait for one another
os.chdir(root)
sys.path.insert(0, str(root))
try:
    import ministem
except ImportError:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-e", "."], check=True)
    importlib.invalidate_caches()
"""


def address():
    """Where the repository is published, or "": the one place is pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return project.get("urls", {}).get("Repository", "")


def text(source):
    """A text cell. Links lead from lessons/notebooks/, and from notebook to notebook."""
    source = re.sub(r"\]\((\d\d_\w+)\.md", r"](\1.ipynb", source)
    source = re.sub(r"\]\((?!http|\d\d_)", "](../", source)
    source = re.sub(r"^```math\n(.*?)^```$", r"$$\1$$", source, flags=re.M | re.S)
    return dict(cell_type="markdown", metadata={}, source=source.strip())


def code(source, output="", tolerance=None, picture=None):
    """A code cell with what it printed, or with the picture that it shows."""
    outputs = [dict(output_type="stream", name="stdout", text=output)] if output else []
    if picture:
        data = {"image/svg+xml": (ROOT / "lessons" / picture).read_text("utf-8")}
        outputs = [dict(output_type="display_data", metadata={}, data=data)]
    metadata = {} if tolerance is None else {"tolerance": tolerance}
    return dict(
        cell_type="code", metadata=metadata, execution_count=None, source=source.rstrip("\n"), outputs=outputs
    )


def texts(source):
    """Prose, with a code cell for each picture in it."""
    cells, at = [], 0
    for match in PICTURE.finditer(source):
        show = f'from IPython.display import SVG, display\n\ndisplay(SVG("lessons/{match[2]}"))'
        cells += [
            text(source[at : match.start()]),
            code(f"# {' '.join(match[1].split())}\n{show}", picture=match[2]),
        ]
        at = match.end()
    return [cell for cell in [*cells, text(source[at:])] if cell["source"]]


def notebook(path):
    """A page -> its notebook, as nbformat 4.5 has it"""
    page, at, prose, cells = path.read_text("utf-8"), 0, "", []
    for fence in FENCE.finditer(page):
        kind, options, body = fence[1], fence[2].split(), fence[3]
        prose += page[at : fence.start()]
        at = fence.end()
        if kind == "output":
            tolerance = float(options[0][1:]) if options else None
            cells[-1] = code(cells[-1]["source"], body, tolerance)
        elif kind == "python" and "skip" not in options:
            cells += [*texts(prose), code(body)]
            prose = ""
        else:
            prose += fence[0].replace(f"```{kind} {fence[2]}", f"```{kind}")
    cells += texts(prose + page[at:])
    where = address()
    setup = [code(SETUP.format(address=where))]
    if where:
        link = HOSTED.format(where.removeprefix("https://github.com/"), path.stem + ".ipynb")
        setup = [text(f"[Open in a hosted notebook]({link})"), *setup]
    cells = setup + cells
    for i, cell in enumerate(cells):
        cell["id"] = f"{path.stem[:2]}-{i:02}"
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return dict(cells=cells, metadata=kernel, nbformat=4, nbformat_minor=5)


def dumps(made):
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def printed(cell):
    """What a code cell has printed"""
    return "".join(
        "".join(o.get("text", "")) for o in cell.get("outputs", []) if o["output_type"] == "stream"
    )


def compare(path, mine):
    """A page, and a notebook (as json has it) -> lines that say which code cells differ, and how"""
    lines, cells = [], {cell.get("id"): cell for cell in mine["cells"] if cell["cell_type"] == "code"}
    for cell in notebook(path)["cells"]:
        if cell["cell_type"] != "code":
            continue
        own = cells.pop(cell["id"], None)
        first = cell["source"].splitlines()[0]
        if own is None:
            lines.append(f"{cell['id']} is gone: {first}")
        elif "".join(own["source"]) != cell["source"]:
            lines.append(f"{cell['id']} has other code than the page: {first}")
        elif not same(printed(cell), printed(own), cell["metadata"].get("tolerance")):
            lines += [f"{cell['id']} prints something else than the page: {first}",
                      *(f"  - {line}" for line in printed(cell).splitlines()),
                      *(f"  + {line}" for line in printed(own).splitlines())]  # fmt: skip
    return lines + [f"{id} is new" for id in cells]


def main():
    parser = argparse.ArgumentParser(prog="python -m lessons.notebooks", description=__doc__.splitlines()[0])
    parser.add_argument("--compare", metavar="NOTEBOOK", help="what it has otherwise than its page")
    args = parser.parse_args()
    if args.compare:
        try:
            mine = json.loads(Path(args.compare).read_text("utf-8"))
            number = next(cell["id"][:2] for cell in mine["cells"] if cell.get("id", "")[:2] in pages())
        except (OSError, ValueError, KeyError, StopIteration):
            fail(f"{args.compare} is no notebook of these lessons")
        return print("\n".join(compare(pages()[number], mine)) or "as on the page")
    HERE.mkdir(exist_ok=True)
    for path in pages().values():
        (HERE / f"{path.stem}.ipynb").write_text(dumps(notebook(path)), "utf-8")
        print(f"lessons/notebooks/{path.stem}.ipynb")


if __name__ == "__main__":
    as_command(main)
