"""Computes rows: images are decoded ahead, the model answers them, and rows come in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from pgcli.output.lines import json_line
from pgcli.records import Answer, DecodedImage, Fault, Item, error_answer
from pgcli.rows import RowSchema
from pgcli.run.checks import image_limits
from pgcli.run.rows import RunRows
from pgcli.run.state.open_files import OpenFiles, Segment
from pgcli.run.state.processes import MAX_DEATHS, Claim
from pgcli.run.tally import Tally
from pgcli.run.task import LoadedEngine, ask_function
from pgcli.run.workers.answer import answer

if TYPE_CHECKING:
    from pgcli.images import ImageSpec
    from pgcli.run.request import RunRequest

CRASHED = Fault("worker_crashed", "The process of the model died of the image, twice.")
#: Rows with their items, each with its first row.
Numbered = Iterator[tuple[int, Item]]


class RowImages:
    """The images of rows, decoded ahead of the model in processes of their own.

    `prepare` has the images of some rows decoded, after those prepared before, also while the model
    is loaded; `take` returns them. Leaving the `with` block ends the processes. With `keeps_items`
    an image has its item as it was read, with the bytes that are dropped otherwise.
    """

    def __init__(
        self,
        request: RunRequest,
        rows: RunRows,
        spec: ImageSpec,
        device: str,
        should_stop: Callable[[], bool],
        *,
        total: int | None,
        keeps_items: bool = False,
    ):
        self._rows, self._should_stop = rows, should_stop
        self._keeps_items = keeps_items
        self._queue: SimpleQueue[Numbered | None] = SimpleQueue()
        # the first row of each image that is being decoded, and its item if that is kept
        self._decoding: deque[tuple[int, Item | None]] = deque()
        self._images = self._decode(request, spec, device, total)

    def __enter__(self) -> RowImages:
        return self

    def __exit__(self, *problem: object) -> None:
        self._queue.put(None)
        self._images.close()

    def prepare(self, items: Numbered | None) -> None:
        """Have these images decoded, each with its first row; None: there are no more."""
        self._queue.put(items)

    def take(self, count: int | None, tally: Tally) -> Iterator[tuple[int, DecodedImage] | None]:
        """The next images with their first rows, `count` of them or all; None while none arrives.

        They are counted in the tally, with the time for which they are waited for.
        """
        while count is None or count > 0:
            began = perf_counter()
            image = next(self._images, END)
            tally.waited_seconds += perf_counter() - began
            if image is END:
                return
            if image is None:
                yield None
                continue
            tally.images += 1
            count = None if count is None else count - 1
            first, item = self._decoding.popleft()
            yield first, image if item is None else replace(image, item=item)

    def _items(self) -> Iterator[Item]:
        while (items := self._queue.get()) is not None:
            for first, item in items:
                self._decoding.append((first, item if self._keeps_items else None))
                yield item

    def _decode(
        self, request: RunRequest, spec: ImageSpec, device: str, total: int | None
    ) -> Generator[DecodedImage | None, None, None]:
        """The decoded images of the items, in worker processes unless they are few.

        A run that resumes always uses worker processes (`total` is None): the run before may have
        died of an image, which then becomes an error row. So does a run that reads addresses.
        """
        if request.question.embeds_texts:
            return (DecodedImage(item, None, None, None, 0.0) for item in self._items())
        from PIL import Image

        from pgcli.device.decoding import decoding_processes
        from pgcli.images import ImageDecoder
        from pgcli.images.pool import decode_ahead

        Image.MAX_IMAGE_PIXELS = None  # --max-pixels is the limit that counts in this process
        options = request.input
        reader = options.url_reader
        return decode_ahead(
            self._items(),
            ImageDecoder(replace(spec, fast_decode=options.fast_decode), image_limits(request)),
            workers=options.workers,
            total=None if reader is not None else total,
            should_stop=self._should_stop,
            reader=reader,
            pauses=self._rows.inventory.total is None,
            default_workers=decoding_processes(device),
        )


#: The end of the images, which None is not.
END: Any = object()


class RowSink(Protocol):
    """Takes the lines of consecutive rows."""

    name: str

    def append(self, line: bytes) -> None: ...

    def close(self) -> None: ...


class Computer:
    """A loaded model with its decoding processes, which computes any rows of a run."""

    def __init__(
        self,
        request: RunRequest,
        rows: RunRows,
        images: RowImages,
        engine: LoadedEngine,
        schema: RowSchema,
        should_stop: Callable[[], bool],
    ):
        self._rows, self._images, self._schema = rows, images, schema
        self._should_stop = should_stop
        self._prepared: list[range] = []
        self._ask = ask_function(request, engine, should_stop)
        self._refuse = partial(error_answer, task=request.question.task, model=engine.label)

    def answers(self, count: int | None, tally: Tally) -> Iterator[tuple[int, Item, Answer]]:
        """The rows of the next `count` prepared images, or of all, as `answer` returns them."""
        images = self._images.take(count, tally)
        return answer(images, self._ask, self._refuse, self._should_stop)

    def prepare(self, rows: range) -> None:
        """Have the images of these rows decoded, after those of ranges prepared before."""
        if rows not in self._prepared:
            self._prepared.append(rows)
            self._images.prepare(self._rows.numbered(rows))

    def compute(
        self,
        claim: Claim,
        missing: Iterable[range],
        files: OpenFiles,
        update: Callable[[Claim], None],
        tally: Tally,
    ) -> tuple[list[Segment], bool]:
        """Compute the missing rows of a chunk and save them in open files.

        Returns what is saved, and whether that is all: not if the run is to stop. A chunk that
        killed processes is computed row by row, and a row that killed processes is an error row.
        """
        segments = []
        for rows in missing:
            sink, counted = files.begin(rows.start), Tally()
            try:
                for part in self._images_of(rows) if claim.is_split else [rows]:
                    self._compute_part(claim, part, sink, update, counted)
            finally:
                sink.close()
                tally.add(counted)
            segments.append(Segment(rows.start, counted.rows, counted.errors, sink.name))
            if counted.rows < len(rows):
                return segments, False
        return segments, True

    def _compute_part(
        self,
        claim: Claim,
        rows: range,
        sink: RowSink,
        update: Callable[[Claim], None],
        tally: Tally,
    ) -> None:
        if self._should_stop():
            return
        if claim.is_split:
            is_known = claim.row == rows.start
            if is_known and claim.row_deaths >= MAX_DEATHS:
                self._save(self._refused(rows), sink, tally)
                return
            claim.row, claim.row_deaths = rows.start, claim.row_deaths if is_known else 0
            update(claim)
        self.prepare(rows)
        count = self._rows.item_count(rows)
        self._save((row for _, _, row in self.answers(count, tally)), sink, tally)
        self._prepared.remove(rows)

    def _save(self, rows: Iterable[Answer], sink: RowSink, tally: Tally) -> None:
        for row in rows:
            sink.append(json_line(row, self._schema).encode())
            tally.count(row)

    def _images_of(self, rows: range) -> list[range]:
        """The rows of each image."""
        per_item = self._rows.per_item or 1
        starts = [rows.start, *range((rows.start // per_item + 1) * per_item, rows.stop, per_item)]
        stops = [*starts[1:], rows.stop]
        return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]

    def _refused(self, rows: range) -> Iterator[Answer]:
        """Error rows of images that ended the process that answered them."""
        for _, item in self._rows.numbered(rows):
            image = DecodedImage(item, None, None, None, 0.0, CRASHED)
            for prompt in item.prompts:
                yield self._refuse(image, prompt)
