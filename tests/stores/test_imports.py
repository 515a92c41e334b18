"""Importing the room is cheap, and it knows only what travels."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALLOWED = ("pgcli.records", "pgcli.errors", "pgcli.printable", "pgcli.stores")
SLOW = (
    "httpx2",
    "httpcore2",
    "obstore",
    "huggingface_hub",
    "pyarrow",
    "torch",
    "numpy",
    "ssl",
    "ctypes",
)


def test_stores_imports_only_what_travels() -> None:
    for file in (ROOT / "pgcli" / "stores").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                assert name is not None
                assert not name.startswith("pgcli") or name.startswith(ALLOWED), (file, name)


def test_libraries_are_imported_when_they_are_needed() -> None:
    code = f"import sys, pgcli.stores; print([x for x in {SLOW} if x in sys.modules])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=100
    )
    assert run.stdout == "[]\n", run.stderr


def test_a_run_into_lines_needs_no_parquet_files() -> None:
    code = "import sys, pgcli.run.run; print([m for m in sys.modules if m == 'pyarrow.parquet'])"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=100
    )
    assert run.stdout == "[]\n", run.stderr
