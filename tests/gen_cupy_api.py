"""Record which of the names that ministem uses CuPy has, and with which arguments.

    pip install "cupy-cuda13x==14.*" && python tests/gen_cupy_api.py

writes tests/cupy_api.json, which fake_cupy.py obeys. Needs the wheel, but neither a GPU nor CUDA.
"""

import ast
import inspect
import json
import re
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests" / "cupy_api.json"
OPERATORS = """add subtract multiply divide power negative matmul equal not_equal less less_equal greater
    greater_equal""".split()


def names_used():
    """Every np.NAME in our code that NumPy may hand on to CuPy: its functions, but no types or modules."""
    found = set(OPERATORS)
    for path in [*ROOT.glob("ministem/*.py"), ROOT / "train.py", ROOT / "sample.py"]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in ("np", "cupy"):
                    found.add(node.attr)
    return sorted(name for name in found if not isinstance(getattr(np, name, None), type(np) | type))


def signature(thing):
    """-> "(a, k=0)", from Python or from the first line of the docstring of what Cython made, or None."""
    try:
        parameters = list(inspect.signature(thing).parameters.values())
        parameters = [p.replace(annotation=p.empty) for p in parameters]
        return re.sub(r"<class '(\w+)'>", r"\1", str(inspect.Signature(parameters)))
    except (ValueError, TypeError):
        first = (thing.__doc__ or "").strip().split("\n")[0]
        match = re.match(r"[\w.]+(\(.*\))( ->.*)?$", first)
        if not match:
            return None
        # Cython writes "int k=0": drop the types
        return re.sub(r"\b\w+ (\w+)(?=[,=)])", r"\1", match[1])


def record(cupy):
    """-> what goes into the file"""
    functions, ufuncs, missing, more = {}, [], [], []
    for name in names_used():
        thing = getattr(cupy, name, None)
        if thing is None:
            missing.append(name)
        elif isinstance(thing, cupy.ufunc) or name == "matmul":
            ufuncs.append(name)
        elif callable(thing) and not isinstance(thing, type):
            functions[name] = signature(thing)
        else:
            more.append(name)
    array = {}
    for name in dir(cupy.ndarray):
        thing = getattr(cupy.ndarray, name)
        if not name.startswith("_"):
            array[name] = signature(thing) if callable(thing) else None
    dunders = [name for name in dir(cupy.ndarray) if name.startswith("__") and not hasattr(object, name)]
    return dict(cupy=cupy.__version__, functions=functions, ufuncs=ufuncs, more=more, missing=missing,
                ndarray=array, dunders=dunders)  # fmt: skip


if __name__ == "__main__":
    import cupy

    FILE.write_text(json.dumps(record(cupy), indent=1) + "\n")
