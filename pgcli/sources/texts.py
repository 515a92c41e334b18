"""Texts as items, in place of images."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pgcli.records import Item
from pgcli.sources.source_part import RowSlice


class TextPart:
    """An item for each text, whose prompt it is and whose id is its index."""

    name = "a list of texts"
    has_excluded = False
    has_prompts = True

    def __init__(self, texts: Sequence[str]):
        self._texts = texts
        self.ignored: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return len(self._texts)

    def rows(self, first: int, part: RowSlice) -> Iterator[Item]:
        for number in range(part.start, min(part.stop, self.total)):
            index = first + number
            yield Item(index, str(index), "", prompts=(self._texts[number],))
