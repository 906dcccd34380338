"""How all figures look, of results/ and of lessons/: one style, one colour for each kind of model.

A figure is a function: it fills an empty matplotlib Figure. Its docstring is the sentence that the figure
proves, and the SVG's <title>. The same data and the same matplotlib give the same bytes. Readers need no
matplotlib: the drawings are in the repository.
"""

import inspect

# told apart by all eyes, and the same thing has the same colour on every page
DENSE, STEM, GATE, ADDITIVE = "#d55e00", "#0072b2", "#009e73", "#cc79a7"
INK, GREY, PURPLE = "#333333", "#888888", "#7a4fa3"  # for what is no model
BLUES = ("#a6cee3", "#56a3d0", STEM, "#08306b")  # of several STEM models or tables, the smallest first
MODELS = {
    "dense": DENSE, "dense, FLOPs of stem all": "#f2a65a", "stem": STEM, "stem 1/3": BLUES[0],
    "stem 1/2": BLUES[1], "stem all": STEM, "gate": GATE, "additive": ADDITIVE,
}  # fmt: skip

STYLE = {
    "svg.hashsalt": "ministem",  # ids in the file are the same each time
    "svg.fonttype": "none",  # text stays text: small files, and a search finds it
    "font.size": 10,
    "legend.fontsize": 8.5,
    "figure.figsize": (6, 3.4),
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",  # a card that is readable in dark mode too
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
}


def color(label):
    """The colour of a model: of "stem 1/3", or of "dense, weight decay 1", which is dense."""
    return MODELS[max((name for name in MODELS if label.startswith(name)), key=len)]


def draw(name, function, folder):
    """Write folder/NAME.svg -> its path."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "svg", **STYLE}):
        figure, path = Figure(), folder / f"{name}.svg"
        function(figure)
        title = " ".join(inspect.getdoc(function).split())
        figure.savefig(path, format="svg", metadata={"Date": None, "Title": title})
    # matplotlib leaves blanks at line ends, which editors and git do not like
    path.write_text("".join(line.rstrip() + "\n" for line in path.read_text("utf-8").splitlines()), "utf-8")
    return path
