"""The messages between the program and its engine processes.

Engine processes run this code on pixels that decoding processes have made, so both sides trust
each other and messages are pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pgcli.images import ImageSpec
from pgcli.pipeline import Ask
from pgcli.records import Answer, DecodedImage


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the program knows of a loaded engine. `settings` and `facts` are the task's."""

    label: str
    device: str
    dtype: str
    batch_size: int
    spec: ImageSpec
    settings: Mapping[str, object] = field(default_factory=dict)
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class EngineCounts:
    """Image-feature cache hits of an engine so far, and how far its batches shrank."""

    hits: int = 0
    prompts: int = 0
    limits: str = ""
    limits_state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine in its process: `make_ask` takes a function that says whether to stop."""

    info: EngineInfo
    make_ask: Callable[[Callable[[], bool]], Ask]
    counts: Callable[[], EngineCounts]
    load_limits: Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True)
class ImageChunk:
    """Images that are answered together, each with the index of its first row."""

    number: int
    images: tuple[tuple[int, DecodedImage], ...]

    @property
    def rows(self) -> list[int]:
        """The indices of the rows."""
        return [
            row_index
            for first, image in self.images
            for row_index in range(first, first + len(image.item.prompts))
        ]


@dataclass(frozen=True, slots=True)
class LearnedLimits:
    """Batch sizes that an earlier run on the same device reduced on OOM."""

    state: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StopRequest:
    """Finish the rows in progress, and leave the others unanswered."""


@dataclass(frozen=True, slots=True)
class AnsweredRows:
    """Rows of a chunk, with their indices."""

    rows: tuple[tuple[int, Answer], ...]


@dataclass(frozen=True, slots=True)
class ChunkDone:
    """All rows of a chunk are answered, or were left unanswered on request."""

    number: int
    counts: EngineCounts


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine raised an exception and ends. `traceback` is its text."""

    error: BaseException
    traceback: str
