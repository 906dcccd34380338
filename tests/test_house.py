"""The rooms of the house: who imports whom. Read from the source, so that lazy imports count too."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in [*(ROOT / "ministem").rglob("*.py"), ROOT / "train.py", ROOT / "sample.py"]
}


def imports(name, path=None):
    """-> the modules that a module imports: ours in full, of others the first word."""
    path = path or FILES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    modules = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            # `from . import edit` imports a module, `from .edit import find` one too
            for alias in node.names:
                modules.add(f"{base}.{alias.name}" if f"{base}.{alias.name}" in FILES else base)
    return {module if module in FILES else module.split(".")[0] for module in modules}


def room(name):
    """"ministem.run.cli" -> "run"; of the core: "" """
    parts = name.split(".")
    return parts[1] if len(parts) == 3 or FILES[name].name == "__init__.py" and len(parts) == 2 else ""


MODULES = [name for name in FILES if name.startswith("ministem.")]
CORE = [name for name in MODULES if not room(name)]
SCRIPTS = [
    path
    for folder in ("", "results", "benchmarks")
    for path in sorted((ROOT / folder).glob("*.py"))
    if "__main__" in path.read_text("utf-8")
]


def test_every_room_has_modules():
    rooms = {room(name) for name in MODULES}
    assert len(CORE) >= 9 and len(SCRIPTS) > 12 and rooms == {"", "devices", "run", "knowledge", "convert"}


@pytest.mark.parametrize("name", CORE)
def test_the_core_imports_nothing_of_the_outer_rooms(name):
    """... and reaches devices/ through backend.py alone."""
    rooms = {room(other) for other in imports(name) if other in MODULES}
    assert rooms <= ({"", "devices"} if name == "ministem.backend" else {""}), imports(name)


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) == "devices"])
def test_devices_import_only_the_core(name):
    assert {room(other) for other in imports(name) if other in MODULES} <= {"", "devices"}


def test_nothing_imports_convert_and_there_are_no_circles():
    graph = {name: imports(name) & set(MODULES) for name in MODULES}
    for name, others in graph.items():
        assert room(name) == "convert" or "convert" not in map(room, others), name
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"a circle of imports: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_script_imports_a_script(path):
    scripts = {script.stem for script in SCRIPTS} - {path.stem}
    if path.name.startswith("gpu"):  # which measures the sides of step.py on a GPU
        scripts -= {"step", "gpu"}
    assert not imports(path.stem, path) & scripts


def test_cupy_is_imported_in_one_file_and_pytorch_where_its_own_files_are_made():
    def importing(library):
        return {name for name in FILES if library in imports(name)}

    assert importing("cupy") == {"ministem.devices.gpu"} and importing("torch") == {
        "ministem.convert.pth",
        "ministem.convert.launch",
    }


def test_a_circle_and_a_forbidden_import_are_seen(tmp_path):
    """The reader of imports sees relative, lazy and plain ones."""
    lines = ["def f():", "    from ..run import cli", "    from .. import data", "    import cupy.cuda"]
    (tmp_path / "x.py").write_text("\n".join(lines))
    seen = imports("ministem.devices.x", tmp_path / "x.py")
    assert seen == {"ministem.run.cli", "ministem.data", "cupy"}
