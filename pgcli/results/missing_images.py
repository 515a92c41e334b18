"""Counts the images of rows that could not be read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pgcli.records import Fault


@dataclass
class MissingImages:
    """The number of unreadable images by fault, and a description of the first one."""

    faults: Counter[Fault] = field(default_factory=Counter)
    first: str = ""

    @property
    def count(self) -> int:
        return self.faults.total()

    def add(self, image: str, fault: Fault) -> None:
        """Count one more."""
        self.faults[fault] += 1
        self.first = self.first or f"{image}: {fault.message}"
