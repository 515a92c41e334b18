"""Manifest formats: the reader of each file name ending, imported on first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgcli.sources.readers.reader import ManifestReader

#: Endings with the module and the name of their reader.
READERS: Mapping[str, str] = {
    ".jsonl": "jsonl.JSON_LINES",
    ".ndjson": "jsonl.JSON_LINES",
    ".csv": "csv_table.CSV",
    ".tsv": "csv_table.TSV",
    ".parquet": "parquet.PARQUET",
    ".tar": "tar.TAR",
    ".tar.gz": "tar.TAR",
    ".tgz": "tar.TAR",
}


def manifest_ending(name: str) -> str | None:
    """The ending of READERS that a file name has; None for a file that is not a manifest."""
    last = PurePosixPath(name).name.lower()
    return next((end for end in READERS if last.endswith(end) and last != end), None)


def load_reader(ending: str) -> ManifestReader:
    """The reader of files with this ending, one of READERS."""
    module, _, attribute = READERS[ending].partition(".")
    reader: ManifestReader = getattr(import_module(f"{__name__}.{module}"), attribute)
    return reader
