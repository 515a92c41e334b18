"""The kinds of runs that tests disturb, and what an undisturbed one writes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.support.stub_runs import finish, rows_of

IMAGES, BROKEN = 10, (3, 4)
FOLDER = {"rows_per_file": 6}
#: The output and the options of each kind of run.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "lines": ("rows.jsonl", {}),
    "parquet": ("rows.parquet", {}),
    "folder": ("rows/", FOLDER),
    "join": ("rows/", {"join": True, **FOLDER}),
    "shard": ("rows/", {"shard": "0/1", **FOLDER}),
    "lines of engines": ("rows.jsonl", {"engines": 2}),
    "parquet of engines": ("rows.parquet", {"engines": 2}),
    "folder of engines": ("rows/", {"engines": 2, **FOLDER}),
}


def fresh(images: Path, name: str) -> Path:
    """A new folder beside the images."""
    folder = images / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def whole(images: Path, kind: str) -> list[str]:
    """The rows of an undisturbed run."""
    output, options = KINDS[kind]
    folder = fresh(images, "whole")
    assert finish(folder, output, **options)[0] == 3
    return rows_of(folder, output)
