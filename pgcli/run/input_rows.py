"""The rows that an input asks for: numbered, decoded ahead of the model, answered in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count, repeat
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.config import read_image_spec
from pgcli.inputs import Inventory
from pgcli.records import Answer, DecodedImage, Item
from pgcli.rows import RowSchema
from pgcli.run.progress import Tally
from pgcli.tasks import AnyQuestion, rows_per_image, with_prompts

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow

    from pgcli.run.request import RunRequest

#: Rows of a file in a folder that one command writes, unless `--rows-per-file` says otherwise.
FILE_ROWS = 10_000
#: The same for rows with the vectors of a page: 257 MB.
PAGE_FILE_ROWS = 1000
#: Workers get about so many ranges, within these sizes. Larger ranges let slow workers end late.
RANGES, MIN_RANGE_ROWS, MAX_RANGE_ROWS = 1024, 64, 1000

#: Items, each with the number of its first row.
Numbered = Iterator[tuple[int, Item]]


@dataclass(frozen=True)
class RunRows:
    """The rows of an input: `per_item` for each item, `total` in all.

    Both are None if rows are unknown before the input is read: for standard input, and for several
    prompts that name columns, because equal prompts of an item are one row.
    """

    inventory: Inventory
    question: AnyQuestion
    limit: int | None = None

    @property
    def per_item(self) -> int | None:
        """The number of rows of each item."""
        return rows_per_image(self.question)

    @property
    def total(self) -> int | None:
        """The number of rows of the output."""
        if not self.is_addressable:
            return None
        rows = (self.inventory.total or 0) * (self.per_item or 0)
        return rows if self.limit is None else min(rows, self.limit)

    @property
    def is_addressable(self) -> bool:
        """Whether rows can be read without the rows before them."""
        return self.inventory.total is not None and self.per_item is not None

    @property
    def images(self) -> int | None:
        """The number of items to read; of all sources if the rows are unknown."""
        if self.total is None or self.per_item is None:
            return self.inventory.total
        return -(-self.total // self.per_item)

    def numbered(self, rows: range, *, images: bool = True) -> Numbered:
        """The items of some rows, each with its first row and the prompts of these rows only.

        Without `images`, tables are read without the bytes of images.
        """
        per_item = self.per_item
        assert per_item is not None
        start, stop = rows.start // per_item, -(-rows.stop // per_item)
        read = self.inventory.items(start, stop, images=images)
        items = with_prompts(read, self.question)
        for first, item in zip(count(start * per_item, per_item), items, strict=False):
            begin, end = max(rows.start, first), min(rows.stop, first + per_item)
            if (begin, end) == (first, first + len(item.prompts)):
                yield first, item
            else:
                yield begin, replace(item, prompts=item.prompts[begin - first : end - first])

    def numbered_ranges(self, ranges: Iterable[range]) -> Numbered:
        """The items of ranges of rows, one range after the other; see `numbered`."""
        for rows in ranges:
            yield from self.numbered(rows)

    def chosen(self, numbers: Sequence[int]) -> Numbered:
        """The items of some rows in order, each with the prompt of its row."""
        if self.per_item is not None:
            for number in numbers:
                yield from self.numbered(range(number, number + 1))
            return
        wanted = set(numbers)
        for first, item in self.stream():
            for number, prompt in enumerate(item.prompts, first):
                if number in wanted:
                    yield number, replace(item, prompts=(prompt,))

    def item_of_each(self, rows: range) -> Iterator[Item]:
        """The item of each row."""
        for _, item in self.numbered(rows):
            yield from repeat(item, len(item.prompts))

    def stream(self) -> Numbered:
        """All items with their prompts and first rows, as they arrive, up to the limit."""
        first = 0
        for item in with_prompts(self.inventory.items(), self.question):
            if self.limit is not None and first + len(item.prompts) >= self.limit:
                if first < self.limit:
                    yield first, replace(item, prompts=item.prompts[: self.limit - first])
                return
            yield first, item
            first += len(item.prompts)

    def kept(self, start: int, stop: int) -> pyarrow.Table | None:
        """The kept columns of some rows in their own types; None if the lines have them."""
        if not self.inventory.kept or not self.is_addressable:
            return None
        per_item = self.per_item or 1
        table = self.inventory.kept_table(start // per_item, -(-stop // per_item))
        if per_item == 1:
            return table
        offset = start // per_item
        return table.take([row // per_item - offset for row in range(start, stop)])


def range_rows(total: int) -> int:
    """The row count of a range for a worker, and of a file in a store."""
    return max(MIN_RANGE_ROWS, min(MAX_RANGE_ROWS, -(-total // RANGES)))


def split_rows(rows: range, size: int) -> Iterator[range]:
    """Split rows at the multiples of a size."""
    start = rows.start
    while start < rows.stop:
        stop = min(rows.stop, (start // size + 1) * size)
        yield range(start, stop)
        start = stop


def row_schema(request: RunRequest, keep: Sequence[str], *, exact: bool) -> RowSchema:
    """The columns of the rows. Raises UsageError if a kept column has a reserved name.

    With `exact`, embeddings in lines are their bytes, for Parquet files.
    """
    question = request.question
    return RowSchema(
        timing=not request.output.no_timing,
        base=question.columns,
        float16=question.float16,
        pages=question.pages,
        keep=tuple(keep),
        exact=exact,
        values=question.schema,
    )


class RowImages:
    """The images of numbered items, decoded ahead of the model, also while it loads.

    Leaving the `with` block ends the processes. With `keeps_items`, images keep their items with
    the bytes, which are dropped otherwise. With `pauses`, items may arrive slowly.
    """

    def __init__(
        self,
        request: RunRequest,
        items: Numbered,
        model_folder: Path,
        device: str,
        should_stop: Callable[[], bool],
        *,
        total: int | None,
        pauses: bool = False,
        keeps_items: bool = False,
    ):
        self._should_stop, self._pauses, self._keeps_items = should_stop, pauses, keeps_items
        # the first row of each image in decoding, and its item with `keeps_items`
        self._decoding: deque[tuple[int, Item | None]] = deque()
        self._images = self._decode(request, self._items(items), model_folder, device, total)

    def __enter__(self) -> RowImages:
        return self

    def __exit__(self, *problem: object) -> None:
        self._images.close()

    def take(
        self, tally: Tally, on_image: Callable[[int, DecodedImage], object]
    ) -> Iterator[tuple[int, DecodedImage] | None]:
        """The images with their first rows; None while no image arrives.

        The tally counts them and the time spent waiting for them; `on_image` gets each image.
        """
        while True:
            began = perf_counter()
            image = next(self._images, END)
            tally.waited_seconds += perf_counter() - began
            if image is END:
                return
            if image is None:
                yield None
                continue
            tally.images += 1
            first, item = self._decoding.popleft()
            on_image(first, image)
            yield first, image if item is None else replace(image, item=item)

    def _items(self, items: Numbered) -> Iterator[Item]:
        for first, item in items:
            self._decoding.append((first, item if self._keeps_items else None))
            yield item

    def _decode(
        self,
        request: RunRequest,
        items: Iterator[Item],
        model_folder: Path,
        device: str,
        total: int | None,
    ) -> Generator[DecodedImage | None, None, None]:
        """The decoded images of the items, from worker processes unless there are few.

        A resumed run always uses worker processes (`total` is None): an image may have crashed the
        earlier run, and becomes a failed row. A run that reads URLs uses them, too.
        """
        if request.question.embeds_texts:
            return (DecodedImage(item, None, None, None, 0.0) for item in items)
        from PIL import Image

        from pgcli.device.machine import decoding_processes, visible_gpus
        from pgcli.images import ImageDecoder
        from pgcli.images.pool import decode_ahead

        if device == "auto":  # the model is not loaded yet
            device = "cuda" if visible_gpus() else "cpu"
        Image.MAX_IMAGE_PIXELS = None  # --max-pixels limits the size instead
        options, spec = request.input, read_image_spec(model_folder)
        reader = options.url_reader
        return decode_ahead(
            items,
            ImageDecoder(replace(spec, fast_decode=options.fast_decode), options.image_limits),
            workers=options.workers,
            total=None if reader is not None else total,
            should_stop=self._should_stop,
            reader=reader,
            pauses=self._pauses,
            default_workers=decoding_processes(device),
        )


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
