"""Reads JSON lines: an object on each line, which names its columns itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pgcli.errors import ManifestError
from pgcli.sources.readers.lines import lines, parse_object
from pgcli.sources.readers.reader import Manifest, ManifestReader, ManifestRow


def rows(manifest: Manifest, wanted: Collection[str]) -> Iterator[ManifestRow]:
    """A row for each line that is not blank. Raises ManifestError."""
    for number, line in lines(manifest.location):
        if line.strip():
            try:
                yield ManifestRow(f"line {number}", parse_object(line))
            except ValueError as problem:
                raise ManifestError(f"{manifest.location}, line {number}: {problem}") from problem


JSON_LINES = ManifestReader(rows)
