"""Pictures of rows that could not be had: how many, and the first of them."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.records import Fault


@dataclass
class Missing:
    """How many there are, how many of them because of addresses, and why the first one is."""

    count: int = 0
    blocked: int = 0
    first: str = ""

    def add(self, image: str, fault: Fault) -> None:
        """Count one more."""
        self.count += 1
        self.blocked += fault.code == "url_blocked"
        self.first = self.first or f"{image}: {fault.message}"
