"""Who may import whom (CONTRIBUTING.md), checked against the files."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pgcli"
EVERYTHING = None

#: What each room may import from pgcli, apart from its own files and FREE.
ROOMS = {
    "records": "",
    "errors": "",
    "printable": "",
    "model.config": "",
    "rle": "records",
    "rows": "records errors",
    "regions": "records",
    "remote": "records errors",
    "sources": "regions remote records errors",
    "images": "records errors",
    "tasks": "regions records errors",
    "parsing": "records errors",
    "sinks": "records errors rows state",
    "state": "records errors rows",
    "views": "records errors images rle rows",
    "results": "records errors rows sources sinks views",
    "evaluation": "records errors",
    "workers": "images records errors",
    "model": "model.config",
    "checkpoints": "model model.config errors",
    "device": "errors",
    "engine": "device model model.config checkpoints images tasks parsing rle records errors",
    "pipeline": "records errors state",
    "proof": "device model model.config checkpoints engine images tasks records errors",
    "bench": "device model model.config checkpoints engine images tasks proof records errors",
    "doctor": "device model model.config checkpoints engine images tasks records errors",
    "training": "model model.config checkpoints engine images records errors",
    "cluster": "pipeline engine sources sinks records errors",
    "api": "pipeline engine checkpoints remote sources workers images tasks records errors",
    "package": "api records results",
    "__main__": "cli",
    "cli": EVERYTHING,
    "builtin": "",
}
FREE = {"printable"}  # one function on text, which every room that shows or stores text needs

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file):
    """The dotted name within pgcli; "" for the package itself."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module):
    if module in ROOMS:
        return module
    return module.partition(".")[0] or "package"


def exists(module):
    return (PACKAGE / Path(*module.split("."))).with_suffix(".py").is_file() or (
        PACKAGE / Path(*module.split(".")) / "__init__.py"
    ).is_file()


def imports(source, *, package=()):
    """The modules of pgcli that a source imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            kept = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join(filter(None, (*kept, node.module)))
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, _, module = name.partition(".")
            if top == "pgcli":
                while module and not exists(module):  # a name in a module, not a module
                    module = module.rpartition(".")[0]
                yield module


def forbidden_imports(file):
    """The imports of a file that its room is not allowed."""
    module = module_of(file)
    room = room_of(module)
    if ROOMS[room] is EVERYTHING:
        return []
    allowed = {room, *ROOMS[room].split(), *FREE}
    package = ("pgcli", *file.relative_to(PACKAGE).parent.parts)
    seen = set(imports(file.read_text(encoding="utf-8"), package=package))
    return sorted(other for other in seen if room_of(other) not in allowed)


@pytest.mark.parametrize("file", FILES, ids=lambda file: module_of(file) or "pgcli")
def test_a_file_imports_only_what_its_room_may(file):
    assert room_of(module_of(file)) in ROOMS, "add the new room to the table first"
    assert forbidden_imports(file) == []


def test_no_module_is_called_utils():
    generic = {"utils", "util", "common", "base", "helper", "helpers", "manager", "misc"}
    assert not generic & {part for file in FILES for part in module_of(file).split(".")}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pgcli.records", ["records"]),
        ("import torch, pgcli.model.gemma as gemma", ["model.gemma"]),
        ("from pgcli.records import Answer", ["records"]),
        ("from pgcli import records, errors", ["records", "errors"]),
        ("from pgcli import __version__", [""]),
        ("from pgcli.model import gemma", ["model.gemma"]),
        ("from .text import TextSink", ["sinks.text"]),
        ("from . import text", ["sinks.text"]),
        ("from ..model.config import Config", ["model.config"]),
        ("def f():\n    from pgcli.pipeline import tally", ["pipeline.tally"]),
        ("if TYPE_CHECKING:\n    from pgcli.engine import Engine", ["engine"]),
        ("import pgclix, torch\nfrom os import path", []),
    ],
)
def test_imports_are_found_in_every_form(source, found):
    assert list(imports(source, package=("pgcli", "sinks"))) == found


def test_a_forbidden_import_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(ROOMS, "sinks", "records")
    assert forbidden_imports(PACKAGE / "sinks" / "text.py") == []
    assert forbidden_imports(PACKAGE / "sinks" / "lines.py") == ["state.write_errors"]


LIGHT = "pipeline state rows remote results sources images workers sinks tasks parsing".split()
LIGHT += ["evaluation.metrics", "printable"]


@pytest.mark.parametrize("room", LIGHT)
def test_decoding_and_writing_never_load_torch(room):
    code = f"import sys, pgcli.{room}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers"} & set(run.stdout.split())


@pytest.mark.parametrize(
    "room", ["pipeline", "remote", "sources", "sinks", "tasks", "parsing", "errors"]
)
def test_help_loads_no_pyarrow(room):
    code = f"import sys, pgcli.{room}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pyarrow", "numpy", "PIL", "ssl", "fsspec"} & set(run.stdout.split())
