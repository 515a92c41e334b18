"""How far a run came, for whoever asks and for the next run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pgcli.state.row_file import Checkpoint

MOST = 2**63


@dataclass
class Progress:
    """How far a run came, as `progress.json` tells whoever asks, and the next run.

    `added` rows took `seconds` in the run that wrote this. `safe` is how far the file that rows are
    added to is on disk; it is the output itself, or the journal of a `chunk` of it. `memory` is
    what was learnt of each device's.
    """

    rows: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    total: int | None = None
    seconds: float = 0.0
    added: int = 0
    chunk: int = 0
    memory: dict[str, Any] = field(default_factory=dict)
    safe: Checkpoint = field(default_factory=Checkpoint)


def progress_of(told: Mapping[str, Any]) -> Progress:
    """What a progress file says; nothing where it is damaged."""
    try:
        found = Progress(**dict(told) | {"safe": Checkpoint(**told["safe"])})
    except (KeyError, TypeError):
        return Progress()
    safe = found.safe
    counts = [found.rows, found.added, found.chunk, safe.rows, safe.bytes]
    counts += [0 if found.total is None else found.total]
    by_code = (found.errors, safe.errors)
    is_sound = (
        all(isinstance(errors, dict) for errors in by_code)
        and all(map(is_count, (*counts, *found.errors.values(), *safe.errors.values())))
        and isinstance(found.seconds, int | float)
        and -MOST <= found.seconds <= MOST
        and isinstance(safe.digest, str)
        and isinstance(found.memory, dict)
    )
    return found if is_sound else Progress()


def is_count(value: object) -> bool:
    """Whether it is a number of rows, bytes or the like."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST
