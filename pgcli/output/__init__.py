"""Rows in files: JSON lines (`lines`), Parquet and other tables (`tables`, types in `schema`).

`reader` reads result files, also of a running run. Here are the formats of outputs by their names,
and the writer of a complete result file: merged, corrected, selected or imported rows.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pgcli import registry
from pgcli.errors import UsageError
from pgcli.rows import RowSchema
from pgcli.stores.writing import Target

if TYPE_CHECKING:
    from pgcli.output.lines import LineFormat
    from pgcli.output.tables import TableFormat

FormatOption = Literal["auto", "jsonl", "text"]

#: The results of `output_format` besides the endings: a folder, and text.
FOLDER, PLAIN_TEXT = "/", "text"
#: The names of the files in a folder.
PART_ENDING = ".parquet"
PART = re.compile(rf"part-(\d{{6}}|[1-9]\d{{6,}}){re.escape(PART_ENDING)}")
#: The commands that convert rows to files with these endings.
EXPORTED = {
    ".csv": ("export", "rows.jsonl", "--to", "csv"),
    ".json": ("export", "rows.jsonl", "--to", "coco"),
    ".html": ("view", "rows.jsonl"),
}


def load_format(file: str | Path) -> LineFormat | TableFormat:
    """The format of a result file by its ending; lines for any other ending."""
    ending = named_format(Path(file).name) or ".jsonl"
    format: LineFormat | TableFormat = registry.load("outputs", ending)
    return format


def output_endings() -> str:
    """The endings of output files, for messages: `.jsonl or .parquet`."""
    return " or ".join(registry.names("outputs"))


def part_format() -> TableFormat:
    """The format of the files in a folder."""
    from pgcli.output.tables import PARQUET  # imports pyarrow

    return PARQUET


def part_name(number: int) -> str:
    """The name of a file in a folder."""
    return f"part-{number:06}{PART_ENDING}"


def named_format(name: str) -> str | None:
    """The ending of output files that a name has, or FOLDER; None for any other name."""
    ending = FOLDER if name.endswith("/") else Path(name).suffix.lower()
    return ending if ending == FOLDER or ending in registry.names("outputs") else None


def output_format(name: str, option: FormatOption) -> str:
    """The ending of output files, FOLDER or PLAIN_TEXT for an output's name and `--format`.

    Raises UsageError.
    """
    by_name = named_format(name)
    if not name or (option == "auto" and by_name is None):
        command = EXPORTED.get(Path(name).suffix.lower())
        raise UsageError(
            f"cannot tell the format from the name {name!r}",
            hint=f"end it in {output_endings()}, or in / for a folder of Parquet files"
            + (
                f"; `pgcli {shlex.join([*command, '-o', name])}` converts rows.jsonl"
                if command
                else "; or add <--format jsonl> or <--format text>"
            ),
        )
    if option != "auto" and by_name not in (None, f".{option}"):
        kind = "folder" if by_name == FOLDER else f"{by_name.removeprefix('.')} file"
        raise UsageError(
            f"{name} is the name of a {kind}, but <--format=> is {option}",
            hint="remove <--format=>, or rename the output",
        )
    return by_name or (PLAIN_TEXT if option == "text" else ".jsonl")


def result_target(name: str, *, overwrite: bool = False) -> Target:
    """The result file of `-o`. Raises UsageError, and the errors of `Target.check`."""
    checked, target = Target(name=name, overwrite=overwrite), Path(name)
    checked.check()
    endings = registry.names("outputs")
    if target.suffix.lower() not in endings:
        raise UsageError(
            f"{target} is not the name of a {' or '.join(endings)} file",
            hint=f"<-o> {target.with_suffix('').name or 'rows'}{endings[0]}, or the same with "
            + " or ".join(endings[1:]),
        )
    return checked


def write_result_file(target: Target, rows: Iterable[Mapping[str, Any]], schema: RowSchema) -> int:
    """Write the rows in the format of the name's ending; return the row count.

    The file appears once it is complete. Rows from `read_results(path, exact=True)` keep the types
    of their kept columns in tables. Raises OutputExists and OutputFailed.
    """
    with target.publish() as path, path.open("xb") as file:
        return load_format(target.path).write(file, rows, schema)
