"""Draw every figure from the recorded JSON files.

    python results/figures.py            -> results/figures/*.svg   (pip install -e ".[lessons]")

A figure is a function below; its name is the file's, its docstring the title that a screen reader reads out.
The same data and the same matplotlib give the same bytes: a test draws them again.
"""

import argparse
import html
import json
from pathlib import Path

import matplotlib
import numpy as np

HERE = Path(__file__).resolve().parent
STYLE = {
    "svg.hashsalt": "ministem", "svg.fonttype": "none", "figure.figsize": (6.4, 3.8), "figure.dpi": 100,
    "savefig.facecolor": "white", "axes.spines.top": False, "axes.spines.right": False, "font.size": 10,
    "axes.grid": True, "grid.color": "#e5e5e5", "legend.frameon": False, "legend.fontsize": 8.5,
}  # fmt: skip
COLORS = {
    "dense": "#555555", "dense, FLOPs of stem all": "#aaaaaa",
    "stem 1/3": "#9ecae1", "stem 1/2": "#4292c6", "stem all": "#08306b",
    "gate": "#d95f02", "additive": "#7a4fa3",
    "stem all, table rate 0.5": "#1b9e77", "stem all, weight decay 1": "#d95f02",
    "stem all, vocabulary 512": "#7a4fa3",
    "dense, weight decay 1": "#f2b183", "dense, vocabulary 512": "#bda8d6",
}  # fmt: skip
BLUES = ("#9ecae1", "#4292c6", "#2171b5", "#08306b")


def color(model):
    return COLORS.get(model) or COLORS[model.split()[0]]


def load(name):
    return json.loads((HERE / f"{name}.json").read_text("utf-8"))


def band(axes, runs, x, y, label):
    """The mean over seeds as a line, least to most as a band. x, y: point of a curve, run -> number."""
    curves = [[(x(point, run), y(point)) for point in run["curve"]] for run in runs]
    xs, ys = np.array(curves).transpose(2, 0, 1)  # (seeds, points) each
    axes.plot(xs[0], ys.mean(0), color=color(label), label=label, lw=1.6)
    axes.fill_between(xs[0], ys.min(0), ys.max(0), color=color(label), alpha=0.2, lw=0)


def of(runs, model):
    return [run for run in runs if run["model"] == model]


def flops_so_far(point, run):
    return point["step"] * run["flops_per_step"]


def capacity_flops(axes):
    """Recall of 8,000 random facts against training FLOPs, each model at its own best learning rate, bands
    over seeds."""
    found = load("capacity_models")
    for label in found["summary"]:
        band(axes, of(found["runs"], label), flops_so_far, lambda point: 100 * point["recall"], label)
    axes.set(xlabel="training FLOPs", ylabel="facts recalled, %", ylim=(0, 102))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def capacity_worlds(axes):
    """Facts known in four worlds (entities × relations), by a dense model and by STEM in all layers, each
    fact read as often."""
    runs = load("capacity_worlds")["runs"] + load("capacity_models")["runs"]
    worlds = sorted({(run["facts"], run["entities"], run["relations"]) for run in runs})
    for shift, label in ((-0.2, "dense"), (0.2, "stem all")):
        known = [[100 * run["recall"] for run in of(runs, label)
                  if (run["entities"], run["relations"]) == world[1:]] for world in worlds]  # fmt: skip
        mean = np.array([np.mean(k) for k in known])
        spread = [mean - [min(k) for k in known], [max(k) for k in known] - mean]
        at = np.arange(len(worlds)) + shift
        axes.bar(at, mean, 0.36, yerr=spread, color=color(label), label=label, ecolor="#d95f02", capsize=2)
    names = [f"{facts:,}\n{entities:,} × {relations}" for facts, entities, relations in worlds]
    axes.set_xticks(range(len(worlds)), names)
    axes.set(xlabel="facts (entities × relations)", ylabel="facts recalled, %", ylim=(0, 105))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def language_flops(axes):
    """Validation loss on Tiny Shakespeare against training FLOPs, bands over seeds."""
    found = load("language_models")
    for label in found["summary"]:
        band(axes, of(found["runs"], label), flops_so_far, lambda point: point["val_nats_per_byte"], label)
    axes.set(xlabel="training FLOPs", ylabel="validation loss, nats per byte", xscale="log")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def language_python(axes):
    """Validation loss on a text too large to be learned by heart, the source of Python's standard library,
    against training FLOPs, bands over seeds."""
    found = load("language_python")
    for label in found["summary"]:
        band(axes, of(found["runs"], label), flops_so_far, lambda point: point["val_nats_per_byte"], label)
    axes.set(xlabel="training FLOPs", ylabel="validation loss, nats per byte", xscale="log")
    axes.legend()


def language_overfit(axes):
    """Validation loss while a tenth of Tiny Shakespeare is read again and again, bands over seeds."""
    found = load("language_overfit")

    def epochs(point, run):
        return point["step"] * found["epochs"] / run["steps"]

    for label in found["summary"]:
        band(axes, of(found["runs"], label), epochs, lambda point: point["val_nats_per_byte"], label)
    axes.set(xlabel="times that the text was read", ylabel="validation loss, nats per byte")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def angular_spread(axes):
    """Cosines between all pairs of rows of a trained table, of outputs of a dense up-projection, and of
    random vectors of the same width."""
    found = load("language_models")
    centers = np.linspace(-1, 1, 201)[:-1] + 0.005

    def draw(counts, label, **how):
        density = np.array(counts) / sum(counts) / 0.01
        axes.plot(centers, density, label=label, **how)

    for label, name in (("stem all", "rows of U (STEM)"), ("dense", "x @ w_up (dense)")):
        run = next(run for run in of(found["runs"], label) if run["seed"] == 0)
        layer = run["spread"]["after"][2]["up"]
        draw(layer["counts"], f"{name}: P95 |cos| {layer['p95']:.3f}", color=color(label), lw=1.8)
    random = found["random_vectors"]["random"]
    draw(random["counts"], f"random: P95 |cos| {random['p95']:.3f}", color="#d95f02", ls="--")
    axes.set(xlabel="cosine of a pair", ylabel="density", xlim=(-0.6, 0.8))
    axes.legend()


def context_parameters(axes):
    """Table parameters that a text of some length touches grow ever more slowly, FFN FLOPs per token not
    at all."""
    found = load("language_context")
    for shade, of_one in zip(BLUES, found["vocabularies"], strict=True):
        label = f"V = {of_one['vocabulary']:,}: exponent {of_one['heaps_exponent']}"
        axes.plot(of_one["lengths"], of_one["active_table_parameters"], color=shade, label=label, marker=".")
    flops = of_one["ffn_flops_per_token"]
    axes.plot(of_one["lengths"], [flops] * len(of_one["lengths"]), "--", color="#d95f02",
              label="FFN FLOPs per token")  # fmt: skip
    axes.set(xlabel="length in tokens", ylabel="table parameters touched", xscale="log", yscale="log")
    axes.legend()


def saved_share(axes):
    """What a STEM layer saves of a layer's multiply-adds, against the length of the text: the longer it is,
    the more attention costs, and the less is saved."""
    lengths = 2 ** np.arange(0, 16)
    models = load("cost_count")["models"]
    for shade, name in zip(BLUES, ("default", "README, large", "paper 350M", "paper 1B"), strict=True):
        d, f, counted = (models[name][key] for key in ("dim", "ffn_dim", "layer"))
        share = 100 * f / (4 * d + 2 * lengths + 3 * f)
        axes.plot(lengths, share, color=shade, label=f"{name}: d = {d}, f = {f}")
        axes.plot([counted["T"]], [100 * counted["saved"]], "o", color=shade)
    axes.set(xlabel="length in tokens (dots: counted while the code runs)", xscale="log", ylim=(0, 30),
             ylabel="saved of a STEM layer, %")  # fmt: skip
    axes.legend(loc="lower left")


def table_start(axes):
    """Recall of 8,000 random facts after 250 steps, early in training, against the standard deviation with
    which tables start, for three learning rates of the tables."""
    grid = load("training_tables")["grid"]
    for shade, rate in zip(BLUES[1:], sorted({point["table_lr"] for point in grid}), strict=True):
        some = [point for point in grid if point["table_lr"] == rate]
        stds = [point["table_std"] for point in some]
        low, mean, high = 100 * np.array([point["recall"] for point in some]).T
        axes.plot(stds, mean, marker=".", color=shade, label=f"tables learn at {rate:g} times the rate")
        axes.fill_between(stds, low, high, color=shade, alpha=0.2, lw=0)
    axes.axvline(0.02, color="#d95f02", ls="--", lw=1, label="our default, 0.02")
    axes.axvspan(0.0038, 0.0076, color="#d95f02", alpha=0.15, label="the official code's, 1B to 350M")
    axes.set(xlabel="standard deviation of new tables", xscale="log", ylim=(0, 100))
    axes.set_ylabel("facts recalled, %")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncol=2)


def stability(axes):
    """Training loss at the best learning rate, sixteen and sixty-four times as high, dense and STEM, one
    seed, means of three steps."""
    for run in load("training_stability")["runs"]:
        if "losses" in run:
            style = {1: "-", 16: "--", 64: ":"}[run["times"]]
            label = f"{run['model']}, rate {run['lr']:g}"
            threes = np.array(run["losses"]).reshape(-1, 3).mean(1)
            axes.plot(3 * np.arange(len(threes)) + 2, threes, style, color=color(run["model"]), lw=1.2,
                      label=label)  # fmt: skip
    axes.set(xlabel="step", ylabel="training loss, nats per token", ylim=(3, 9))
    axes.legend(ncol=2)


FIGURES = (capacity_flops, capacity_worlds, language_flops, language_python, language_overfit, angular_spread,
           context_parameters, saved_share, table_start, stability)  # fmt: skip


def draw(figure, folder):
    """One figure -> its SVG file in `folder`, with a title and without a date."""
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        canvas = Figure(layout="constrained")
        figure(canvas.subplots())
        path = folder / f"{figure.__name__}.svg"
        canvas.savefig(path, metadata={"Date": None})
    title = html.escape(" ".join(figure.__doc__.split()))
    svg = path.read_text("utf-8")
    end_of_tag = svg.index(">", svg.index("<svg")) + 1
    path.write_text(svg[:end_of_tag] + f"\n <title>{title}</title>" + svg[end_of_tag:], "utf-8")
    return path


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=HERE / "figures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for figure in FIGURES:
        path = draw(figure, args.out)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} KB")
