"""Which folder may import which (the table in CONTRIBUTING.md), and no cycles between files."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "pgcli"
EVERYTHING = None

TABLE = (PACKAGE.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")


def read_folders():
    """CONTRIBUTING's table: what each folder may import from pgcli, apart from its own and FREE."""
    folders = {}
    for line in TABLE.split("| module or folder |")[1].split("\n\n")[0].splitlines()[2:]:
        names, allowed = (cell.strip() for cell in line.strip("|").split(" | "))
        found = re.findall(r"`([\w.]+)`", allowed)
        if allowed.startswith("what "):
            found += folders[found[0]]
        for name in re.findall(r"`([\w.]+)`", names):
            folders[name] = EVERYTHING if allowed == "everything" else found
    return folders


FOLDERS = read_folders()
#: Functions on text, which every folder that shows or stores text needs, and on opening files.
FREE = {"printable", "regular_file"}

FILES = sorted(PACKAGE.rglob("*.py"))


def module_of(file):
    """The dotted name within pgcli; "" for the package itself."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def folder_of(module):
    if module in FOLDERS:
        return module
    return module.partition(".")[0] or "__init__"


def exists(module):
    return (PACKAGE / Path(*module.split("."))).with_suffix(".py").is_file() or (
        PACKAGE / Path(*module.split(".")) / "__init__.py"
    ).is_file()


def imports(source, *, package=(), typing=True):
    """The modules of pgcli that a source imports, wherever in the file it does.

    Without `typing`, imports under `if TYPE_CHECKING` are left out.
    """
    for node in ast.walk(ast.parse(source) if typing else without_typing(source)):
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


def without_typing(source):
    """The syntax tree without the blocks under `if TYPE_CHECKING`."""

    class Removing(ast.NodeTransformer):
        def visit_If(self, node):
            return node.orelse if ast.unparse(node.test) == "TYPE_CHECKING" else node

    return Removing().visit(ast.parse(source))


def import_graph():
    """For each module of pgcli, the modules that it imports at run time."""
    graph = {}
    for file in FILES:
        package = ("pgcli", *file.relative_to(PACKAGE).parent.parts)
        found = imports(file.read_text(encoding="utf-8"), package=package, typing=False)
        graph[module_of(file)] = sorted(set(found) - {module_of(file)})
    return graph


def cycles(graph):
    """The groups of modules that import each other, directly or through others (Tarjan)."""
    found, order, low, stack = [], {}, {}, []

    def visit(module):
        order[module] = low[module] = len(order)
        stack.append(module)
        for other in graph.get(module, ()):
            if other not in order:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in graph:
        if module not in order:
            visit(module)
    return sorted(found)


def forbidden_imports(file):
    """The imports of a file that its folder is not allowed."""
    module = module_of(file)
    folder = folder_of(module)
    if FOLDERS[folder] is EVERYTHING:
        return []
    allowed = {folder, *FOLDERS[folder], *FREE}
    package = ("pgcli", *file.relative_to(PACKAGE).parent.parts)
    seen = set(imports(file.read_text(encoding="utf-8"), package=package))
    return sorted(other for other in seen if folder_of(other) not in allowed)


@pytest.mark.parametrize("file", FILES, ids=lambda file: module_of(file) or "pgcli")
def test_files_import_only_what_their_folder_allows(file):
    assert folder_of(module_of(file)) in FOLDERS, "add the new folder to the table first"
    assert forbidden_imports(file) == []


def test_no_import_cycle_between_files():
    assert cycles(import_graph()) == []


def test_import_cycles_are_found():
    graph = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": ["e"], "e": ["f"], "f": ["e"], "g": []}
    assert cycles(graph) == [["a", "b", "c"], ["e", "f"]]


def test_typing_imports_are_left_out():
    source = "if TYPE_CHECKING:\n    import pgcli.records\nelse:\n    import pgcli.errors"
    assert list(imports(source, typing=False)) == ["errors"]


def test_no_module_has_a_catch_all_name():
    catch_all = {"utils", "util", "common", "base", "helper", "helpers", "manager", "misc"}
    assert not catch_all & {part for file in FILES for part in module_of(file).split(".")}


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
    monkeypatch.setitem(FOLDERS, "sinks", ["records"])
    assert forbidden_imports(PACKAGE / "sinks" / "text.py") == []
    assert "state.write_errors" in forbidden_imports(PACKAGE / "sinks" / "lines.py")


LIGHT = "pipeline state rows remote results sources images workers sinks tasks parsing".split()
LIGHT += ["evaluation.evaluate", "evaluation.truth.read_truth", "printable"]


@pytest.mark.parametrize("folder", LIGHT)
def test_decoding_and_writing_never_load_torch(folder):
    code = f"import sys, pgcli.{folder}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    assert not {"torch", "transformers"} & set(run.stdout.split())


@pytest.mark.parametrize(
    "folder", ["pipeline", "remote", "sources", "sinks", "tasks", "parsing", "errors"]
)
def test_help_loads_no_pyarrow(folder):
    code = f"import sys, pgcli.{folder}; print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100
    )
    assert not {"pyarrow", "numpy", "PIL", "ssl", "fsspec"} & set(run.stdout.split())
