"""What a worker sends to the owner of a run; each message names its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from pgcli.inputs.stamps import Stamp
    from pgcli.pipeline.progress.tally import Error


@dataclass(frozen=True)
class EngineInfo:
    """The model is loaded: what the summary and the record of a run need of it."""

    label: str
    device: str
    dtype: str
    batch_size: int
    model: dict[str, Any]
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class WorkBegun:
    """The model has the first image of a range."""

    rows: range


class RowsAnswered(NamedTuple):
    """Consecutive rows of a range from row `first` on, that were ready at once, as lines.

    Without `lines` the worker has written the rows to their file of the output. `counts` are those
    of their tally, and `errors` those of the failed ones. `stamps` are those of the images that the
    model was given since the message before, by index. `limits` says how batches became smaller
    because memory ran out. All are plain values: they are read in a tenth of the time.
    """

    first: int
    lines: Sequence[bytes] | None
    counts: Sequence[float]
    errors: Sequence[Error]
    stamps: Mapping[int, Stamp | None]
    limits: str

    @property
    def rows(self) -> range:
        """The numbers of the rows."""
        return range(self.first, self.first + int(self.counts[0]))


Message: TypeAlias = "EngineInfo | WorkBegun | RowsAnswered"
