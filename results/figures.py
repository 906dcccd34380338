"""Draw the figures of results/README.md from the recorded JSON files.

    python results/figures.py            -> results/figures/*.svg   (pip install -e ".[lessons]")

Each function in FIGURES is one figure and gives the file its name. A test draws them again.
"""

import argparse
from pathlib import Path

import numpy as np
from common import HERE, of, recorded
from plot import BLUES, GREY, INK, color, draw

LOSS = "validation loss, nats per byte\n(less is better)"
TERAFLOPS = "training FLOPs, 10¹²"


def band(axes, runs, x, y, label, style="-", alpha=0.2):
    """The mean over seeds as a line, least to most as a band. x, y: point of a curve, run -> number."""
    curves = [[(x(point, run), y(point)) for point in run["curve"]] for run in runs]
    xs, ys = np.array(curves).transpose(2, 0, 1)  # (seeds, points) each
    axes.plot(xs[0], ys.mean(0), style, color=color(label), label=label, lw=1.8)
    if alpha:
        axes.fill_between(xs[0], ys.min(0), ys.max(0), color=color(label), alpha=alpha, lw=0)


def teraflops(point, run):
    return point["step"] * run["flops_per_step"] / 1e12


def nats_per_byte(point):
    return point["val_nats_per_byte"]


def capacity_flops(fig):
    """Models with a table learn most of 8,000 random facts for about half of the FLOPs that dense ones need,
    each at its own best learning rate."""
    axes, record = fig.subplots(), recorded("capacity_models")
    for label in record["summary"]:
        band(axes, of(record["runs"], label), teraflops, lambda point: 100 * point["recall"], label)
    axes.set(xlabel=TERAFLOPS, ylabel="facts recalled, %", ylim=(0, 102))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def capacity_worlds(fig):
    """With many facts in each row a STEM model knows more of them than a dense one; with many entities both
    know all, each fact read as often."""
    axes = fig.subplots()
    runs = recorded("capacity_worlds")["runs"] + recorded("capacity_models")["runs"]
    worlds = sorted({(run["relations"], run["entities"]) for run in runs})
    for shift, label in ((-0.19, "dense"), (0.19, "stem all")):
        recalls = [[100 * run["recall"] for run in of(runs, label)
                    if (run["relations"], run["entities"]) == world] for world in worlds]  # fmt: skip
        mean = np.array([np.mean(recall) for recall in recalls])
        spread = [mean - [min(r) for r in recalls], [max(r) for r in recalls] - mean]
        axes.bar(np.arange(len(worlds)) + shift, mean, 0.36, yerr=spread, color=color(label), label=label,
                 ecolor=INK, capsize=3)  # fmt: skip
    names = [f"{relations} × {entities:,}\n= {relations * entities:,}" for relations, entities in worlds]
    axes.set_xticks(range(len(worlds)), names)
    axes.set(xlabel="facts about each entity × entities", ylabel="facts recalled, %", ylim=(0, 105))
    axes.grid(axis="x", visible=False)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def language_flops(fig):
    """At equal FLOPs, models with a table have the smaller loss on Tiny Shakespeare, most of all with a table
    in every layer."""
    axes, record = fig.subplots(), recorded("language_models")
    for label in record["summary"]:
        band(axes, of(record["runs"], label), teraflops, nats_per_byte, label)
    axes.set(xlabel=TERAFLOPS, ylabel=LOSS)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def language_python(fig):
    """On a text too large to be learned by heart, the source of Python's standard library, a table in every
    layer keeps its lead."""
    axes, record = fig.subplots(), recorded("language_python")
    for label in record["summary"]:
        band(axes, of(record["runs"], label), teraflops, nats_per_byte, label)
    axes.set(xlabel=TERAFLOPS, ylabel=LOSS)
    axes.legend()


def language_overfit(fig):
    """Read again and again, a tenth of Tiny Shakespeare is learned by heart, by tables sooner; more weight
    decay or a smaller vocabulary helps both kinds."""
    fig.set_size_inches(8, 4)
    record, (left, right) = recorded("language_overfit"), fig.subplots(1, 2, sharey=True)

    def epochs(point, run):
        return point["step"] * record["epochs"] / run["steps"]

    for label in ("dense", "stem 1/3", "stem 1/2", "stem all"):
        band(left, of(record["runs"], label), epochs, nats_per_byte, label)
    changes = {"": "-", ", table rate 0.5": "-.", ", vocabulary 512": ":", ", weight decay 1": "--"}
    for change, style in changes.items():
        for kind in ("dense", "stem all"):
            if runs := of(record["runs"], kind + change):
                band(right, runs, epochs, nats_per_byte, kind + change, style, alpha=0)
    styles = [right.plot([], [], style, color=INK, label=change.strip(", ") or "nothing changed")[0]
              for change, style in changes.items()]  # fmt: skip
    below = dict(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
    left.set(xlabel="times that the text was read", ylabel=LOSS, title="which layers have a table")
    left.legend(**below)
    right.set(xlabel="times that the text was read", title="what helps")
    right.legend(handles=styles, **below)


def angular_spread(fig):
    """The rows of a trained table point apart almost like random vectors; outputs of a dense up-projection
    are closer together."""
    axes, record = fig.subplots(), recorded("language_models")
    centers = np.linspace(-1, 1, 201)[:-1] + 0.005

    def histogram(spread, label, **line):
        density = np.array(spread["counts"]) / sum(spread["counts"]) / 0.01
        axes.plot(centers, density, label=f"{label}: P95 |cos| {spread['p95']:.2f}", **line)

    histogram(record["random_vectors"]["random"], "random vectors", color=GREY, lw=1.8, ls="--")
    for label, name in (("stem all", "rows of U (STEM)"), ("dense", "x @ w_up (dense)")):
        run = next(run for run in of(record["runs"], label) if run["seed"] == 0)
        histogram(run["spread"]["after"][2]["up"], name, color=color(label), lw=1.8)
    axes.set(xlabel="cosine of a pair, layer 2", ylabel="density", xlim=(-0.6, 0.8))
    axes.legend()


def context_parameters(fig):
    """A longer text touches more table parameters, ever more slowly, while the FFN's FLOPs per token stay the
    same."""
    axes = fig.subplots()
    for shade, row in zip(BLUES, recorded("language_context")["vocabularies"], strict=True):
        label = f"V = {row['vocabulary']:,}: exponent {row['heaps_exponent']}"
        axes.plot(row["lengths"], row["active_table_parameters"], color=shade, label=label, marker=".")
    flops = [row["ffn_flops_per_token"]] * len(row["lengths"])
    axes.plot(row["lengths"], flops, "--", color=INK, label="FFN FLOPs per token")
    axes.set(xlabel="length in tokens", ylabel="table parameters touched", xscale="log", yscale="log")
    axes.legend()


def saved_share(fig):
    """A STEM layer saves a fifth to a quarter of a layer's multiply-adds; the longer the text, the less, as
    attention costs more."""
    axes, lengths, models = fig.subplots(), 2 ** np.arange(0, 16), recorded("cost_count")["models"]
    for shade, name in zip(BLUES, ("default", "README, large", "paper 350M", "paper 1B"), strict=True):
        d, f, layer = (models[name][key] for key in ("dim", "ffn_dim", "layer"))
        share = 100 * f / (4 * d + 2 * lengths + 3 * f)
        axes.plot(lengths, share, color=shade, label=f"{name.replace('README, ', '')}: d = {d}, f = {f}")
        axes.plot([layer["T"]], [100 * layer["saved"]], "o", color=shade)
    axes.set(xlabel="length in tokens (dots: counted while the code runs)", xscale="log", ylim=(0, 30),
             ylabel="saved of a layer, %")  # fmt: skip
    axes.legend(loc="lower left")


def table_start(fig):
    """Tables that start large learn facts sooner: recall after 250 steps, for three learning rates of the
    tables."""
    axes, grid = fig.subplots(), recorded("capacity_tables")["grid"]
    for shade, rate in zip(BLUES[1:], sorted({point["table_lr"] for point in grid}), strict=True):
        points = [point for point in grid if point["table_lr"] == rate]
        stds = [point["table_std"] for point in points]
        low, mean, high = 100 * np.array([point["recall"] for point in points]).T
        axes.plot(stds, mean, marker=".", color=shade, label=f"tables learn at {rate:g} times the rate")
        axes.fill_between(stds, low, high, color=shade, alpha=0.2, lw=0)
    axes.axvline(0.02, color=INK, ls="--", lw=1, label="our default, 0.02")
    axes.axvspan(0.0038, 0.0076, color=GREY, alpha=0.25, lw=0, label="the official code's, 1B to 350M")
    axes.set(xlabel="standard deviation of new tables", xscale="log", ylim=(0, 100))
    axes.set_ylabel("facts recalled, %")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2)


def stability(fig):
    """STEM forgives a learning rate that is sixteen times too high, dense does not; neither spikes."""
    axes = fig.subplots()
    for run in recorded("language_stability")["runs"]:
        if "losses" in run:
            style, rate = {1: ("-", "best rate"), 16: ("--", "16 times"), 64: (":", "64 times")}[run["times"]]
            threes = np.array(run["losses"]).reshape(-1, 3).mean(1)  # of three steps
            axes.plot(3 * np.arange(len(threes)) + 2, threes, style, color=color(run["model"]), lw=1.3,
                      label=f"{run['model']}, {rate}")  # fmt: skip
    axes.set(xlabel="step", ylabel="training loss, nats per token\n(less is better)", ylim=(3, 9))
    axes.legend(ncols=2)


FIGURES = (capacity_flops, capacity_worlds, language_flops, language_python, language_overfit, angular_spread,
           context_parameters, saved_share, table_start, stability)  # fmt: skip


if __name__ == "__main__":
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=HERE / "figures")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for figure in FIGURES:
        path = draw(figure.__name__, figure, args.out)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} KB")
