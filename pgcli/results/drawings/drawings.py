"""--draw: copies of images with the boxes and masks of their rows."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pgcli.box_filter import box_of
from pgcli.errors import OutputFailed, UsageError
from pgcli.images import ImageError, ImageLimits, load_image
from pgcli.images.decode import silence_decoders
from pgcli.images.files import checked_bytes, item_bytes
from pgcli.images.formats import identify_image
from pgcli.inputs.paths import parse_path, resolves_inside, url_scheme
from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.printable import printable
from pgcli.records import BOX_TASKS, Answer, Item, Mask, Rle
from pgcli.results.drawings.colours import LabelColours
from pgcli.results.drawings.formats import SUFFIXES, format_of, save_image, writable_suffixes
from pgcli.results.drawings.overlay import draw_overlay
from pgcli.results.file_names import FileName, FileNames
from pgcli.results.publish import draw_error, write_below
from pgcli.results.row_hook import NullHook
from pgcli.rle import spans
from pgcli.rows import RowSchema, fill_columns
from pgcli.stores import Reader, RemoteError
from pgcli.stores.writing import check_target

THREADS = 2  # each holds one or two images in full size
MAX_PENDING = 8  # images that wait for a thread; beyond that the run waits
LARGE_BYTES = 16 * 2**20  # the run waits for an image of more bytes that is not a file
MAX_NAMED = 5  # images that the summary names


class Drawings(NullHook):
    """Draws an image for each row into a folder, named by the row's id.

    Error rows are not drawn, nor are rows of other tasks without boxes, nor those of an earlier run
    whose drawing is there. An image that cannot be written raises OutputFailed at one of the next
    rows, or at the end.
    """

    def __init__(
        self,
        folder: str,
        *,
        labels: Iterable[str] = (),
        limits: ImageLimits | None = None,
        reader: Reader | None = None,
    ):
        self._folder, self._root = folder, os.path.realpath(folder)
        self._limits, self._reader = limits or ImageLimits(), reader
        self._colours = LabelColours(labels)
        self._names = FileNames(writable_suffixes())
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="draw")
        self._pending: deque[tuple[str, Future[bool]]] = deque()
        self._changed: list[str] = []
        self._begun = self._drawn = self._kept = self._changed_count = 0

    def skips(self, item: Item) -> bool:
        """Never. Raises UsageError for an image in the folder."""
        self._check_outside(item)
        return False

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Draw the row's image soon. Raises UsageError for one in the folder, OutputFailed."""
        self._check_outside(item)
        name = self._names.claim(item.id, item.index)  # also of an error row: it may be retried
        # an image in which detect or segment found nothing is copied without boxes
        if answer.error is not None or not (answer.boxes or answer.task in BOX_TASKS):
            return
        if is_saved and self._exists(name):
            self._kept += 1
            return
        if not self._begun:
            self._begin()
        self._begun += 1
        drawing = self._pool.submit(self._draw, item, answer, name, token=str(self._begun))
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
            more = self._changed_count - len(self._changed)
            names = printable(", ".join(self._changed)) + (f" and {more:,} more" if more else "")
            notes.append(
                f"not drawn, as they changed or vanished since they were answered: {names}"
            )
        return [("drawn", "; ".join(notes) or "nothing, as no answer has boxes")]

    def _check_outside(self, item: Item) -> None:
        """Raise UsageError for an image in the folder: a drawing might replace it."""
        if item.path is not None and resolves_inside(item.path, self._root):
            raise _is_input(item.id, self._folder)

    def _exists(self, name: FileName) -> bool:
        endings = [name.ending] if name.ending else [endings[0] for endings in SUFFIXES.values()]
        paths = (os.path.join(self._folder, name.stem + ending) for ending in endings)  # noqa: PTH118
        return any(map(os.path.lexists, paths))

    def _begin(self) -> None:
        silence_decoders()
        try:
            Path(self._folder).mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise draw_error(self._folder, problem.strerror or str(problem)) from problem

    def _draw(self, item: Item, answer: Answer, name: FileName, *, token: str) -> bool:
        """Draw and write the image; False if it changed since it was answered."""
        try:
            data = read_original(item, self._limits, self._reader)
            image = load_image(data, self._limits)
            original = format_of(identify_image(data))
        except ImageError:
            return False
        if image.size != (answer.width, answer.height):
            return False
        file_name = name.with_ending(SUFFIXES[original.written_as][0])
        overlay = draw_overlay(image, answer.boxes, answer.masks, colours=self._colours)
        try:
            file = save_image(overlay, original)
        except (OSError, ValueError) as problem:
            raise draw_error(f"{self._folder}/{file_name}", str(problem)) from problem
        write_below(self._folder, file_name, file, token=token)
        return True

    def _take(self) -> None:
        """Count the oldest drawing, which is done or waited for."""
        id_, drawing = self._pending.popleft()
        if drawing.result():
            self._drawn += 1
            return
        self._changed_count += 1
        self._changed += [id_] if len(self._changed) < MAX_NAMED else []


def check_draw(
    folder: str, sources: Sequence[str] = (), *, overwrite: bool = False, resumes: bool = False
) -> None:
    """Raise UsageError, OutputExists or OutputFailed for a folder that cannot be drawn into.

    It may be a link to a folder. A resumed run draws into the folder that it filled before. Images
    in the folder that only the content of a source names are refused when they are reached.
    """
    if not folder:
        raise UsageError("there is no folder ''", hint="name a folder with --draw")
    for source in sources:
        if source == "-" or url_scheme(source):
            continue
        path = os.path.realpath(parse_path(source))
        is_folder = Path(path).is_dir()
        if is_folder and resolves_inside(folder, path):
            raise UsageError(
                f"{folder} is inside {source}, which is read, and the drawings would be read too",
                hint="choose a folder outside it with --draw",
            )
        is_image = is_folder or Path(path).suffix.lower() in IMAGE_ENDINGS
        if is_image and resolves_inside(path, os.path.realpath(folder)):
            raise _is_input(source, folder)
    target = Path(folder)
    target = target.resolve() if target.is_symlink() and target.is_dir() else target
    check_target(target, "--draw", is_folder=True, overwrite=overwrite or resumes)


def read_original(item: Item, limits: ImageLimits, reader: Reader | None) -> bytes:
    """The bytes of an item's image, read again from where they are. Raises ImageError."""
    if item.fault is not None:
        raise ImageError(item.fault)
    is_here = item.data is not None or item.path is None or url_scheme(item.path) is None
    if reader is not None and not is_here:
        try:
            return checked_bytes(reader.read(item.path or ""), limits)
        except RemoteError as problem:
            raise ImageError(problem.fault) from problem
    return item_bytes(item, limits)


def drawable_answer(row: Mapping[str, Any], output: str) -> Answer:
    """The answer of a saved row, also of another program, with what of it can be drawn.

    Raises UsageError for a row that is none.
    """
    try:
        boxes = [box_of(value) for value in row["boxes"] or ()]
        masks = [drawable_mask(value, row) for value in row.get("masks") or ()]
        answer = RowSchema.of(row).answer(fill_columns({**row, "boxes": (), "masks": None}))
    except (ValueError, TypeError, KeyError) as problem:
        raise UsageError(
            f"{output}: row {row['id']!r} cannot be drawn: {problem}",
            hint="name a file or folder that detect or segment wrote",
        ) from problem
    pairs = [(box, mask) for box, mask in zip_longest(boxes, masks[: len(boxes)]) if box]
    drawn, outlines = ([*side] for side in zip(*pairs, strict=True)) if pairs else ([], [])
    return replace(answer, boxes=tuple(drawn), masks=tuple(outlines) if any(outlines) else None)


def drawable_mask(value: Any, row: Mapping[str, Any]) -> Mask | None:
    """The mask; None if its size is not the image's: a short text encodes any size."""
    try:
        rle = Rle((value["rle"]["size"][0], value["rle"]["size"][1]), value["rle"]["counts"])
        if rle.size == (row["height"], row["width"]):
            spans(rle)
            return Mask((), rle)
    except (ValueError, AttributeError, TypeError, KeyError, IndexError):
        pass
    return None


def _is_input(image: str, folder: str) -> UsageError:
    return UsageError(
        f"{image} is an input and is in {folder}, where a drawing might replace it",
        hint="choose another folder with --draw",
    )
