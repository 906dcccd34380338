"""Figures of lesson 03: a gradient you can trust."""

import numpy as np

from results.plot import GREY, INK, PURPLE


def error_against_step(fig):
    """A central difference has a best step: larger steps see the curve bend, smaller ones see rounding."""
    ax = fig.subplots()
    steps = 0.5 ** np.arange(41)  # (41,)  powers of two: nothing is rounded in them
    for dtype, colour in (("float32", PURPLE), ("float64", INK)):
        x, one = np.full(1, 1.1, dtype), np.ones(1, dtype)  # (1,) arrays: NumPy then keeps their precision

        def f(x, one=one):
            return x / np.sqrt(x * x + one)  # RMSNorm of a single number, with eps = 1

        true = 1 / (1 + float(x[0]) ** 2) ** 1.5  # the slope of f at x
        errors = []
        for step in steps:
            h = np.full(1, step, dtype)
            estimate = (f(x + h) - f(x - h)) / (h + h)
            errors.append(abs(float(estimate[0]) - true) / true)
        ax.loglog(steps, errors, ".-", color=colour, label=dtype)
    ax.axvline(1e-6, color=GREY, ls=":")
    ax.text(8e-7, 1e-11, "our h", color=GREY)
    ax.invert_xaxis()
    ax.set(xlabel="step h (smaller to the right)", ylabel="relative error of the slope")
    ax.legend(loc="lower left")
