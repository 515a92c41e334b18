"""Pictures of rows that could not be had: how many, and the first of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pgcli.records import Fault


@dataclass
class Missing:
    """How many there are, by what is wrong with them, and why the first one is."""

    faults: Counter[Fault] = field(default_factory=Counter)
    first: str = ""

    @property
    def count(self) -> int:
        return self.faults.total()

    def add(self, image: str, fault: Fault) -> None:
        """Count one more."""
        self.faults[fault] += 1
        self.first = self.first or f"{image}: {fault.message}"
