"""What a worker sends to the owner of a run; each message names its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pgcli.records import Answer

if TYPE_CHECKING:
    from pgcli.inputs.stamps import Stamp
    from pgcli.pipeline.progress.tally import Tally


@dataclass(frozen=True)
class EngineInfo:
    """The model is loaded: what the summary and the record of a run need of it."""

    label: str
    device: str
    dtype: str
    batch_size: int
    model: dict[str, Any]
    facts: tuple[tuple[str, str], ...] = ()


#: The number of a row, its answer, and the stamp of its image with the first row of an image.
RowAnswered: TypeAlias = "tuple[int, Answer, Stamp | None]"


@dataclass(frozen=True, slots=True)
class WorkBegun:
    """The model has the first image of a range."""

    rows: range


@dataclass(frozen=True, slots=True)
class WorkDone:
    """All rows of a range are answered. The counts are since the range before it.

    `hits` of the `prompts` shared the features of an image with another prompt; `limits` says how
    batches became smaller because memory ran out.
    """

    rows: range
    images: int
    waited_seconds: float
    hits: int
    prompts: int
    limits: str


@dataclass(frozen=True, slots=True)
class PartWritten(WorkDone):
    """The worker has written the rows to their file of the output; stamps by index of image."""

    tally: Tally
    stamps: Mapping[int, Stamp]


Message: TypeAlias = "EngineInfo | WorkBegun | RowAnswered | WorkDone"
