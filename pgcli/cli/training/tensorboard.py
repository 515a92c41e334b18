"""`train --tensorboard`: the metrics as event files in `DIR/tensorboard`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgcli.cli.training.display import OnUpdate

FOLDER, FILES = "tensorboard", "events.out.tfevents.*"


@contextmanager
def events_observer(folder: Path, step: int) -> Iterator[OnUpdate]:
    """What writes each line of the metrics of the steps after `step`."""
    from pgcli.training.event_file import EventFile

    events = EventFile(folder / FOLDER, step)
    try:
        yield lambda line: events.append(line["step"], values_of(line))
    finally:
        events.close()


def values_of(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line by their tags, `train/loss` and `eval/loss`."""
    return {
        f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}": value
        for name, value in line.items()
        if name != "step" and isinstance(value, int | float)
    }


def remove_events(folder: Path) -> None:
    """Remove the event files of an earlier run. Raises OSError."""
    for file in (folder / FOLDER).glob(FILES):
        file.unlink()
