"""What a page says of a result file: the settings of its run, and how far that is."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pgcli.cli.result_files.run_status import read_run_status
from pgcli.errors import UsageError
from pgcli.printable import is_deep
from pgcli.state.run_record import read_record
from pgcli.views.gallery.cards import ResultFile

#: What a page that is passed on has no business to tell, and what only the program itself reads.
PRIVATE_SETTINGS = frozenset({"folder", "checkpoint", "columns"})


def read_run_info(output: Path, called: str) -> ResultFile:
    """The result file under the name it is called by, as far as anything is known of its run."""
    record = read_record(output)
    settings = (record and record.settings) or settings_in_parquet(output)
    told = dict(record.metadata) if record else {}
    facts = [*flatten({**settings, **told})]
    if record and record.begun:
        facts.append(("begun", record.begun))
    objects = settings.get("objects")
    asked = tuple(map(str, objects)) if isinstance(objects, list) else ()
    sources = told.get("sources", settings.get("sources"))
    pictures: Hashable = json.dumps([sources, settings.get("columns")], default=str)
    return ResultFile(called, facts, asked, incomplete_note(output), pictures if sources else ())


def settings_in_parquet(output: Path) -> Mapping[str, Any]:
    """The settings that a Parquet file, or the first of a folder, carries; none elsewhere."""
    import pyarrow
    from pyarrow import parquet

    from pgcli.sinks.parquet_file import SETTINGS

    file = next(iter(sorted(output.glob("*.parquet"))), output) if output.is_dir() else output
    if file.suffix.lower() != ".parquet" or not file.is_file():
        return {}
    try:
        found = json.loads((parquet.read_schema(file).metadata or {}).get(SETTINGS, b"{}"))
    except (OSError, ValueError, RecursionError, pyarrow.ArrowException):
        return {}
    return found if isinstance(found, dict) and not is_deep(found) else {}


def flatten(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Names and values as words, those of inner ones with the outer name before; nothing empty."""
    for name, value in settings.items():
        if (
            name in PRIVATE_SETTINGS
            or value is None
            or value == []
            or value == {}
            or value is False
        ):
            continue
        if isinstance(value, Mapping):
            yield from flatten(value, f"{above}{name} ")
        else:
            yield f"{above}{name}".replace("_", " "), format_setting(value)


def format_setting(value: object) -> str:
    """A setting as a person reads it."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return "yes" if value is True else str(value)


def incomplete_note(output: Path) -> str:
    """A note on a run that is not complete; empty for one that is, and where no run is known."""
    try:
        told = read_run_status(output)
    except UsageError:
        return ""
    of = f" of {told.total:,}" if told.total is not None else ""
    if told.state == "running":
        return f"the run goes on: {told.rows:,}{of} rows so far"
    return f"the run stopped at {told.rows:,}{of} rows" if told.state == "stopped" else ""
