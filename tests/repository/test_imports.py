"""Rooms import from the rooms below (pyproject.toml), files not in a circle, and light ones little.

The layers of pyproject.toml are those of the table in CONTRIBUTING.md.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
LIMIT = {"capture_output": True, "text": True, "timeout": 100}


def run_linter(settings: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter says of the package with these settings."""
    file = tmp_path / "pyproject.toml"
    file.write_text(settings, encoding="utf-8")
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    words = [sys.executable, "-c", program, "--config", str(file), "--no-cache"]
    return subprocess.run(words, cwd=ROOT, check=False, **LIMIT)  # type: ignore[call-overload]


def test_rooms_import_from_the_rooms_below(tmp_path: Path) -> None:
    run = run_linter((ROOT / "pyproject.toml").read_text(encoding="utf-8"), tmp_path)
    assert run.returncode == 0, run.stdout


def test_import_from_a_room_above_is_found(tmp_path: Path) -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    swapped = settings.replace('"stores",', '"images,",').replace('"images | model"', '"stores"')
    run = run_linter(swapped.replace('"images,"', '"images | model"'), tmp_path)
    assert run.returncode == 1
    assert "pgcli.images is not allowed to import pgcli.stores" in " ".join(run.stdout.split())


def test_table_of_contributing_has_the_layers() -> None:
    layers = SETTINGS["importlinter"]["contracts"][0]["layers"]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.split("| layer | rooms |")[1].split("\n\n")[0].splitlines()[2:]
    rooms = [re.findall(r"`(\w+)`", line) for line in table]
    assert rooms == [layer.split(" | ") for layer in layers]


def cycles(graph: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others (Tarjan)."""
    groups: list[list[str]] = []
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(module: str) -> None:
        order[module] = low[module] = len(order)
        stack.append(module)
        for imported in graph.get(module, ()):
            if imported not in order:
                visit(imported)
            if imported in stack:
                low[module] = min(low[module], low[imported])
        if low[module] == order[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                groups.append(sorted(group))

    for module in graph:
        if module not in order:
            visit(module)
    return sorted(groups)


def test_no_import_cycle_between_files() -> None:
    graph = grimp.build_graph("pgcli", exclude_type_checking_imports=True, cache_dir=None)
    modules = sorted(graph.modules)
    assert len(modules) > 200
    imports = {name: sorted(graph.find_modules_directly_imported_by(name)) for name in modules}
    assert cycles(imports) == []


def test_import_cycles_are_found() -> None:
    graph = {"a": "b", "b": "cd", "c": "a", "d": "e", "e": "f", "f": "e", "g": ""}
    assert cycles(graph) == [["a", "b", "c"], ["e", "f"]]


def test_no_module_has_a_catch_all_name() -> None:
    catch_all = {"utils", "util", "common", "base", "helper", "helpers", "manager", "misc"}
    names = (name for file in (ROOT / "pgcli").rglob("*.py") for name in file.parts)
    assert not catch_all & {name.removesuffix(".py") for name in names}


def modules_after(imported: str) -> set[str]:
    """The modules that a new process has after an import."""
    code = f"import sys, pgcli.{imported}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, **LIMIT)
    return set(run.stdout.split())


LIGHT = ["evaluation.evaluate", "images.pool", "inputs.inventory", "output.parquet", "results"]


@pytest.mark.parametrize("module", [*LIGHT, "run.run", "stores.reader", "tasks", "results.hooks"])
def test_decoding_and_writing_never_load_torch(module: str) -> None:
    assert not {"torch", "transformers"} & modules_after(module)


@pytest.mark.parametrize(
    "module", ["errors", "inputs", "output.lines", "run.request.make", "stores", "tasks"]
)
def test_help_loads_no_large_library(module: str) -> None:
    large = {"pyarrow", "numpy", "PIL", "ssl", "obstore", "torch", "transformers", "typer", "rich"}
    large |= {"httpx2", "httpcore2", "huggingface_hub"}
    assert not large & modules_after(module)


def test_a_run_into_lines_loads_no_parquet_files() -> None:
    assert "pyarrow.parquet" not in modules_after("run.run")
