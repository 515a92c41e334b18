"""Which files have rows that name pictures: an ending -> the file here that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pgcli.sources.readers.reader import ManifestReader

#: Endings with the module and the name of their reader, imported on first use.
READERS: Mapping[str, str] = {
    ".jsonl": "jsonl.JSON_LINES",
    ".ndjson": "jsonl.JSON_LINES",
    ".csv": "tables.CSV",
    ".tsv": "tables.TSV",
    ".parquet": "parquet.PARQUET",
    ".tar": "tar.TAR",
    ".tar.gz": "tar.TAR",
    ".tgz": "tar.TAR",
}


def kind_of(name: str) -> str | None:
    """The ending of READERS that a file's name has; None for one that has no rows."""
    last = PurePosixPath(name).name.lower()
    return next((end for end in READERS if last.endswith(end) and last != end), None)


def reader_of(kind: str) -> ManifestReader:
    """What reads files of this ending, one of READERS."""
    module, _, attribute = READERS[kind].partition(".")
    found: ManifestReader = getattr(import_module(f"{__name__}.{module}"), attribute)
    return found
