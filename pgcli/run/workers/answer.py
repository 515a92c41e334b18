"""Answers a stream of images and returns their rows in the order of the input."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import Any

from pgcli.records import Answer, DecodedImage, Item

#: Answers images, which come with the numbers of their first rows; rows come back in any order.
Ask = Callable[[Iterable[tuple[int, DecodedImage]]], Iterable[tuple[int, Answer]]]
#: Decodes items in order; yields None while no item arrives. Closing it ends its processes.
Decode = Callable[[Iterable[Item]], Generator[DecodedImage | None, None, None]]
#: The failed row of an unreadable image, for one of its prompts.
Refuse = Callable[[DecodedImage, str], Answer]

#: The rows of decoded images with their numbers and items: see `answer`.
AnswerFn = Callable[[Iterator[tuple[int, DecodedImage] | None]], Iterator[tuple[int, Item, Answer]]]

#: After so many consecutive failed rows the stream to `ask` ends, and `ask` answers its pending
#: images. Otherwise the rows of a million broken files would stay in memory before one is saved.
MAX_REFUSED = 100
#: The end of a stream of images, in which None means that no image has arrived.
END: Any = object()


def answer_items(
    items: Iterable[Item], decode: Decode, ask: Ask, refuse: Refuse
) -> Generator[Answer, None, None]:
    """The row of each item and prompt, in the order of the items."""
    firsts: deque[int] = deque()  # the first row of each item that is being decoded

    def counted() -> Iterator[Item]:
        first = 0
        for item in items:
            firsts.append(first)
            first += len(item.prompts)
            yield item

    # closed here rather than when the traceback is freed: `decode` may have started processes
    with closing(decode(counted())) as images:
        numbered = (None if image is None else (firsts.popleft(), image) for image in images)
        for _, _, row in rows_in_order(numbered, ask, refuse):
            yield row


def rows_in_order(
    images: Iterator[tuple[int, DecodedImage] | None],
    ask: Ask,
    refuse: Refuse,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[int, Item, Answer]]:
    """The row of each image and prompt with its number and item, in the order of the images.

    Images come with the numbers of their first rows; None means that no image has arrived, so that
    the pending ones are answered now. An unreadable image is not passed to `ask`: only its own rows
    fail. After `should_stop` no more images are taken, and `ask` may skip some.
    """
    waiting: deque[tuple[int, Item]] = deque()  # rows that are not returned yet
    done: dict[int, Answer] = {}
    is_over = False

    def stream() -> Iterator[tuple[int, DecodedImage]]:
        nonlocal is_over
        refused, is_empty = 0, True
        while refused < MAX_REFUSED:
            numbered = None if should_stop() else next(images, END)
            if numbered is END or should_stop():
                is_over = True
                return
            if numbered is None:
                if is_empty:
                    continue
                return
            first, image = numbered
            is_empty = False
            rows = range(first, first + len(image.item.prompts))
            waiting.extend((row, image.item) for row in rows)
            if image.fault is None:
                refused = 0
                yield first, image
                continue
            for row, prompt in zip(rows, image.item.prompts, strict=True):
                done[row] = refuse(image, prompt)
            refused += len(rows)

    def ready() -> Iterator[tuple[int, Item, Answer]]:
        while waiting and waiting[0][0] in done:
            row, item = waiting.popleft()
            yield row, item, done.pop(row)

    while not is_over:
        for row, answered in ask(stream()):
            if row in done:
                raise AssertionError(f"row {row} was answered twice")
            done[row] = answered
            yield from ready()
        yield from ready()
        if waiting and not should_stop():
            raise AssertionError("an image was never answered")
