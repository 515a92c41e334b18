"""--draw: answered pictures, with their boxes and masks, into a folder while the run goes on."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from pgcli.cli.job.draw.file_names import FileName, FileNames
from pgcli.cli.job.draw.originals import read_original as stored
from pgcli.cli.job.draw.pending_items import PendingItems
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

THREADS = 2  # painters; each holds a picture or two in full size
WAITING = 8  # pictures that wait for a painter; then the run waits for them
NAMED = 5  # pictures that a message names


class NotDrawing:
    """A run without --draw: nothing is drawn."""

    def watch(self, items: Iterable[Item]) -> Iterable[Item]:
        """The items as they are."""
        return items

    def draw(self, answer: Answer) -> None:
        """Do nothing."""

    def skip(self, item: Item) -> None:
        """Do nothing."""

    def told(self) -> str:
        """Nothing."""
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class DrawHook(NotDrawing):
    """Draws a picture for every row into a folder, named by the row's id, with its boxes.

    Rows of errors draw nothing, nor do those of a caption or a question without boxes. Leaving
    the `with` block waits for the last pictures; one that cannot be written raises OutputFailed
    there, or at the next `draw`.
    """

    def __init__(
        self,
        folder: str,
        *,
        asked: Iterable[str] = (),
        limits: ImageLimits | None = None,
        url_reader: UrlReader | None = None,
        tell: Callable[[str], None],
    ):
        self._folder = folder
        self._root = os.path.realpath(folder)
        self._limits = limits or ImageLimits()
        self._url_reader = url_reader
        self._tell = tell
        self._colours = LabelColours(asked)
        self._names = FileNames(writable_suffixes())
        self._items = PendingItems()
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="draw")
        self._pending: deque[tuple[Answer, Future[SavedFormat | None]]] = deque()
        self._replaced: set[str] = set()
        self._missed: list[str] = []
        self._missed_count = 0
        self._rows = self._drawings = 0

    def watch(self, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, each remembered from when it is looked at until its row is drawn."""
        for item in items:
            self.spare(item)
            self._items.put(item)
            yield item

    def spare(self, item: Item) -> None:
        """Raise UsageError for a picture that lies in the folder: it might be drawn over."""
        try:
            is_inside = item.path is not None and resolves_inside(item.path, self._root)
        except ValueError:  # no file has such a name
            return
        if is_inside:
            raise UsageError(
                f"{item.id} is an input and lies in {self._folder}, where it might be drawn over",
                hint="choose another folder with --draw",
            )

    def draw(self, answer: Answer) -> None:
        """Have the row's picture drawn soon. To be called for every row, in their order."""
        item = self._items.take(answer.index)
        name = self._names.claim(item.id, item.index)  # of error rows too: they may be mended
        while self._pending and (self._pending[0][1].done() or len(self._pending) >= WAITING):
            self._settle(*self._pending.popleft())
        self._rows += 1
        # one without boxes is drawn bare, so that the folder shows all that was looked for
        if answer.error is None and (answer.boxes or answer.task in BOX_TASKS):
            drawn = self._pool.submit(self._drawn, item, answer, name, token=str(self._rows))
            self._pending.append((answer, drawn))
            self._drawings += 1

    def skip(self, item: Item) -> None:
        """Leave out a row that was drawn before; its name stays its own. In the rows' order."""
        self._items.take(item.index)
        self._names.claim(item.id, item.index)

    def told(self) -> str:
        """What was drawn, and where."""
        count = self._drawings - self._missed_count
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
                self._settle(*self._pending.popleft())
        except OutputFailed:
            if problem is None:
                raise  # else what ended the run is what counts
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._items.clear()
            self._report()

    def _drawn(
        self, item: Item, answer: Answer, name: FileName, *, token: str
    ) -> SavedFormat | None:
        """Draw the picture; None if it is no longer what it was when it was answered."""
        try:
            data = stored(item, self._limits, self._url_reader)
            picture = load_image(data, self._limits)
            original = format_of(identify_image(data))
        except ImageError:
            return None
        if picture.size != (answer.width, answer.height):
            return None
        file_name = name.ended(SUFFIXES[original.written_as][0])
        overlay = draw_overlay(picture, answer.boxes, answer.masks, colours=self._colours)
        try:
            file = save_image(overlay, original)
        except (OSError, ValueError) as problem:
            raise draw_error(f"{self._folder}/{file_name}", str(problem)) from problem
        write_below(self._folder, file_name, file, token=token)
        return original

    def _settle(self, answer: Answer, drawn: Future[SavedFormat | None]) -> None:
        original = drawn.result()
        if original is None:
            self._missed_count += 1
            self._missed += [answer.id] if len(self._missed) < NAMED else []
        elif original.written_as != original.format and original.format not in self._replaced:
            self._replaced.add(original.format)
            self._tell(
                f"{answer.id} is {original.format}, which the installed Pillow does not write: "
                f"such pictures are drawn as {original.written_as}"
            )

    def _report(self) -> None:
        if self._missed:
            more = self._missed_count - len(self._missed)
            named = ", ".join(self._missed) + (f" and {more} more" if more else "")
            self._tell(f"not drawn, as they changed or went since they were answered: {named}")
