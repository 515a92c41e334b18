"""Writes a result file at once: rows that were merged, corrected, selected or imported."""

from __future__ import annotations

from pathlib import Path

from pgcli import registry
from pgcli.errors import OutputExists, UsageError
from pgcli.output import load_format
from pgcli.output.lines import ReadRows
from pgcli.output.reader import state_folder
from pgcli.rows import RowSchema
from pgcli.stores.writing import check_target, published


def check_result_file(target: Path, *, overwrite: bool) -> None:
    """Raise UsageError, OutputExists or OutputFailed where the file cannot be written."""
    if str(target) == "-":
        raise UsageError("rows are written to a file here", hint="name it: -o rows.jsonl")
    endings = registry.names("outputs")
    if target.suffix.lower() not in endings:
        raise UsageError(
            f"{target} is not the name of a {' or '.join(endings)} file",
            hint=f"-o {target.with_suffix('').name or 'rows'}{endings[0]}, or the same with "
            + " or ".join(endings[1:]),
        )
    if (state_folder(target) / "run.json").exists():
        raise OutputExists(
            f"{target} belongs to a run, which resumes it", hint="name another file with -o"
        )
    check_target(target, "-o", is_folder=False, overwrite=overwrite)


def write_result_file(
    target: Path, rows: ReadRows, schema: RowSchema, *, overwrite: bool = False
) -> int:
    """Write the rows in the format that the name chooses; return their number.

    The file appears as a whole. Rows may be those of `read_results(path, exact=True)`, whose kept
    columns keep their types in tables. Raises what `check_result_file` raises.
    """
    check_result_file(target, overwrite=overwrite)
    with published(target, replace=overwrite) as path, path.open("xb") as file:
        return load_format(target).write(file, rows, schema)
