"""How far a run has come, in a file that the next run and `pgcli status` read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pgcli.state.atomic_file import read_json
from pgcli.state.state_folder import PROGRESS

MAX_COUNT = 2**63


@dataclass
class FileCheckpoint:
    """The part of a file of rows that is known to be on disk, and the digest of its input."""

    rows: int = 0
    bytes: int = 0
    digest: str = ""
    errors: dict[str, int] = field(default_factory=dict)


@dataclass
class RunProgress:
    """How far a run has come; the fields are the keys of `progress.json`.

    `total` counts the rows of this part of the output, `whole` those of the whole output. `added`
    rows took `seconds` in the last run that added any. `safe` is the checkpoint of the file that
    rows are appended to: the output itself, or the lines of a `chunk` of it. `memory` holds the
    batch limits of each device. `exit_code` is that of the last run, None while it runs and after
    it was killed.
    """

    rows: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    total: int | None = None
    seconds: float = 0.0
    added: int = 0
    chunk: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    safe: FileCheckpoint = field(default_factory=FileCheckpoint)
    whole: int | None = None
    exit_code: int | None = None


KEYS = frozenset(field.name for field in fields(RunProgress))


def read_progress(folder: Path, part: str = "") -> RunProgress:
    """The progress of a run or of a part of it; none where the file is missing or damaged."""
    return parse_progress(read_json(progress_file(folder, part)) or {})


def progress_file(folder: Path, part: str = "") -> Path:
    return folder / f"{PROGRESS}{part}.json"


def all_progress(folder: Path) -> dict[str, RunProgress]:
    """The progress of each part of an output, the last written last; "" is the whole output."""
    files = sorted(folder.glob(f"{PROGRESS}*.json"), key=modified_at)
    parts = [file.stem.removeprefix(PROGRESS) for file in files]
    return {part: read_progress(folder, part) for part in parts}


def modified_at(file: Path) -> float:
    """When the file was written; 0 if it is gone."""
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def parse_progress(value: Mapping[str, Any]) -> RunProgress:
    """The progress in a JSON object; none if the object is not one that a run writes.

    Keys of newer versions are ignored.
    """
    known = {key: value[key] for key in KEYS & value.keys()}
    try:
        found = RunProgress(**known | {"safe": FileCheckpoint(**value["safe"])})
    except (KeyError, TypeError):
        return RunProgress()
    safe = found.safe
    counts = [found.rows, found.added, found.chunk, safe.rows, safe.bytes, found.total or 0]
    counts += [found.whole or 0, found.exit_code or 0]
    is_valid = (
        isinstance(found.seconds, float | int)
        and isinstance(safe.digest, str)
        and all(isinstance(value, int | None) for value in (found.total, found.whole))
        and all(isinstance(value, dict) for value in (found.errors, safe.errors, found.memory))
        and all(map(is_count, (*counts, *found.errors.values(), *safe.errors.values())))
        and abs(found.seconds) <= MAX_COUNT
    )
    return found if is_valid else RunProgress()


def is_count(value: object) -> bool:
    """Whether the value is a count of rows, bytes or the like."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_COUNT
