"""The kinds of runs that tests disturb, and the output of undisturbed ones."""

import shutil
from pathlib import Path
from typing import Any

from tests.support.stub_runs import finish, rows_of

IMAGES, BROKEN = 10, (3, 4)


def kinds(rows_per_file: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """The output and the options of each kind of run."""
    folder = {"rows_per_file": rows_per_file}
    return {
        "lines": ("rows.jsonl", {}),
        "parquet": ("rows.parquet", {}),
        "folder": ("rows/", folder),
        "shard": ("rows/", {"shard": "0/1", **folder}),
        "lines of engines": ("rows.jsonl", {"engines": 2}),
        "parquet of engines": ("rows.parquet", {"engines": 2}),
        "folder of engines": ("rows/", {"engines": 2, **folder}),
    }


KINDS = kinds(6)


def fresh(images: Path, name: str) -> Path:
    """A new folder beside the images."""
    folder = images / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def whole(images: Path, kind: str, code: int = 3) -> list[str]:
    """The rows of an undisturbed run, which ends with this exit code."""
    output, options = KINDS[kind]
    folder = fresh(images, "whole")
    assert finish(folder, output, **options)[0] == code
    return rows_of(folder, output)
