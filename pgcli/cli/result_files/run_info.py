"""The settings and the progress of the run of a result file, as a page shows them."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.cli.result_files.run_status import read_run_status
from pgcli.errors import UsageError
from pgcli.printable import is_deep
from pgcli.sources.endings import IMAGE_ENDINGS, ending
from pgcli.sources.paths import parse_path, url_scheme
from pgcli.state.run_record import read_record
from pgcli.views.gallery.cards import ResultFile

#: Settings that a page does not show: private ones, and those that only the program reads.
PRIVATE_SETTINGS = frozenset({"folder", "checkpoint", "adapter_files", "columns"})


def read_run_info(output: Path, name: str) -> ResultFile:
    """The result file under this name, with what is known of its run."""
    record = read_record(output)
    settings = (record and record.settings) or settings_in_parquet(output)
    metadata = dict(record.metadata) if record else {}
    facts = [*flatten({**settings, **metadata})]
    if record and record.begun:
        facts.append(("begun", record.begun))
    objects = settings.get("objects")
    labels = tuple(map(str, objects)) if isinstance(objects, list) else ()
    sources = metadata.get("sources", settings.get("sources"))
    images: Hashable = json.dumps([sources, settings.get("columns")], default=str)
    return ResultFile(
        name,
        facts,
        labels,
        incomplete_note(output),
        images if sources else (),
        partial(absolute_image, metadata.get("folder", settings.get("folder"))),
    )


def absolute_image(folder: object, image: str) -> str | None:
    """The absolute path or the address of an image file; None for other names of images."""
    if ending(image) not in IMAGE_ENDINGS:
        return None
    if url_scheme(image):
        return image
    if not isinstance(folder, str):
        return None
    return os.path.normpath(os.path.join(folder, parse_path(image)))  # noqa: PTH118 - may have a NUL


def settings_in_parquet(output: Path) -> Mapping[str, Any]:
    """The settings in the metadata of a Parquet file, or of the first one of a folder."""
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


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values as text, without empty values; nested names are prefixed."""
    for name, value in settings.items():
        if name in PRIVATE_SETTINGS or value in (None, [], {}) or value is False:
            continue
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name} ")
        elif isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
            for one in value:
                yield from flatten(one, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}".replace("_", " "), format_setting(value)


def format_setting(value: object) -> str:
    """A setting as text."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value))
    return "yes" if value is True else str(value)


def incomplete_note(output: Path) -> str:
    """A note on a run that is not complete; empty for a complete or unknown one."""
    try:
        status = read_run_status(output)
    except UsageError:
        return ""
    if status.adding is not None:
        return "prompts are being added, whose answers are not here yet"
    of = f" of {status.total:,}" if status.total is not None else ""
    if status.state == "running":
        return f"the run is not finished: {status.rows:,}{of} rows so far"
    return f"the run stopped at {status.rows:,}{of} rows" if status.state == "stopped" else ""
