"""Reads training rows: the images of sources and their targets."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pgcli.errors import NoInputError, PgcliError, UsageError
from pgcli.foreign_text import decode_text
from pgcli.images import ImageHeader, Size
from pgcli.images.errors import ImageError
from pgcli.images.formats import whole_header
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.listing import locate_source
from pgcli.inputs.paths import display_name
from pgcli.inputs.readers import UNDERSCORE, error_text
from pgcli.labels.columns import (
    Example,
    ExampleColumns,
    ExampleReader,
    are_stored,
    is_text,
    is_within,
    label_of_folder,
    note_of_choices,
    stated_size,
    turned_corners,
)
from pgcli.parsing import detection_text, has_locations
from pgcli.pipeline.progress.events import Message, OnEvent, ignore
from pgcli.pipeline.request.error_budget import ErrorBudget
from pgcli.records import Box, Fault, Item
from pgcli.regions import location_values, with_locations
from pgcli.stores.files import NotRegularFileError, open_regular
from pgcli.stores.urls import url_scheme
from pgcli.tasks.question import ask, normalize
from pgcli.tasks.templates import render, template_columns
from pgcli.training.rows import RowErrors, TargetText, TrainingRows
from pgcli.training.source_items import ERROR_COLUMNS, is_error_row, source_items

#: Endings of text files with the answer, beside an image of the same name.
SIDECARS = (".txt", ".caption")
MAX_SIDECAR_BYTES = 2**20


class UnusableRow(Exception):
    """An unusable row, with the reason."""


@dataclass(frozen=True)
class RowReader:
    """Reads the rows of sources: prompts and answers, or only a `label` column.

    `columns` names the columns to read. `prompt` is the prompt of rows without one, with column
    names in braces. With `has_folders`, folder names may be labels. `keeps_truth` keeps the whole
    ground truth for evaluations.
    """

    columns: ExampleColumns = field(default_factory=ExampleColumns)
    prompt: str | None = None
    label: str | None = None
    has_folders: bool = False
    on_event: OnEvent = ignore
    keeps_truth: bool = True

    @property
    def missing(self) -> str:
        """The missing part of a row without a target, for messages."""
        if self.label is not None:
            return repr(self.label)
        return f"a prompt and {repr(self.columns.answer) if self.columns.answer else 'an answer'}"

    @property
    def hint(self) -> str:
        """The hint for sources without any target."""
        if self.label is not None:
            return "correct the manifest, or name another column"
        return (
            '<--prompt "caption en"> sets the prompt of all rows; <--prompt-column=> and '
            "<--answer-column=> name the columns"
        )

    def read(
        self,
        sources: Sequence[str],
        options: ReadOptions,
        rows: TrainingRows,
        *,
        track: Callable[[Iterable[Item]], Iterable[Item]] = iter,
        errors: RowErrors | None = None,
    ) -> TrainingRows:
        """Add the rows of the sources to `rows`; `errors` counts unusable rows.

        Raises UsageError for images without columns, NoInputError if there is no usable row, and
        TooManyErrors.
        """
        errors = errors or RowErrors(ErrorBudget(max_share=1.0))
        for name in sources:
            self._read_source(name, options, rows, track, errors)
        errors.budget.check_share(errors.tally)
        if not rows:
            raise self._no_rows(sources, rows)
        return rows

    def _read_source(
        self,
        name: str,
        options: ReadOptions,
        rows: TrainingRows,
        track: Callable[[Iterable[Item]], Iterable[Item]],
        errors: RowErrors,
    ) -> None:
        """Add the rows of a source, with notes about it."""
        items, target_of, reader = self._open(name, options)
        for item in track(items):
            if is_error_row(item):
                rows.skipped["with_error"] += 1
                continue
            if (target := self._attempt(item, target_of, rows, errors)) is not None:
                rows.add(item, target)
        if text := note_of_choices(reader.choices):
            hint = "<--answer-column=> and <--prompt-column=> name the columns that are read"
            self.on_event(Message(f"{display_name(name)}: {text}", hint=hint))
        if isinstance(items, Inventory):
            rows.columns |= dict.fromkeys(items.columns)
        if isinstance(items, Inventory) and (items.has_columns or UNDERSCORE in items.ignored):
            for verb, what in items.notes:
                self.on_event(Message(f"{display_name(name)}: {verb} {what}"))

    def _no_rows(self, sources: Sequence[str], rows: TrainingRows) -> PgcliError:
        """The error for sources without a usable row."""
        names = ", ".join(sources)
        if rows.faults and not rows.skipped["without_target"]:
            return NoInputError(
                f"no row of {names} is usable (first: {rows.faults[0]})",
                hint="correct the rows or their images",
            )
        return NoInputError(
            f"no row of {names} has an image with {self.missing}"
            + (f"; {rows.faults[0]}" if rows.faults else ""),
            hint=self.hint + (f" (columns: {', '.join(rows.columns)})" if rows.columns else ""),
        )

    def _attempt(
        self,
        item: Item,
        target_of: Callable[[Item], TargetText | None],
        rows: TrainingRows,
        errors: RowErrors,
    ) -> TargetText | None:
        """The target of an item; None for a row without one or with a fault, which is counted."""
        fault, target = item.fault, None
        try:
            target = None if fault else target_of(item)
        except (UnusableRow, ImageError) as problem:
            fault = Fault("invalid_row", str(problem))
        errors.add((item.id, item.image, str(item.index)), item, fault)
        if fault is not None:
            rows.faults.append(f"{item.id}: {fault.message}")
        elif target is None:
            rows.skipped["without_target"] += 1
        return target

    def _open(
        self, name: str, options: ReadOptions
    ) -> tuple[Iterable[Item], Callable[[Item], TargetText | None], ExampleReader]:
        """The items of a source, the function that returns their targets, and the row reader.

        Raises UsageError.
        """
        if self.has_folders:
            source = Inventory.scan([name], replace(options, repeats_ids=True))
            if not source.has_columns:
                folder_of = partial(self._folder_of, name, is_folder=source.is_folder)
                return source, folder_of, ExampleReader()
        columns = self.columns
        known: tuple[str, ...] = ERROR_COLUMNS
        required = [*columns.named]
        if self.label is not None:
            required = [self.label]
            columns = ExampleColumns(prompt="", answer=self.label)
        else:
            if self.prompt is not None:
                required += template_columns(ask([self.prompt]))
            known = (*columns.known, "width", "height", *ERROR_COLUMNS)
        optional = [name for name in known if name not in required]
        read = replace(
            options,
            fields=tuple(required),
            optional_fields=tuple(optional),
            repeats_ids=True,
            allows_nulls=True,
        )
        reader = ExampleReader.of(locate_source(name, options), columns)
        items = source_items(name, read, self.prompt, self.on_event)
        return items, partial(self._target_of, reader), reader

    def _folder_of(self, source: str, item: Item, *, is_folder: bool) -> TargetText:
        """The label of an image: its folder directly below the source. Raises UsageError."""
        hint = f"or name a manifest with a column {self.label!r}"
        if not is_folder:
            raise UsageError(
                f"{display_name(source)} is not a folder with a subfolder for each label",
                hint=f"name such a folder, {hint}",
            )
        return TargetText(label_of_folder(source, item.id, f", {hint}"))

    def _target_of(self, reader: ExampleReader, item: Item) -> TargetText | None:
        """The prompt and answer, or the label, or None. Raises UnusableRow and UsageError."""
        fields = reader.fields(item.fields)
        try:
            example = reader.read(fields, item.id)
        except UsageError as problem:
            raise UnusableRow(str(problem)) from problem
        if self.label is not None:
            answers = example.answers if is_text(fields.get(self.label)) else ()
            text = answers[0].strip() if answers else ""
            return TargetText(text) if text else None
        prompt = self._prompt(item, example)
        if self.columns.answer is None and example.boxes is not None:
            if needs_header(example, fields):
                example = upright_example(example, fields, image_header(item, fields))
            elif not has_answers(example):
                example = replace(example, answers=("",))
        answers = self._answers(item, example, fields)
        if prompt is None or not answers:
            return None
        truth = None
        if self.keeps_truth:
            truth = replace(example, prompt=None, answers=example.answers or answers, masks=None)
        return TargetText(Counter(answers).most_common(1)[0][0], prompt, truth)

    def _prompt(self, item: Item, example: Example) -> str | None:
        """The prompt for the model, or None. Raises UsageError if it conflicts with `--prompt`."""
        text = (example.prompt or "").strip()
        if text and self.prompt is not None:
            raise UsageError(
                f"<--prompt=> conflicts with the prompt of {item.id}",
                hint="remove <--prompt=>, or the column with prompts",
            )
        if self.prompt is not None:
            text = render(self.prompt, item)
        if not text:
            return None
        prompt = normalize(text)
        if item.region is None:
            return prompt
        width, height = image_header(item, item.fields).size
        values = location_values(item.region, width, height)
        if values is None:
            raise UnusableRow("The region is outside of its image.")
        return with_locations(prompt, values)

    def _answers(self, item: Item, example: Example, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """The true answers; may be empty if there are boxes, which become the answer."""
        answers = tuple(text.strip() for text in example.answers)
        if any(answers) or (self.columns.answer is None and example.boxes is not None):
            return answers
        has_columns = any(name in fields for name in (*self.columns.known, *self.columns.named))
        return answers or (() if has_columns else sidecar_text(item))


def sidecar_text(item: Item) -> tuple[str, ...]:
    """The text of the file beside a local image; empty without such a file or text.

    `a.png.txt` comes before `a.txt`, which may be about `a.jpg`. Raises UnusableRow for an
    unreadable or invalid file.
    """
    if item.path is None or url_scheme(item.path):
        return ()
    stem = os.path.splitext(item.path)[0]  # noqa: PTH122 - Path would drop a leading ./
    for path in (base + ending for base in (item.path, stem) for ending in SIDECARS):
        name = display_name(path)
        try:
            with open_regular(path, item.root) as file:
                data = file.read(MAX_SIDECAR_BYTES + 1)
            text = decode_text(data).strip()
        except (FileNotFoundError, NotRegularFileError):
            continue
        except OSError as problem:
            raise UnusableRow(f"{name} cannot be read: {error_text(problem)}.") from problem
        except UnicodeDecodeError as problem:
            raise UnusableRow(f"{name} is not UTF-8.") from problem
        if "\0" in text:
            raise UnusableRow(f"{name} contains a NUL byte: save it as UTF-8.")
        if len(data) > MAX_SIDECAR_BYTES:
            raise UnusableRow(f"{name} is longer than {MAX_SIDECAR_BYTES >> 20} MiB.")
        if text:
            return (text,)
    return ()


def needs_header(example: Example, fields: Mapping[str, Any]) -> bool:
    """Whether the answer of an example depends on the size or the orientation of its image."""
    has_locations_too = any(map(has_locations, example.answers)) and stated_size(fields) is not None
    return bool(example.boxes) and (has_locations_too or not has_answers(example))


def has_answers(example: Example) -> bool:
    """Whether a row has an answer with text."""
    return any(map(str.strip, example.answers))


def upright_example(example: Example, fields: Mapping[str, Any], header: ImageHeader) -> Example:
    """The example with its boxes upright, also in its answers; without an answer, boxes become it.

    Raises UnusableRow for boxes outside of the image.
    """
    boxes, answers = example.boxes or (), example.answers
    masks = fields.get("masks")
    codes = [mask and mask.get("codes") for mask in (masks if isinstance(masks, list) else ())]
    if are_stored("", stated_size(fields), header):
        boxes = tuple(box.moved(turned_corners(box.corners, header)) for box in boxes)
        if any(codes):
            raise UnusableRow("Its mask codes refer to the image before its EXIF rotation.")
        text = boxes_answer(boxes, codes, header.size)
        answers = tuple(text if has_locations(answer) else answer for answer in answers)
    if not has_answers(example):
        answers = (boxes_answer(boxes, codes, header.size),)
    return replace(example, boxes=boxes, answers=answers)


def boxes_answer(boxes: Sequence[Box], codes: Sequence[Any], size: tuple[int, int]) -> str:
    """The answer with these boxes. Raises UnusableRow for a box outside of its image."""
    width, height = size
    for box in boxes:
        corners = f"{box.xmin:g}, {box.ymin:g}, {box.xmax:g}, {box.ymax:g}"
        if box.xmin >= box.xmax or box.ymin >= box.ymax:
            raise UnusableRow(f"The box {box.label!r} has no area: {corners}.")
        if not is_within(box.corners, size):
            raise UnusableRow(
                f"The box {box.label!r} is outside of its image of {width} x {height}: {corners}."
            )
    return detection_text(boxes, codes, width=width, height=height)


def image_header(item: Item, fields: Mapping[str, Any]) -> ImageHeader:
    """The header of an item's image, whose size must match the row's, upright or stored.

    For an image at a URL it has the row's size. Raises ImageError and UnusableRow.
    """
    stated = stated_size(fields)
    if item.data is None and item.path is not None and url_scheme(item.path):
        if stated is None:
            raise UnusableRow("It has boxes in pixels, but no width and height of its image.")
        return ImageHeader("", Size(*stated))
    header = whole_header(item)
    try:
        are_stored("", stated, header)
    except UsageError as problem:
        raise UnusableRow(f"{problem}.") from problem
    return header
