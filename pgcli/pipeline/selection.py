"""Selects some of the items of a run: the first rows, or an even sample."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from pgcli.records import Item


def first_rows(items: Iterable[Item], limit: int) -> Iterator[Item]:
    """The items of the first `limit` rows; the last may keep only some of its prompts."""
    remaining = limit
    for item in items if limit > 0 else ():
        yield replace(item, prompts=item.prompts[:remaining])
        remaining -= len(item.prompts)
        if remaining <= 0:
            return


@dataclass(frozen=True)
class EvenSample:
    """`count` of `total` items at equal distances; all of them if there are no more."""

    total: int
    count: int

    def index(self, position: int) -> int:
        """The index in the input of an item of the sample."""
        return position * self.total // self.count if self.count < self.total else position

    def position(self, index: int) -> int | None:
        """The position in the sample of an item of the input; None if it is not in the sample."""
        if index >= self.total:
            return None
        position = -(-index * self.count // self.total) if self.count < self.total else index
        return position if self.index(position) == index else None


def sample_evenly(items: Iterable[Item], total: int, count: int) -> Iterator[Item]:
    """`count` of the `total` items at equal distances, in order; all if there are no more."""
    sample = EvenSample(total, count)
    return (item for n, item in enumerate(items) if sample.position(n) is not None)


class ReadRows(Protocol):
    """Reads the items with indices from `start` to before `stop`, without reading the others.

    Images that are part of a table are read of the items for which `needs_image` holds.
    """

    def __call__(
        self, start: int, stop: int, needs_image: Callable[[int], bool]
    ) -> Iterator[Item]: ...


@dataclass(frozen=True)
class Selection:
    """The items of an input of known length that a run answers: a sample of them, up to a limit.

    Each has `per_image` rows.
    """

    sample: EvenSample
    per_image: int
    rows: int

    def items(
        self,
        read: ReadRows,
        with_prompts: Callable[[Iterable[Item]], Iterator[Item]],
        parts: Iterable[range],
        is_unchanged: Callable[[int], bool],
    ) -> Iterator[Item]:
        """The items of these parts of the rows, each with the index of its first row.

        The images of unchanged rows are not read where they are part of a table.
        """
        for part in parts:
            first, last = part.start // self.per_image, (part.stop - 1) // self.per_image
            found = read(
                self.sample.index(first),
                self.sample.index(last) + 1,
                partial(self._needs_image, is_unchanged),
            )
            chosen = (item for item in found if self.sample.position(item.index) is not None)
            for position, item in enumerate(with_prompts(chosen), first):
                row = position * self.per_image
                yield replace(item, row=row, prompts=item.prompts[: self.rows - row])

    def _needs_image(self, is_unchanged: Callable[[int], bool], index: int) -> bool:
        """Whether an item of the input is in the sample and not all of its rows are unchanged."""
        position = self.sample.position(index)
        if position is None:
            return False
        first = position * self.per_image
        return not all(map(is_unchanged, range(first, min(first + self.per_image, self.rows))))
