"""Importing the room, and runs that need little of it, is cheap."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
