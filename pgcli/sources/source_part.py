"""The interface of the parts of a source: folders, files, manifests, standard input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from pgcli.records import Item


class SourcePart(Protocol):
    """One source that the user named. It is scanned once when it is made."""

    name: str
    ignored: Counter[str]

    @property
    def kinds(self) -> Counter[str]:
        """The number of images, or of a manifest's rows, by file name ending."""

    @property
    def total(self) -> int | None:
        """The number of items; None if it is not known before the end."""

    @property
    def has_prompts(self) -> bool:
        """Whether the items have prompts of their own."""

    def items(self, first: int) -> Iterator[Item]:
        """The part's items, numbered from `first`."""
