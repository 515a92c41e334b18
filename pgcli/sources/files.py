"""Image files that the user named one by one, or by a glob."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from pgcli.records import Item
from pgcli.sources.paths import as_given


@dataclass
class Files:
    """Pictures at known paths, which need not lie in one folder."""

    name: str
    found: list[tuple[str, str]]  # as given, as opened
    ignored: Counter[str] = field(default_factory=Counter)
    has_prompts = False

    @property
    def total(self) -> int:
        return len(self.found)

    def items(self, first: int) -> Iterator[Item]:
        """The pictures as given, numbered from `first`."""
        for index, (given, path) in enumerate(self.found, first):
            yield Item(index, as_given(given), as_given(given), path)
