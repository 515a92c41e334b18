"""`run.json`: the settings and metadata of the run that an output belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists
from pgcli.state.atomic_file import read_json, write_json
from pgcli.state.state_folder import RUN, state_folder

VERSION = 1
Settings = Mapping[str, Any]
MAX_CHARACTERS = 60  # of a value in a message


@dataclass(frozen=True)
class RunRecord:
    """A run's settings, and the metadata that its rows do not depend on.

    `files` begins the names of the lists of input files, `begun` is the time of the first row, and
    `replaces` is true for a run that replaces an output of other settings.
    """

    run_id: str
    settings: Settings
    metadata: Mapping[str, Any]
    files: str
    begun: str = ""
    replaces: bool = False

    def write(self, folder: Path, *, replace: bool) -> bool:
        """Write `run.json`; False where it exists and is not to be replaced. Raises OutputFailed.

        The keys are those of the first version of the format: `told` holds the metadata.
        """
        values = {
            "version": VERSION,
            "run": self.run_id,
            "fingerprint": fingerprint(self.settings),
            "settings": plain(self.settings),
            "told": plain(self.metadata),
            "replaces": self.replaces,
            "files": self.files,
            "begun": self.begun,
        }
        return write_json(folder / RUN, values, replace=replace)

    def check_settings(self, settings: Settings, output: Path) -> None:
        """Raise OutputExists if the run was begun with other settings.

        Settings that are not known yet are not compared.
        """
        if changes := differences(self.settings, settings):
            raise OutputExists(
                f"{output} belongs to a run with other settings: {'; '.join(changes)}",
                hint="the command that made it resumes it; another -o leaves it alone; "
                "--overwrite replaces it",
            )


def read_record(output: Path) -> RunRecord | None:
    """The record of an output's run; None if there is none or the file is not such a record.

    The record of a newer version of the format is None too: its keys may mean something else.
    """
    values = {"begun": "", "told": {}} | (read_json(state_folder(output) / RUN) or {})
    if values.get("version") != VERSION:
        return None
    types = {"run": str, "files": str, "begun": str, "settings": dict, "told": dict}
    if not all(isinstance(values.get(name), kind) for name, kind in types.items()):
        return None
    if {"/", "\0"} & set(values["files"]):
        return None
    return RunRecord(
        values["run"],
        values["settings"],
        values["told"],
        values["files"],
        values["begun"],
        bool(values.get("replaces")),
    )


def is_newer(output: Path) -> bool:
    """Whether a newer pgcli, with another version of the format, began the output's run."""
    version = (read_json(state_folder(output) / RUN) or {}).get("version")
    return isinstance(version, int) and version > VERSION


def check_version(output: Path) -> None:
    """Raise OutputExists if a newer pgcli began the output's run."""
    if is_newer(output):
        raise OutputExists(
            f"{output} cannot be resumed: {why_no_record(output)}",
            hint="resume it with that version of pgcli; another -o leaves it alone; "
            "--overwrite replaces it",
        )


def why_no_record(output: Path) -> str:
    """Why `read_record` finds none, as a clause of a message."""
    file = state_folder(output) / RUN
    if is_newer(output):
        return f"{file} was made by a newer pgcli"
    return f"{file} is not a record of a run" if file.exists() else f"there is no {file}"


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as they read back from JSON: tuples as lists, other objects as text."""
    values: dict[str, Any] = json.loads(json.dumps(dict(settings), default=str))
    return values


def fingerprint(settings: Settings) -> str:
    """A digest that is equal for equal settings, in any order."""
    text = json.dumps(plain(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def differences(old: Settings, new: Settings) -> list[str]:
    """`name: old -> new` for each setting of the new run that the old one has otherwise.

    Settings that the new run does not know yet are not compared.
    """
    old, new = plain(old), plain(new)
    return [
        f"{name}: {shorten(old.get(name))} -> {shorten(value)}"
        for name, value in new.items()
        if old.get(name) != value
    ]


def shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
