"""Rows as lines and as Parquet, and result files read back."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pgcli.errors import UsageError

FormatOption = Literal["auto", "jsonl", "text"]
OutputFormat = Literal["jsonl", "parquet", "folder", "text"]

ENDINGS: Mapping[str, OutputFormat] = {".jsonl": "jsonl", ".parquet": "parquet"}
#: The commands that make files of these endings from rows.
EXPORTED = {
    ".csv": ("export", "rows.jsonl", "--to", "csv"),
    ".json": ("export", "rows.jsonl", "--to", "coco"),
    ".html": ("view", "rows.jsonl"),
}


def output_format(name: str, option: FormatOption) -> OutputFormat:
    """The format that the output's name or the `--format` option chooses. Raises UsageError."""
    by_name = "folder" if name.endswith("/") else ENDINGS.get(Path(name).suffix.lower())
    if not name or (option == "auto" and by_name is None):
        command = EXPORTED.get(Path(name).suffix.lower())
        raise UsageError(
            f"the name {name!r} does not choose a format",
            hint="end it in .jsonl or .parquet, or in / for a folder of Parquet files"
            + (
                f"; of rows in rows.jsonl, `pgcli {shlex.join([*command, '-o', name])}` makes it"
                if command
                else "; or add --format jsonl or --format text"
            ),
        )
    if option != "auto" and by_name not in (None, option):
        kind = "folder" if by_name == "folder" else f"{by_name} file"
        raise UsageError(
            f"{name} is the name of a {kind}, and --format says {option}",
            hint="leave out one of the two",
        )
    return by_name or ("text" if option == "text" else "jsonl")
