"""`run.json`: the fingerprint of a run, and the facts about it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists
from pgcli.output import reader
from pgcli.stores import Store
from pgcli.stores.files import parse_path
from pgcli.stores.urls import url_scheme
from pgcli.text import json_object, listed, shown

RUN = "run.json"
VERSION = 4
SOURCES = "sources"  # the setting that may grow, and that changes if a data set is moved
FILES = ("checkpoint", "adapter_files")  # digests by file name for a folder
WAYS_OUT = "run the command that made it, choose another <-o>, or replace it with <--overwrite>"

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class RunRecord:
    """The record of a run.

    Rows depend on the `settings` and the `model` (its files and dtype; empty before it is loaded).
    The values in `input` read the sources again. A folder has `file_rows` in each file. `begun` is
    the time of the first row.
    """

    run_id: str
    settings: Settings
    input: Settings = field(default_factory=dict)
    model: Settings = field(default_factory=dict)
    file_rows: int = 0
    begun: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The content of `run.json`."""
        values = {"version": VERSION, **asdict(self)}
        return json.dumps(values, indent=1, default=str).encode() + b"\n"

    def check_settings(self, settings: Settings, output: str) -> None:
        """Raise OutputExists if the run has other settings; sources are not compared."""
        if changes := differences(self.settings, settings):
            raise other_run(output, "other settings", changes)

    def moved_sources(self, settings: Settings) -> str:
        """`old -> new` for the first moved source; else empty."""
        return changed_source(self.settings.get(SOURCES), plain_settings(settings).get(SOURCES))

    def check_model(self, model: Settings, output: str) -> None:
        """Raise OutputExists if another model, or the model in another dtype, made the rows."""
        known = {name: value for name, value in model.items() if name in self.model}
        if known.get("adapter_files") and self.model["adapter_files"]:
            known.pop("adapter", None)  # its files identify it better than its name
        if changes := differences(self.model, known):
            raise other_run(output, "another model", changes)


def read_record(store: Store) -> RunRecord | None:
    """The record in a state folder; None if it is missing or invalid."""
    values = json_object(store.read(RUN))
    if values is None or values.pop("version", None) != VERSION:
        return None
    try:
        record = RunRecord(**values)
    except TypeError:
        return None
    kinds: dict[str, type] = {"run_id": str, "settings": dict, "input": dict, "model": dict}
    kinds |= {"file_rows": int, "begun": str, "versions": dict}
    is_valid = all(isinstance(getattr(record, name), kind) for name, kind in kinds.items())
    return record if is_valid and record.file_rows > 0 else None


def other_run(
    output: object, what: str, changes: Sequence[str], *, hint: str = WAYS_OUT
) -> OutputExists:
    """The error for an output or a training folder of a run with other settings, for example."""
    return OutputExists(f"{output} belongs to a run with {what}: {'; '.join(changes)}", hint=hint)


def why_no_record(store: Store) -> str:
    """Why `read_record` returns None, as a clause of a message."""
    data, file = store.read(RUN), f"{store.url.rstrip('/')}/{RUN}"
    if data is None:
        return f"there is no {file}"
    version = (json_object(data) or {}).get("version")
    is_newer = isinstance(version, int) and version > VERSION
    reason = "was made by a newer pgcli" if is_newer else "is not a record of a run"
    return f"{file} {reason}"


def state_lacks(store: Store, name: str, *, hint: str = WAYS_OUT) -> OutputExists:
    """The error for a state that lacks one of its files."""
    file = f"{store.url.rstrip('/')}/{name}"
    return OutputExists(f"{file} is missing or damaged", hint=hint)


def plain_settings(settings: Settings) -> dict[str, Any]:
    """The settings as JSON returns them: tuples as lists, other objects as text."""
    values: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
    return values


def differences(old: Settings, new: Settings) -> list[str]:
    """`name: old -> new` for each different setting except the sources.

    For the files of a folder, the names of different files.
    """
    old, new = plain_settings(old), plain_settings(new)
    return [
        setting_difference(name, old.get(name), value)
        for name, value in new.items()
        if old.get(name) != value and name != SOURCES
    ]


def setting_difference(name: str, old: Any, new: Any) -> str:
    """How a setting differs."""
    if name not in FILES or not (isinstance(old, dict) or isinstance(new, dict)):
        return f"{name}: {shown(old)} -> {shown(new)}"
    if isinstance(old, dict) and isinstance(new, dict):
        files = [file for file in sorted({**old, **new}) if old.get(file) != new.get(file)]
        return f"{name}: {listed(files)} differ{'s' * (len(files) == 1)}"
    old, new = ("a folder" if isinstance(value, dict) else shown(value) for value in (old, new))
    return f"{name}: {old} -> {new}"


def changed_source(old: Any, new: Sequence[str] | None) -> str:
    """`old -> new` for the first changed source; empty if sources were only added at the end."""
    for number, before in enumerate(old if isinstance(old, list | tuple) else ()):
        now = new[number] if new is not None and number < len(new) else "nothing"
        if before != now and not is_same_place(before, now):
            return f"{before} -> {now}"
    return ""


def is_same_place(before: str, now: str) -> bool:
    """Whether two absolute names of sources are the same local path, by a link."""
    if url_scheme(before) or url_scheme(now) or "-" in (before, now):
        return False
    return os.path.realpath(parse_path(before)) == os.path.realpath(parse_path(now))


def now() -> str:
    """The time, to the second, with its zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def state_location(output: str) -> str:
    """The state folder of an output at a path or a URL: `OUTPUT.pgcli`, beside it."""
    is_url = "://" in output
    return f"{output.rstrip('/')}.pgcli/" if is_url else str(reader.state_folder(Path(output)))
