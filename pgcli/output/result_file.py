"""Writes a complete result file: merged, corrected, selected or imported rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pgcli import registry
from pgcli.errors import UsageError
from pgcli.output import load_format
from pgcli.rows import RowSchema
from pgcli.stores.writing import Target


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
