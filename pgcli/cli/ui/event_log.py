"""Messages and progress as events, one JSON object on each line, for `--log-format json`."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from pgcli.cli.ui.progress import ProgressLog, StageProgress


def event_line(event: str, **values: object) -> str:
    """The event with its time (UTC) as one line of ASCII; empty values are left out."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    given = {name: value for name, value in values.items() if value not in (None, "")}
    return json.dumps({"time": time, "event": event, **given})


class ProgressEvents(ProgressLog):
    """Writes an event when a task starts, every `LOG_SECONDS`, and when it ends."""

    def start(self, progress: StageProgress) -> None:
        self._progress = progress
        self._write(progress_line(progress))

    def line(self, progress: StageProgress) -> str:
        return progress_line(progress)

    def stop(self) -> None:
        self._write(progress_line(self._progress))


def progress_line(progress: StageProgress) -> str:
    """The progress of a task as an event."""
    return event_line(
        "progress",
        task=progress.task,
        unit=progress.unit,
        done=progress.done,
        total=progress.total,
        errors=progress.errors,
        details=progress.details,
        per_second=rounded(progress.rate),
        seconds=rounded(progress.seconds),
        seconds_left=rounded(progress.seconds_left),
    )


def rounded(number: float | None) -> float | None:
    """The number with three digits after the point."""
    return None if number is None else round(number, 3)
