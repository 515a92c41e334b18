"""--draw: copies of images with the boxes and masks of their rows."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pgcli.errors import OutputFailed, UsageError
from pgcli.images import ImageError, ImageLimits, load_image
from pgcli.images.decode import silence_decoders
from pgcli.images.files import read_original
from pgcli.images.formats import identify_image
from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.output.reader import Row
from pgcli.records import BOX_TASKS, Answer, Item
from pgcli.results import answer_of
from pgcli.results.exports.rows import find_row_error, with_answer_columns
from pgcli.results.file_names import FileName, FileNames
from pgcli.results.image_locator import ImageLocator, saved_record
from pgcli.results.overlay import DRAWN, LabelColours, draw_overlay, drawing_file
from pgcli.results.row_hook import RowHook, draw_error, write_below
from pgcli.stores import Reader
from pgcli.stores.files import parse_path, resolves_inside
from pgcli.stores.urls import url_scheme
from pgcli.stores.writing import Target
from pgcli.text import MAX_NAMES, listed, printable

THREADS = 2  # each holds one or two images in full size
MAX_PENDING = 8  # images that wait for a thread; beyond that the run waits
LARGE_BYTES = 16 * 2**20  # the run waits for an image of more bytes that is not a file


class Drawings(RowHook):
    """Draws an image for each row into a folder, named by the row's id, in JPEG or PNG.

    Failed rows, rows of other tasks without boxes, and saved rows with an existing drawing are
    skipped. A failure to write raises OutputFailed at one of the next rows, or at the end.
    """

    def __init__(
        self,
        folder: str,
        *,
        labels: Iterable[str] = (),
        each: bool = False,
        limits: ImageLimits | None = None,
        reader: Reader | None = None,
    ):
        self._folder, self._target = folder, draw_target(folder)
        self._limits, self._reader = limits or ImageLimits(), reader
        self._colours, self._each = LabelColours(labels), each
        self._names = FileNames(frozenset(DRAWN))
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="draw")
        self._pending: deque[tuple[str, Future[bool]]] = deque()
        self._changed: list[str] = []
        self._begun = self._drawn = self._kept = self._changed_count = 0

    def skips(self, item: Item) -> bool:
        """False. Raises UsageError for an image in the folder."""
        self._check_outside(item)
        return False

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Draw the row's image in a thread. Raises UsageError for an image in the folder."""
        self._check_outside(item)
        label = answer.prompt.removeprefix(f"{answer.task} ") if self._each else ""
        # also for a failed row, which may be retried
        name = self._names.claim(item.id, item.index, label)
        # an image in which detect or segment found nothing is copied without boxes
        if answer.error is not None or not (answer.boxes or answer.task in BOX_TASKS):
            return
        if is_saved and self._exists(name):
            self._kept += 1
            return
        if not self._begun:
            self._begin()
        self._begun += 1
        drawing = self._pool.submit(self._draw, item, answer, name)
        self._pending.append((answer.id, drawing))
        limit = 0 if len(item.data or b"") > LARGE_BYTES else MAX_PENDING - 1
        while self._pending and (len(self._pending) > limit or self._pending[0][1].done()):
            self._take()

    def finish(self, *, complete: bool) -> Sequence[tuple[str, str]]:
        """Wait for the last images. Raises OutputFailed if the run is complete."""
        try:
            while self._pending:
                self._take()
        except OutputFailed:
            if complete:
                raise  # otherwise the error that ended the run is the one to report
        finally:
            self._pool.shutdown(cancel_futures=True)
        notes = [f"{self._drawn:,} in {self._folder}"] if self._drawn else []
        notes += [f"{self._kept:,} drawn before"] if self._kept else []
        if self._changed:
            names = printable(listed(self._changed, total=self._changed_count))
            notes.append(f"changed or removed images, which are not drawn: {names}")
        return [("drawn", "; ".join(notes) or "nothing, because no answer has boxes")]

    def _check_outside(self, item: Item) -> None:
        """Raise UsageError for an image in the folder: a drawing might replace it."""
        if item.path is not None:
            self._target.refuse_inside(item.path)

    def _exists(self, name: FileName) -> bool:
        endings = [name.ending] if name.ending else DRAWN
        paths = (os.path.join(self._folder, name.stem + ending) for ending in endings)  # noqa: PTH118
        return any(map(os.path.lexists, paths))

    def _begin(self) -> None:
        silence_decoders()
        try:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise draw_error(self._folder, problem.strerror or str(problem)) from problem

    def _draw(self, item: Item, answer: Answer, name: FileName) -> bool:
        """Draw and write the image; False if it changed since it was answered."""
        try:
            data = read_original(item, self._limits, self._reader)
            image = load_image(data, self._limits)
            original = identify_image(data)
        except ImageError:
            return False
        if image.size != (answer.width, answer.height):
            return False
        ending = name.ending or (".jpg" if original.format == "JPEG" else ".png")
        file_name = name.stem + ending
        overlay = draw_overlay(image, answer.boxes, answer.masks, colours=self._colours)
        try:
            file = drawing_file(overlay, original, ending)
        except (OSError, ValueError) as problem:
            raise draw_error(f"{self._folder}/{file_name}", str(problem)) from problem
        write_below(self._folder, file_name, file)
        return True

    def _take(self) -> None:
        """Count the oldest drawing, which is done or waited for."""
        id_, drawing = self._pending.popleft()
        if drawing.result():
            self._drawn += 1
            return
        self._changed_count += 1
        self._changed += [id_] if len(self._changed) < MAX_NAMES else []


def draw_target(folder: str, sources: Sequence[str] = (), *, overwrite: bool = False) -> Target:
    """The folder of `--draw`, which may be a link to a folder.

    Drawings refuses images in the folder that a manifest names. Raises UsageError for a folder
    inside a source, which would read the drawings too.
    """
    inputs = []
    for source in sources if folder else ():
        if source == "-" or url_scheme(source):
            continue
        path = os.path.realpath(parse_path(source))
        is_folder = Path(path).is_dir()
        if is_folder and resolves_inside(folder, path):
            raise UsageError(
                f"{folder} is inside {source}, which is read: drawings would be read too",
                hint="choose a folder outside it with <--draw=>",
            )
        if is_folder or Path(path).suffix.lower() in IMAGE_ENDINGS:
            inputs.append(source)
    return Target(name=folder, kind="folder", option="--draw", overwrite=overwrite, inputs=inputs)


def draw_rows(
    rows: Iterable[Row],
    output: Path,
    folder: str,
    locator: ImageLocator,
    labels: Iterable[str] = (),
) -> Sequence[tuple[str, str]]:
    """Draw the saved rows of an output as a run does; return the names and texts for the summary.

    Raises UsageError for an invalid row, and OutputFailed.
    """
    record = saved_record(output)
    each = record is not None and bool(record.settings.get("each"))
    drawings = Drawings(folder, labels=labels, each=each, reader=locator.url_reader)
    complete = False
    try:
        for row, item in locator.with_items(rows, output):
            drawings.on_row(drawable_answer(row), item, is_saved=False)
        complete = True
    finally:
        facts = drawings.finish(complete=complete)
    return facts


def drawable_answer(row: Row) -> Answer:
    """The answer of a saved row of any program. Raises UsageError for an invalid row."""
    row = with_answer_columns(row)
    row = {**row, "boxes": row["boxes"] or []}
    if row["error"] is None and (problem := find_row_error(row)):
        raise UsageError(
            f"the row of {row['id']!r} cannot be drawn: {problem}",
            hint="name a file or folder that detect or segment wrote",
        )
    return answer_of(row)
