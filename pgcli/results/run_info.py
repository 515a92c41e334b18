"""The settings and the progress of the run of a result file, as a page shows them."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists, UsageError
from pgcli.inputs.readers import IMAGE_ENDINGS, ending
from pgcli.output.reader import read_settings
from pgcli.results.cards import ResultFile
from pgcli.results.image_locator import saved_record
from pgcli.run.status import read_status
from pgcli.stores.files import parse_path
from pgcli.stores.urls import url_scheme

#: Settings that a page does not show, as only the program reads them.
PRIVATE_SETTINGS = frozenset({"folder", "checkpoint", "adapter_files"})


def read_run_info(output: Path, name: str, page_folder: Path) -> ResultFile:
    """The result file under this name, with the settings of its run.

    Paths are relative to the folder of the page, which readers get without the writer's folders.
    """
    record = saved_record(output)
    if record is None:
        settings, folder = read_settings(output), None
        facts = [*flatten(settings)]
    else:
        settings, folder = record.settings, record.input.get("folder")
        facts = [*flatten({**settings, **record.model, "versions": record.versions})]
        facts += [("begun", record.begun)] if record.begun else []
    start = folder if isinstance(folder, str) else ""
    facts = [
        (fact, ", ".join(paths_on_page(settings["sources"], page_folder, start)))
        if fact == "sources" and isinstance(settings.get("sources"), list)
        else (fact, path_on_page(value, page_folder))
        for fact, value in facts
    ]
    objects = settings.get("objects")
    labels = tuple(map(str, objects)) if isinstance(objects, list) else ()
    names = ("sources", "image_column", "id_column")
    images: Hashable = json.dumps([settings.get(name) for name in names], default=str)
    return ResultFile(
        name,
        facts,
        labels,
        incomplete_note(output),
        images if settings.get("sources") else (),
        partial(absolute_image, folder),
        output,
    )


def paths_on_page(sources: Sequence[object], page_folder: Path, start: str) -> Iterator[str]:
    """The sources, relative to the page where they are paths, which begin at the folder `start`."""
    for source in map(str, sources):
        is_path = source != "-" and not url_scheme(source)
        yield path_on_page(os.path.join(start, source), page_folder) if is_path else source  # noqa: PTH118


def path_on_page(value: str, page_folder: Path) -> str:
    """The value; an absolute path is relative to the folder of the page."""
    if not os.path.isabs(value):  # noqa: PTH117
        return value
    return os.path.relpath(value, os.path.realpath(page_folder))


def absolute_image(folder: object, image: str) -> str | None:
    """The absolute path or the URL of an image file; None for other names of images."""
    if ending(image) not in IMAGE_ENDINGS:
        return None
    if url_scheme(image):
        return image
    if not isinstance(folder, str):
        return None
    return os.path.normpath(os.path.join(folder, parse_path(image)))  # noqa: PTH118 - may have a NUL


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values as text, without empty values; nested names are prefixed."""
    for name, value in settings.items():
        if name in PRIVATE_SETTINGS or value in (None, [], {}) or value is False:
            continue
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name} ")
        elif isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value):
            for entry in value:
                yield from flatten(entry, f"{prefix}{name} ")
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
        status = read_status(str(output))
    except (UsageError, OutputExists):  # OutputExists: the file is not of the run beside it
        return ""
    owner, own = status.owner, (os.getpid(), socket.gethostname())
    if owner and owner.state == "running" and (owner.pid, owner.host) == own:
        return ""  # of this process, which writes its page once all rows are saved
    of = f" of {status.total:,}" if status.total is not None else ""
    if status.state == "running":
        return f"the run is not finished: {status.rows:,}{of} rows so far"
    return f"the run stopped at {status.rows:,}{of} rows" if status.state == "stopped" else ""
