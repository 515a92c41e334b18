"""Reads the rows of the truth from tables: a manifest, a folder of Parquet, or a result file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcli.cli.result_files.truths import Truths
from pgcli.errors import UsageError
from pgcli.sinks.reader import read_results
from pgcli.sources.manifest_file import FileLocation, path_of
from pgcli.sources.readers import load_reader, manifest_ending
from pgcli.sources.readers.bookmarks import Bookmarks
from pgcli.sources.readers.reader import Manifest, ManifestRow
from pgcli.state.state_folder import state_folder

HINT = "--truth takes .jsonl, .csv, .tsv, .parquet, a folder of .parquet, and .json of COCO or VQA"


def table_rows(location: FileLocation, truths: Truths) -> Iterator[ManifestRow]:
    """The rows of a manifest, of the Parquet files of a folder, or of a result file."""
    if not (isinstance(location, str) and Path(location).is_dir()):
        yield from manifest_rows(location, truths.name, truths)
    elif state_folder(Path(location)).exists():  # its newest rows are not in the folder yet
        for number, values in enumerate(read_results(Path(location)), 1):
            yield ManifestRow(f"row {number}", values)
    else:
        files = sorted(Path(location).glob("*.parquet"))
        if not files:
            raise UsageError(f"{truths.name} is a folder without .parquet files", hint=HINT)
        for file in files:
            for row in manifest_rows(str(file), str(file), truths):
                yield row._replace(position=f"{file.name}, {row.position}")


def manifest_rows(location: FileLocation, name: str, truths: Truths) -> Iterator[ManifestRow]:
    """The rows of a manifest, whose blank cells of CSV are None. Raises UsageError."""
    ending = manifest_ending(path_of(location))
    if ending is None or ending.startswith((".tar", ".tgz")):
        raise UsageError(f"{name} is not a table", hint=HINT)
    reader = load_reader(ending)
    manifest = Manifest(location, name, "image", Bookmarks())
    names = set(reader.columns(manifest)) if reader.columns else set()
    truths.columns |= dict.fromkeys(sorted(names))
    is_text = ending in (".csv", ".tsv")
    for row in reader.rows(manifest, names):
        yield row._replace(values=without_blanks(row.values)) if is_text else row


def without_blanks(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row of CSV, None for blank ones: CSV has no other way to say nothing."""
    return {name: value if str(value).strip() else None for name, value in row.items()}
