"""`run.json`: the settings and metadata of the run that an output belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists
from pgcli.regular_file import read_text
from pgcli.state.atomic_file import read_json, write_json
from pgcli.state.input_check import ImageComparison
from pgcli.state.state_folder import RUN, state_folder

VERSION = 1
Settings = Mapping[str, Any]
MAX_CHARACTERS = 60  # of a value in a message
SOURCES = "sources"  # the setting that may grow, and that a moved data set changes
#: The settings that may grow between other values: prompts are added to each image.
PROMPTS, OBJECTS = "prompts", "objects"
#: The metadata of the versions of a run, and of those of the runs before with their ends.
VERSIONS, EARLIER_VERSIONS = "versions", "earlier_versions"


@dataclass(frozen=True)
class ResumeRules:
    """How a run is compared with the earlier run that it resumes.

    `defaults` returns the settings that a record may lack, given the record's metadata. `is_moved`
    says that the images are in another place than before; `images` compares them with the stamps
    of rows.
    """

    defaults: Callable[[Mapping[str, Any]], Settings] = lambda metadata: {}
    is_moved: bool = False
    images: ImageComparison | None = None


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

    def check_settings(self, settings: Settings, output: Path | str, rules: ResumeRules) -> None:
        """Raise OutputExists if the run was begun with other settings.

        Settings that are not known yet are not compared.
        """
        change = changed_source(self.settings.get(SOURCES), plain(settings).get(SOURCES))
        if changes := differences(self.settings, settings):
            raise OutputExists(
                f"{output} belongs to a run with other settings: {'; '.join(changes)}",
                hint="the command that made it resumes it; another -o leaves it alone; "
                "--overwrite replaces it",
            )
        if change and not rules.is_moved:
            raise other_sources(output, change)

    def with_defaults(self, rules: ResumeRules) -> RunRecord:
        """The record with the settings that it lacks."""
        return replace(self, settings={**plain(rules.defaults(self.metadata)), **self.settings})

    def resumed_by(self, settings: Settings, metadata: Mapping[str, Any]) -> RunRecord:
        """The record with the settings and metadata of a run that resumes this one.

        `moved_from` lists the sources of earlier runs whose images were moved since, and
        `earlier_versions` the other versions of pgcli and its libraries that saved rows.
        """
        settings = {**self.settings, **plain(settings)}
        moved: list[Any] = self.moved_from
        if changed_source(self.settings.get(SOURCES), settings.get(SOURCES)):
            moved = [*moved, self.settings[SOURCES]]
        kept: dict[str, Any] = {"moved_from": moved} if moved else {}
        if self.changed_versions(metadata):
            ended = {**self.metadata[VERSIONS], "until": now()}
            kept[EARLIER_VERSIONS] = [*self._list(EARLIER_VERSIONS), ended]
        return replace(self, settings=settings, metadata={**self.metadata, **metadata, **kept})

    def changed_versions(self, metadata: Mapping[str, Any]) -> list[str]:
        """`name: old -> new` for each version of a run's metadata that this run had otherwise."""
        old, new = self.metadata.get(VERSIONS), metadata.get(VERSIONS)
        if not isinstance(old, dict) or not isinstance(new, Mapping):
            return []
        return differences(old, {name: new[name] for name in new if name in old})

    def is_extended_by(self, settings: Settings) -> bool:
        """Whether the settings have all prompts of this run, in their order, and others."""
        old, new = self.settings.get(PROMPTS), plain(settings).get(PROMPTS)
        return old != new and is_within(old, new)

    def extended(self, settings: Settings) -> RunRecord:
        """The record with the prompts of these settings, and with their objects if some follow."""
        names = [
            name
            for name in (PROMPTS, OBJECTS)
            if is_within(self.settings.get(name), plain(settings).get(name))
        ]
        changed = {name: settings[name] for name in names}
        return replace(self, settings={**self.settings, **plain(changed)}, replaces=False)

    def is_moved(self, sources: Sequence[str] | None) -> bool:
        """Whether images are, or were once, in another place than those of saved rows."""
        change = changed_source(self.settings.get(SOURCES), None if sources is None else [*sources])
        return bool(change or self.moved_from)

    @property
    def moved_from(self) -> list[Any]:
        """The sources of earlier runs whose images were moved since."""
        return self._list("moved_from")

    def _list(self, name: str) -> list[Any]:
        """The metadata of this name if it is a list."""
        value = self.metadata.get(name)
        return value if isinstance(value, list) else []


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
    try:
        read_text(file)
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {file}"
    except OSError as problem:
        return f"{file} cannot be read: {problem.strerror}"
    except UnicodeError:
        pass
    is_of_newer = is_newer(output)
    return f"{file} {'was made by a newer pgcli' if is_of_newer else 'is not a record of a run'}"


def now() -> str:
    """The time, to the second, with its zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


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

    Settings that the new run does not know yet are not compared, and sources apart.
    """
    old, new = plain(old), plain(new)
    return [
        f"{name}: {shorten(old.get(name))} -> {shorten(value)}"
        for name, value in new.items()
        if old.get(name) != value and name != SOURCES
    ]


def is_within(old: object, new: object) -> bool:
    """Whether the new list has all values of the old one, in their order."""
    if not isinstance(old, list) or not isinstance(new, list):
        return False
    rest = iter(new)
    return all(value in rest for value in old)


def changed_source(old: Sequence[str] | None, new: Sequence[str] | None) -> str:
    """`old -> new` of the first source that is not as before; empty where new ones only follow."""
    if old is None or new is None:
        return ""
    for number, before in enumerate(old):
        now = new[number] if number < len(new) else "nothing"
        if before != now:
            return f"{before} -> {now}"
    return ""


def other_sources(output: Path | str, change: str) -> OutputExists:
    """The error for a run of other images than those of the saved rows."""
    return OutputExists(
        f"{output} belongs to a run of other images: {change}",
        hint="the command that made it, in the same folder, resumes it; if the same images were "
        "moved, --moved does; another -o leaves it alone; --overwrite replaces it",
    )


def shorten(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"
