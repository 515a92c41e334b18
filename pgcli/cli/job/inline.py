"""--inline: each picture above its answer, in terminals that can."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pgcli.cli.job.draw.painter import NotDrawing
from pgcli.cli.job.draw.pending_items import PendingItems
from pgcli.cli.job.plan import Plan
from pgcli.cli.ui.console import is_terminal
from pgcli.records import Answer, Item

if TYPE_CHECKING:
    from pgcli.images import ImageLimits
    from pgcli.remote import UrlReader
    from pgcli.views.terminal_image import Protocol


class NotInline(NotDrawing):
    """A run that shows no pictures."""

    above: Callable[[Answer], str] | None = None


class InlineHook(NotInline):
    """Remembers items till their rows come, and shows the picture of each, boxes and all."""

    def __init__(
        self, protocol: Protocol, limits: ImageLimits, url_reader: UrlReader | None = None
    ):
        self._protocol, self._limits, self._url_reader = protocol, limits, url_reader
        self._items = PendingItems()
        self.above = self._above

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            self._items.put(item)
            yield item

    def skip(self, item: Item) -> None:
        self._items.take(item.index)

    def _above(self, answer: Answer) -> str:
        """What shows the row's picture; empty where there is none, quietly."""
        from pgcli.cli.job.draw.originals import read_original
        from pgcli.images import ImageError, load_image
        from pgcli.views.overlay import draw_overlay
        from pgcli.views.terminal_image import shown

        item = self._items.take(answer.index)
        if answer.error is not None:
            return ""
        try:
            picture = load_image(read_original(item, self._limits, self._url_reader), self._limits)
        except ImageError:
            return ""
        return shown(draw_overlay(picture, answer.boxes, answer.masks), self._protocol)


def open_inline(plan: Plan, limits: ImageLimits) -> NotInline:
    """What shows pictures as `--inline` asks; nothing where nobody would see them."""
    chosen = plan.options.output
    is_text = chosen.output == "-" and chosen.format in ("auto", "text")
    if not (chosen.inline and is_text and is_terminal(sys.stdout)):
        return NotInline()
    from pgcli.views.terminal_image import protocol

    understood = protocol(os.environ)
    if understood is None:
        return NotInline()
    return InlineHook(understood, limits, plan.options.input.url_reader)
