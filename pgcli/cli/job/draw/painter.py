"""The row hook of `--draw`: images with their boxes and masks, written by threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from pgcli.cli.job.draw.file_names import FileName, FileNames
from pgcli.cli.job.draw.originals import read_original
from pgcli.cli.job.draw.pending_items import PendingItems
from pgcli.cli.job.row_hooks import RowHook
from pgcli.errors import OutputFailed, UsageError
from pgcli.images import ImageError, ImageLimits, load_image
from pgcli.images.decoder_warnings import silence_decoders
from pgcli.images.formats import identify_image
from pgcli.records import BOX_TASKS, Answer, Item
from pgcli.remote import UrlReader
from pgcli.sources.paths import resolves_inside
from pgcli.views.colours import LabelColours
from pgcli.views.formats import SUFFIXES, SavedFormat, format_of, save_image, writable_suffixes
from pgcli.views.output_folder import draw_error, write_below
from pgcli.views.overlay import draw_overlay

THREADS = 2  # each holds one or two images in full size
MAX_PENDING = 8  # images that wait for a thread; beyond that the run waits
MAX_NAMED = 5  # images that a message names


class DrawHook(RowHook):
    """Draws an image for each row into a folder, named by the row's id.

    Error rows are not drawn, nor are rows of other tasks without boxes. Leaving the `with` block
    waits for the last images; one that cannot be written raises OutputFailed there, or at the next
    row.
    """

    def __init__(
        self,
        folder: str,
        *,
        labels: Iterable[str] = (),
        limits: ImageLimits | None = None,
        url_reader: UrlReader | None = None,
        say: Callable[[str], None],
    ):
        self._folder = folder
        self._root = os.path.realpath(folder)
        self._limits = limits or ImageLimits()
        self._url_reader = url_reader
        self._say = say
        self._colours = LabelColours(labels)
        self._names = FileNames(writable_suffixes())
        self._items = PendingItems()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="draw")
        self._pending: deque[tuple[Answer, Future[SavedFormat | None]]] = deque()
        self._replaced_formats: set[str] = set()
        self._changed: list[str] = []
        self._changed_count = 0
        self._rows = self._drawings = 0

    def wrap_items(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items; each is kept until its rows are drawn."""
        for item in items:
            check_not_inside(item, self._folder, self._root)
            self._items.put(item)
            yield item

    def on_row(self, answer: Answer) -> None:
        """Draw the row's image soon. To be called for every row in order."""
        item = self._items.take(answer.index)
        name = self._names.claim(item.id, item.index)  # also of an error row: it may be retried
        while self._pending and (self._pending[0][1].done() or len(self._pending) >= MAX_PENDING):
            self._finish(*self._pending.popleft())
        self._rows += 1
        # an image in which detect or segment found nothing is copied without boxes
        if answer.error is None and (answer.boxes or answer.task in BOX_TASKS):
            drawn = self._pool.submit(self._draw, item, answer, name, token=str(self._rows))
            self._pending.append((answer, drawn))
            self._drawings += 1

    def on_skipped_row(self, item: Item, row_index: int) -> None:
        """Reserve the file name of a row that is drawn already."""
        self._items.take(item.index)
        self._names.claim(item.id, item.index)

    def summary(self) -> str:
        """How many images were drawn, and where."""
        count = self._drawings - self._changed_count
        return f"{count:,} in {self._folder}" if count else "nothing, as no answer has boxes"

    def __enter__(self) -> Self:
        silence_decoders()
        try:
            Path(self._folder).mkdir(exist_ok=True)
        except OSError as problem:
            raise draw_error(self._folder, problem.strerror or str(problem)) from problem
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            while self._pending and not isinstance(problem, OutputFailed):
                self._finish(*self._pending.popleft())
        except OutputFailed:
            if problem is None:
                raise  # otherwise the first error is the one to report
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._items.clear()
            self._report_changed()

    def _draw(
        self, item: Item, answer: Answer, name: FileName, *, token: str
    ) -> SavedFormat | None:
        """Draw and write the image; None if it changed since it was answered."""
        try:
            data = read_original(item, self._limits, self._url_reader)
            image = load_image(data, self._limits)
            original = format_of(identify_image(data))
        except ImageError:
            return None
        if image.size != (answer.width, answer.height):
            return None
        file_name = name.with_ending(SUFFIXES[original.written_as][0])
        overlay = draw_overlay(image, answer.boxes, answer.masks, colours=self._colours)
        try:
            file = save_image(overlay, original)
        except (OSError, ValueError) as problem:
            raise draw_error(f"{self._folder}/{file_name}", str(problem)) from problem
        write_below(self._folder, file_name, file, token=token)
        return original

    def _finish(self, answer: Answer, drawn: Future[SavedFormat | None]) -> None:
        """Take the result of a drawing, which is done or waited for."""
        original = drawn.result()
        if original is None:
            self._changed_count += 1
            self._changed += [answer.id] if len(self._changed) < MAX_NAMED else []
            return
        format, written_as = original.format, original.written_as
        if written_as != format and format not in self._replaced_formats:
            self._replaced_formats.add(format)
            self._say(
                f"{answer.id} is {format}, which the installed Pillow does not write: "
                f"such images are drawn as {written_as}"
            )

    def _report_changed(self) -> None:
        if self._changed:
            more = self._changed_count - len(self._changed)
            names = ", ".join(map(str, self._changed)) + (f" and {more} more" if more else "")
            self._say(f"not drawn, as they changed or vanished since they were answered: {names}")


def check_not_inside(item: Item, folder: str, root: str) -> None:
    """Raise UsageError for an image in the folder, whose real path is `root`.

    A drawing might replace the image.
    """
    try:
        is_inside = item.path is not None and resolves_inside(item.path, root)
    except ValueError:  # a name with NUL, which no file has
        return
    if is_inside:
        raise UsageError(
            f"{item.id} is an input and is in {folder}, where a drawing might replace it",
            hint="choose another folder with --draw",
        )
