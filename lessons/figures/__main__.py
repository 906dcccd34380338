"""Draw the figures of the lessons:  python -m lessons.figures [NAME ...]

lessons/figures/drawNN.py holds the figures of lesson NN. Each function in it whose name does not begin with _
draws one: it gets an empty matplotlib Figure, fills it and returns it. Its name says what there is to see and
becomes NAME.svg; its docstring is the sentence that the figure proves, the SVG's <title>, and a part of the
caption on the page. The data come from arithmetic done there and then (best of + - * / and sqrt, which
are the same on every machine, where rounding shows), or from results/*.json. A test draws all anew and
compares every byte.

Needs matplotlib: pip install -e ".[lessons]". Readers don't: the drawings are in the repository.
"""

import argparse
import importlib
import inspect
from pathlib import Path

from ministem.run.cli import fail

HERE = Path(__file__).resolve().parent
STYLE = {
    "svg.hashsalt": "ministem",  # ids in the file are the same each time
    "svg.fonttype": "none",  # text stays text: small files, and a search finds it
    "font.size": 10,
    "figure.figsize": (6, 3.4),
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",  # a card that is readable in dark mode too
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}
# told apart by all eyes, and the same thing has the same colour on every page
STEM, DENSE, GREY, GREEN, PINK = "#0072b2", "#d55e00", "#888888", "#009e73", "#cc79a7"


def figures():
    """-> {"error_against_step": the function that draws it}"""
    found = {}
    for path in sorted(HERE.glob("draw[0-9][0-9].py")):
        module = importlib.import_module(f"lessons.figures.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and function.__module__ == module.__name__:
                assert name not in found, f"two figures are called {name}"
                found[name] = function
    return found


def draw(name, function, folder=HERE):
    """Write folder/NAME.svg -> its path."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "svg", **STYLE}):
        figure = function(Figure())
        path = folder / f"{name}.svg"
        title = " ".join(inspect.getdoc(function).split())
        figure.savefig(path, format="svg", metadata={"Date": None, "Title": title})
    # matplotlib leaves blanks at line ends, which editors and git do not like
    path.write_text("".join(line.rstrip() + "\n" for line in path.read_text("utf-8").splitlines()), "utf-8")
    return path


def main():
    parser = argparse.ArgumentParser(prog="python -m lessons.figures", description="Draw the figures.")
    parser.add_argument("name", nargs="*", help="default: all")
    found = figures()
    names = parser.parse_args().name or found
    for name in names:
        if name not in found:
            fail(f"there is no figure {name}; there are {', '.join(found)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        fail(f'{error}: pip install -e ".[lessons]"')
    for name in names:
        print(draw(name, found[name]).relative_to(HERE.parent.parent))


if __name__ == "__main__":
    main()
