"""Selects some of the items of a run: the first rows, or an even sample."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pgcli.records import Item


def first_rows(items: Iterable[Item], limit: int) -> Iterator[Item]:
    """The items of the first `limit` rows; the last may keep only some of its prompts."""
    remaining = limit
    for item in items if limit > 0 else ():
        yield replace(item, prompts=item.prompts[:remaining])
        remaining -= len(item.prompts)
        if remaining <= 0:
            return


def sample_evenly(items: Iterable[Item], total: int, count: int) -> Iterator[Item]:
    """`count` of the `total` items at equal distances, in order; all if there are no more."""
    if count >= total:
        return iter(items)
    return items_at(items, [number * total // count for number in range(count)])


def items_at(items: Iterable[Item], numbers: Sequence[int]) -> Iterator[Item]:
    """The items with these increasing numbers; those after the last are not read."""
    wanted = iter(numbers)
    next_number = next(wanted, None)
    for number, item in enumerate(items):
        if number == next_number:
            yield item
            next_number = next(wanted, None)
        if next_number is None:
            return
