"""What a run writes for each row as it is saved: texts beside images, and drawings."""

from __future__ import annotations

import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path, PurePath, PurePosixPath

from pgcli import registry
from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.images import ImageError, ImageLimits, load_image
from pgcli.images.decode import silence_decoders
from pgcli.images.files import read_original
from pgcli.images.formats import identify_image
from pgcli.inputs.options import IMAGE_ENDINGS
from pgcli.output.reader import Row
from pgcli.records import BOX_TASKS, Answer, Item
from pgcli.results import answer_of
from pgcli.results.exports.rows import (
    LONGEST_NAME,
    FileName,
    FileNames,
    find_row_error,
    name_key,
    with_answer_columns,
)
from pgcli.results.image_locator import ImageLocator, saved_record
from pgcli.results.overlay import DRAWN, LabelColours, draw_overlay, drawing_file
from pgcli.run.options import OutputOptions
from pgcli.stores import LocalStore, Reader
from pgcli.stores.files import parse_path, resolves_inside
from pgcli.stores.urls import url_scheme
from pgcli.stores.writing import Target
from pgcli.tasks import AnyQuestion
from pgcli.text import MAX_NAMES, count, encodable, listed, printable, with_notes


class RowHook:
    """Writes something for each saved row; this one writes nothing."""

    def skips(self, item: Item) -> bool:
        """Whether to skip the image; called in input order, before its rows."""
        return False

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Called for each row in input order; `is_saved` if an earlier run has saved it."""

    def finish(self, *, complete: bool) -> Sequence[tuple[str, str]]:
        """Names and texts for the summary. Called once, also after a failure (not `complete`)."""
        return ()


DRAW_HINT = "free disk space, check the folder's permissions, or choose another with --draw"


def write_below(
    folder: str,
    name: str,
    data: bytes,
    *,
    hint: str = DRAW_HINT,
    replace: bool = True,
) -> bool:
    """Write `folder/name`, replacing an existing file; `name` is a relative path with slashes.

    Returns False without `replace` if the file exists. Missing folders are created. A link is
    replaced, not followed, except for `folder` itself. A killed process leaves at most a hidden
    file. Raises OutputFailed with the `hint`.
    """
    try:
        store = LocalStore(Path(folder), follow=True)
        return store.publish(name, lambda file: file.write(data), replace=replace, durable=False)
    except FileNotFoundError as problem:
        raise draw_error(f"{folder}/{name}", "the folder does not exist", hint) from problem
    except (OutputFailed, OutputExists) as problem:
        raise OutputFailed(str(problem), hint=hint) from problem


def draw_error(path: str, reason: str, hint: str = DRAW_HINT) -> OutputFailed:
    """The error for an image that could not be written."""
    return OutputFailed(f"cannot write {path}: {reason}", hint=hint)


HINT = "free disk space, or check the folder's permissions; the same command writes the rest"


class Sidecars(RowHook):
    """Writes `photo.txt` next to `photo.jpg`, or `photo.jpg.txt` if another image has that name.

    An existing text is kept, or replaced with `overwrite`. Saved rows of an
    earlier run get a text too; failed rows and images that are not files get none. With
    `is_only_output`, images with a kept text are skipped. Exports use `claim` and `write`.
    """

    def __init__(
        self,
        ending: str,
        prepend: str = "",
        append: str = "",
        *,
        overwrite: bool = False,
        is_only_output: bool = False,
    ):
        self._ending, self._prepend, self._append = ending, prepend, append
        self._overwrite, self._is_only_output = overwrite, is_only_output
        self._taken: set[bytes] = set()  # takes less memory than millions of names
        self._claimed: dict[int, str | None] = {}
        self._renamed_example = ""
        #: Texts that are `written`, or exist and are `kept`; images that are `unnamed`, `renamed`
        #: because another has their name, or `skipped`.
        self.counts: Counter[str] = Counter()

    def skips(self, item: Item) -> bool:
        """Whether the item's text is kept with any answer. Claims the name of the text."""
        if item.path is None or not is_file(item):
            return False
        name = self.claim(item.path)
        if name is not None and self._is_only_output and self._is_kept(name):
            self.counts.update(("kept", "skipped"))
            return True
        self._claimed[item.index] = name
        return False

    def on_row(self, answer: Answer, item: Item, *, is_saved: bool) -> None:
        """Write the row's answer. Raises OutputFailed."""
        if item.path is None or not is_file(item):
            return
        is_claimed = item.index in self._claimed
        name = self._claimed.pop(item.index) if is_claimed else self.claim(item.path)
        if answer.error is not None:
            return  # its name stays claimed, as the row may be retried
        if name is None:
            self.counts["unnamed"] += 1
            return
        if name != self.own_name(item.path):
            self.counts["renamed"] += 1
            self._renamed_example = self._renamed_example or Path(name).name
        self.write(name, answer.answer)

    def finish(self, *, complete: bool) -> Sequence[tuple[str, str]]:
        notes = [
            (self.counts["kept"], "files kept unchanged"),
            (self.counts["skipped"], "images skipped"),
            (self.counts["renamed"], f"files named as {self._renamed_example}: the name is taken"),
            (self.counts["unnamed"], "files not written: the name is too long or taken"),
        ]
        written = f"{count(self.counts['written'], 'file')} ending in {self._ending}"
        return [("sidecars", with_notes(written, notes))]

    def own_name(self, image: str) -> str:
        """The name of an image's text, unless another text has the name."""
        return str(PurePosixPath(image).with_suffix(self._ending))

    def claim(self, image: str) -> str | None:
        """A free name for an image's text, or None if both names are taken or too long.

        Names differ also on file systems that ignore case. If `a.jpg` has `a.txt`, `a.png` gets
        `a.png.txt`.
        """
        for name in (self.own_name(image), image + self._ending):
            key = name_key(name)
            if key not in self._taken and len(os.fsencode(Path(name).name)) <= LONGEST_NAME:
                self._taken.add(key)
                return name
        return None

    def write(self, name: str, answer: str | None, *, below: str | None = None) -> None:
        """Write an answer to the file as one line, atomically, or keep an existing text.

        Missing folders `below` that one are created. Raises OutputFailed.
        """
        is_written = False
        if not self._is_kept(name):
            # many trainers read only the first line
            line = " ".join(filter(None, map(str.strip, (answer or "").splitlines())))
            text = "".join(map(encodable, (self._prepend, line, self._append, "\n")))
            folder = below or os.path.dirname(name) or "."  # noqa: PTH120 - Path drops a leading ./
            leaf = os.path.relpath(name, below) if below else Path(name).name
            is_written = write_below(
                folder,
                leaf,
                text.encode(),
                hint=HINT,
                replace=self._overwrite,
            )
        self.counts["written" if is_written else "kept"] += 1

    def _is_kept(self, name: str) -> bool:
        return not self._overwrite and os.path.lexists(name)


def is_file(item: Item) -> bool:
    """Whether the item's image is a local file of its own."""
    path = item.path
    if path is None or item.data is not None or item.span is not None:
        return False
    return url_scheme(path) is None and bool(PurePath(path).name)  # `.` and `/` are not images


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


ENDING = re.compile(r"\.[A-Za-z0-9_-]{1,16}")


def check_hooks(
    options: OutputOptions, sources: Sequence[str] = (), *, resumes: bool = False
) -> None:
    """Raise for what hooks cannot write, before the input is opened.

    A resumed run may draw into its own folder. Raises UsageError, OutputExists and OutputFailed.
    """
    ending, not_texts = options.sidecar, IMAGE_ENDINGS.union(registry.names("manifests"))
    if ending is not None and (not ENDING.fullmatch(ending) or ending.lower() in not_texts):
        raise UsageError(
            f"<--sidecar=> must be the extension of a text file, not {ending}",
            hint="for example <--sidecar .txt>",
        )
    if options.draw is not None:
        draw_target(options.draw, sources, overwrite=options.overwrite or resumes).check()


def make_hooks(
    options: OutputOptions,
    question: AnyQuestion,
    *,
    limits: ImageLimits | None = None,
    reader: Reader | None = None,
) -> list[RowHook]:
    """The hooks of a run. Nothing is created before the first row.

    `reader` fetches images at URLs once more.
    """
    hooks: list[RowHook] = []
    if options.sidecar is not None:
        has_rows = options.output != "-" or options.format == "jsonl"
        hooks.append(
            Sidecars(
                options.sidecar,
                overwrite=options.overwrite,
                is_only_output=not (has_rows or options.draw),
            )
        )
    if options.draw is not None:
        drawings = Drawings(
            options.draw,
            labels=question.objects,
            each=question.each,
            limits=limits,
            reader=reader,
        )
        hooks.append(drawings)
    return hooks
