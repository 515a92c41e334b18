"""Several engines as one, for what a run shows and records of its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pgcli.cluster.messages import EngineCounts, EngineInfo
from pgcli.images import ImageSpec


@dataclass(slots=True)
class PoolImageStats:
    """Image-feature cache hits of all engines."""

    hits: int = 0
    prompts: int = 0


class PoolBatchLimits:
    """The batch sizes of the engines, which they reduce on OOM.

    `share` gives those of an earlier run to the engines.
    """

    def __init__(self, share: Callable[[Mapping[str, Any]], None] = lambda state: None) -> None:
        self._share = share
        self._counts = EngineCounts()
        self._state: Mapping[str, Any] = {}

    def update(self, counts: EngineCounts) -> None:
        """Note the limits of an engine that had to reduce them."""
        if counts.limits:
            self._counts = counts

    def summary(self) -> str:
        return self._counts.limits

    def state_dict(self) -> dict[str, Any]:
        return dict(self._counts.limits_state or self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._state = state
        if state:
            self._share(state)


class EngineGroup:
    """Several engines as one, with what the first that was loaded says of itself."""

    info: EngineInfo

    def __init__(self) -> None:
        self.image_stats = PoolImageStats()
        self.batch_limits = PoolBatchLimits()

    @property
    def label(self) -> str:
        return self.info.label

    @property
    def device(self) -> str:
        return self.info.device

    @property
    def dtype(self) -> str:
        return self.info.dtype

    @property
    def batch_size(self) -> int:
        return self.info.batch_size

    @property
    def spec(self) -> ImageSpec:
        return self.info.spec

    @property
    def facts(self) -> Iterator[tuple[str, str]]:
        """What the summary says of the engines."""
        yield from self.info.facts
