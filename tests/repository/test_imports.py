"""Rooms import from the rooms below (pyproject.toml), files not in a circle, and light ones little.

The layers in pyproject.toml equal the table in docs/dev/architecture.md.
"""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
LIMIT: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 100}


def test_rooms_import_from_the_rooms_below():
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    run = subprocess.run([sys.executable, "-c", program, "--no-cache"], cwd=ROOT, **LIMIT)
    assert run.returncode == 0, run.stdout


def test_page_of_the_architecture_has_the_layers():
    layers = SETTINGS["importlinter"]["contracts"][0]["layers"]
    page = (ROOT / "docs" / "dev" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("| layer | packages |")[1].split("\n\n")[0].splitlines()[2:]
    rooms = [re.findall(r"`(\w+)`", line) for line in table]
    assert rooms == [layer.split(" | ") for layer in layers]


#: The modules that may import within a function, by the reason.
LATE: dict[str, list[str]] = {
    "--help and completion load the options of a command, not what it runs": [
        *("cli.commands", "cli.config", "cli.console", "cli.options", "cli.reports"),
        *("results.options", "run.request", "registry"),
    ],
    "light commands, and what decodes and saves, start without torch": [
        *("api", "device", "doctor", "engine", "model", "run", "verify"),
    ],
    "runs into lines start without pyarrow's files": [
        *("answer_schema", "labels", "output", "ray", "results", "training"),
    ],
    "only processes that render pages need the extra for PDF files": ["images.pdf"],
    "only runs that reach a server or its cache need its client": ["checkpoints", "stores"],
    "the interpreter is prepared before other imports": ["__main__", "process_end"],
}


def test_no_import_cycle_between_files():
    """Also of imports within functions, and for types."""
    graph = grimp.build_graph("pgcli", cache_dir=None)
    assert len(graph.modules) > 150
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError


def test_imports_within_functions_have_a_reason():
    late = set()
    for file in (ROOT / "pgcli").rglob("*.py"):
        functions = [node for node in ast.walk(ast.parse(file.read_text())) if is_function(node)]
        nodes = (node for function in functions for node in ast.walk(function))
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes):
            late.add(".".join(file.relative_to(ROOT / "pgcli").with_suffix("").parts))
    allowed = [module for modules in LATE.values() for module in modules]
    assert not [name for name in late if not name.startswith(tuple(allowed))]
    assert not [module for module in allowed if not any(name.startswith(module) for name in late)]


def is_function(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def modules_after(imported: str) -> set[str]:
    """The modules that a new process has after an import."""
    code = f"import sys, pgcli.{imported}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, **LIMIT)
    return set(run.stdout.split())


LIGHT = ["evaluation.evaluate", "images.pool", "inputs.inventory", "output.tables", "results"]


@pytest.mark.parametrize("module", [*LIGHT, "run.run", "stores.reader", "tasks", "results.hooks"])
def test_decoding_and_writing_never_load_torch(module):
    assert not {"torch", "transformers"} & modules_after(module)


def test_a_run_into_lines_loads_no_parquet_files():
    assert "pyarrow.parquet" not in modules_after("run.run")
