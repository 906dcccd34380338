"""Draw the figures of the lessons:  python -m lessons.figures [NAME ...]

lessons/figures/drawNN.py holds the figures of lesson NN. Each function in it whose name does not begin with _
draws one: it fills an empty matplotlib Figure (results/plot.py has the colours). Its name says what there is
to see and becomes NAME.svg; its docstring is the sentence that the figure proves, the SVG's <title>, and a
part of the caption on the page. The data come from arithmetic done there and then (best of + - * / and sqrt,
which are the same on every machine, where rounding shows), or from results/*.json. A test draws all anew and
compares every byte.

Needs matplotlib: pip install -e ".[lessons]". Readers don't: the drawings are in the repository.
"""

import argparse
import importlib
import inspect
from pathlib import Path

from ministem.run.cli import fail
from results.plot import draw

HERE = Path(__file__).resolve().parent


def figures():
    """-> {"error_against_step": the function that draws it}"""
    by_name = {}
    for path in sorted(HERE.glob("draw[0-9][0-9].py")):
        module = importlib.import_module(f"lessons.figures.{path.stem}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if not name.startswith("_") and function.__module__ == module.__name__:
                assert name not in by_name, f"two figures are called {name}"
                by_name[name] = function
    return by_name


def main():
    parser = argparse.ArgumentParser(prog="python -m lessons.figures", description="Draw the figures.")
    parser.add_argument("name", nargs="*", help="default: all")
    by_name = figures()
    names = parser.parse_args().name or by_name
    for name in names:
        if name not in by_name:
            fail(f"there is no figure {name}; there are {', '.join(by_name)}")
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError as error:
        fail(f'{error}: pip install -e ".[lessons]"')
    for name in names:
        print(draw(name, by_name[name], HERE).relative_to(HERE.parent.parent))


if __name__ == "__main__":
    main()
