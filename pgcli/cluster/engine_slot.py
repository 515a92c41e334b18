"""Where an engine runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSlot:
    """Where an engine runs: on `threads` cores, or on the device of this name."""

    threads: int
    device: str = "cpu"
