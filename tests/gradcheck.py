"""The gradient checker that every layer test uses. It has a test of its own: test_gradcheck.py."""

import numpy as np


def to_dense(grad):
    return grad.to_dense() if hasattr(grad, "to_dense") else grad


def check_backward(forward, backward, args, rng, tol=1e-7, eps=2e-4, constants=()):
    """For each float input: <backward's gradient, v> must equal the slope of <dout, forward> along v.

    args: forward's keyword arguments, floats in float64; `constants` are those that get no gradient."""
    out, cache = forward(**args)
    dout = rng.standard_normal(
        np.shape(out)
    )  # random: ones would hide mistakes in softmax and norms
    floats = [n for n, a in args.items() if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    names = [name for name in floats if name not in constants]
    grads = backward(dout, cache)
    grads = grads if isinstance(grads, tuple) else (grads,)
    assert len(grads) == len(names), f"{len(grads)} gradients for {names}"
    for name, grad in zip(names, map(to_dense, grads), strict=True):
        check_slope(
            lambda x, name=name: np.sum(dout * forward(**{**args, name: x})[0]),
            args[name],
            grad,
            rng,
            name,
            tol,
            eps,
        )


def check_slope(f, x, grad, rng, name, tol=1e-7, eps=2e-4):
    """The gradient of the number f(x) with respect to x must be `grad`, in four random directions."""
    assert grad.shape == x.shape, f"d{name} has shape {grad.shape}, {name} has {x.shape}"
    size = np.linalg.norm(grad)
    assert size > 0, f"d{name} is all zero: this check would prove nothing"
    for _ in range(4):
        v = rng.standard_normal(x.shape)
        # the five-point rule: its error falls with eps^4, so eps can be large and rounding stays small
        near, far = f(x + eps * v) - f(x - eps * v), f(x + 2 * eps * v) - f(x - 2 * eps * v)
        slope, claim = (8 * near - far) / (12 * eps), np.sum(grad * v)
        assert abs(slope - claim) < tol * size, (
            f"d{name}: backward says {claim:.9g}, slope is {slope:.9g}"
        )
