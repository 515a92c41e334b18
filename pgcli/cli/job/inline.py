"""--inline: each image above its answer, in terminals that can show images."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pgcli.cli.job.draw.pending_items import PendingItems
from pgcli.cli.job.plan import Plan
from pgcli.cli.job.row_hooks import RowHook
from pgcli.cli.ui.console import is_terminal
from pgcli.records import Answer, Item

if TYPE_CHECKING:
    from pgcli.images import ImageLimits
    from pgcli.remote import UrlReader
    from pgcli.views.terminal_image import TerminalProtocol


class InlineHook(RowHook):
    """Keeps items until their rows come, then shows each image with its boxes and masks."""

    def __init__(
        self, protocol: TerminalProtocol, limits: ImageLimits, url_reader: UrlReader | None = None
    ):
        self._protocol, self._limits, self._url_reader = protocol, limits, url_reader
        self._items = PendingItems()
        self.header = self._image

    def wrap_items(self, items: Iterable[Item]) -> Iterator[Item]:
        for item in items:
            self._items.put(item)
            yield item

    def on_skipped_row(self, item: Item, row_index: int) -> None:
        self._items.take(item.index)

    def _image(self, answer: Answer) -> str:
        """The escape sequence that shows the row's image; empty if it cannot be read."""
        from pgcli.cli.job.draw.originals import read_original
        from pgcli.images import ImageError, load_image
        from pgcli.views.overlay import draw_overlay
        from pgcli.views.terminal_image import encode_image

        item = self._items.take(answer.index)
        if answer.error is not None:
            return ""
        try:
            image = load_image(read_original(item, self._limits, self._url_reader), self._limits)
        except ImageError:
            return ""
        return encode_image(draw_overlay(image, answer.boxes, answer.masks), self._protocol)


def make_inline(plan: Plan) -> InlineHook | None:
    """The hook of `--inline`; None where no terminal would show the images."""
    options = plan.options.output
    is_text = options.output == "-" and options.format in ("auto", "text")
    if not (options.inline and is_text and is_terminal(sys.stdout)):
        return None
    from pgcli.views.terminal_image import detect_protocol

    protocol = detect_protocol(os.environ)
    if protocol is None:
        return None
    return InlineHook(protocol, plan.image_limits, plan.options.input.url_reader)
