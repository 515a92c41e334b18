"""The interface of the parts of a source: folders, files, manifests, standard input."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from pgcli.records import Item


class RowSlice(NamedTuple):
    """The rows of a part from `start` to before `stop`.

    Of a row for which `needs_image` does not hold, the bytes of an image that is in a table or an
    archive need not be read: `NOT_READ` stands for them.
    """

    start: int
    stop: int
    needs_image: Callable[[int], bool] = lambda row: True


class SourcePart(Protocol):
    """One source that the user named. It is scanned once when it is made.

    It `has_excluded` images if their names are not accepted.
    """

    name: str
    ignored: Counter[str]
    has_excluded: bool

    @property
    def kinds(self) -> Counter[str]:
        """The number of images, or of a manifest's rows, by file name ending."""

    @property
    def total(self) -> int | None:
        """The number of items, known without reading any image; None before the end of a pipe."""

    @property
    def has_prompts(self) -> bool:
        """Whether the items have prompts of their own."""

    def rows(self, first: int, part: RowSlice) -> Iterator[Item]:
        """Some of the items, without reading the others; `first` is the index of the first one."""
