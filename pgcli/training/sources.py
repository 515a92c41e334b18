"""Reads training rows: the images of sources and their targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.boxes import location_values, with_locations
from pgcli.errors import ManifestError, NoInputError, PgcliError, UsageError
from pgcli.images import ImageHeader, Size
from pgcli.images.files import ImageError
from pgcli.images.formats import whole_header
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.lines import MAX_LINE_BYTES
from pgcli.inputs.listing import locate_source
from pgcli.inputs.options import UNDERSCORE, InputFile
from pgcli.inputs.paths import display_name
from pgcli.labels.columns import (
    LabelColumns,
    LabelReader,
    is_text,
    label_of_folder,
)
from pgcli.labels.labelled_image import LabelledImage, LabelSettings, check_ids, objects_of, skipped
from pgcli.labels.sources import format_of, read_upright, text_beside
from pgcli.labels.upright import is_stored, upright
from pgcli.output.lines import parse_row
from pgcli.output.reader import REQUIRED_COLUMNS, read_results
from pgcli.parsing import detection_text, has_locations
from pgcli.records import COLUMNS, Box, Fault, Item
from pgcli.results.image_locator import ImageLocator, ImageRef
from pgcli.run.events import Message, OnEvent, ignore
from pgcli.run.options import ErrorBudget
from pgcli.run.progress import check_error_share
from pgcli.stores.files import open_regular, parse_path
from pgcli.stores.urls import url_scheme
from pgcli.tasks import ask, normalize, render, template_columns
from pgcli.text import listed, note
from pgcli.training.rows import RowErrors, TrainingRows

#: The error columns of result files.
ERROR_COLUMNS = ("error", "error_message")
#: A file with these columns is a result file.
COLUMNS_OF_RESULTS = REQUIRED_COLUMNS.intersection(COLUMNS)
OUTSIDE_PIXELS = 1  # by which a box may exceed its image, since annotation tools round


class UnusableRow(Exception):
    """An unusable row, with the reason."""


@dataclass(frozen=True)
class RowReader:
    """Reads the rows of sources: prompts and answers, or only a `label` column.

    `columns` names the columns to read. `prompt` is the prompt of rows without one, with column
    names in braces. With `has_folders`, folder names may be labels. `keeps_truth` keeps the whole
    ground truth for evaluations.
    """

    columns: LabelColumns = field(default_factory=LabelColumns)
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
        check_error_share(errors.tally, errors.budget)
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
        items, target_of = self._open(name, options)
        for item in track(items):
            if is_error_row(item):
                rows.skipped["with_error"] += 1
                continue
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
            else:
                rows.add(item, target, keeps_truth=self.keeps_truth and self.label is None)
        if isinstance(items, Inventory):
            rows.columns |= dict.fromkeys(items.columns)
            has_notes = items.has_columns or UNDERSCORE in items.ignored
            for verb, what in items.notes if has_notes else ():
                self.on_event(Message(f"{display_name(name)}: {verb} {what}"))

    def _no_rows(self, sources: Sequence[str], rows: TrainingRows) -> PgcliError:
        """The error for sources without a usable row."""
        names, first = ", ".join(sources), rows.faults[0] if rows.faults else ""
        if first and not rows.skipped["without_target"]:
            message = f"no row of {names} is usable (first: {first})"
            return NoInputError(message, hint="correct the rows or their images")
        hint = "name the column with <--text-column=> or <--label-column=>"
        if self.label is None:
            hint = (
                '<--prompt "caption en"> sets the prompt of all rows; <--prompt-column=> and '
                "<--answer-column=> name the columns"
            )
        columns = f" (columns: {', '.join(rows.columns)})" if rows.columns else ""
        return NoInputError(
            f"no row of {names} has an image with {self.missing}", hint=hint + columns
        )

    def _open(
        self, name: str, options: ReadOptions
    ) -> tuple[Iterable[Item], Callable[[Item], LabelledImage | None]]:
        """The items of a source, and the function that returns their targets. Raises UsageError."""
        if self.has_folders:
            source = Inventory.scan([name], replace(options, repeats_ids=True))
            if not source.has_columns:
                folder_of = partial(self._folder_of, name, is_folder=source.is_folder)
                return source, folder_of
        columns = self.columns
        known: tuple[str, ...] = ERROR_COLUMNS
        required = [*columns.named]
        if self.label is not None:
            required = [self.label]
            columns = LabelColumns(prompt="", answer=self.label)
        else:
            if self.prompt is not None:
                required += template_columns(ask([self.prompt]))
            known = (*columns.known, "width", "height", *ERROR_COLUMNS)
        read = replace(
            options,
            fields=tuple(required),
            optional_fields=tuple(name for name in known if name not in required),
            repeats_ids=True,
            allows_nulls=True,
        )
        if (images := annotated_images(name, read, self.prompt, self.on_event)) is not None:
            items = (
                Item(number, image.id, image.image, image.image, region=image.region)
                for number, image in enumerate(images)
            )
            return items, lambda item: self._target(item, images[item.index])
        reader = LabelReader.of(locate_source(name, options), columns)
        return source_items(name, read, self.on_event), partial(self._row, reader)

    def _folder_of(self, source: str, item: Item, *, is_folder: bool) -> LabelledImage:
        """The label of an image: its folder directly below the source. Raises UsageError."""
        hint = f"or name a manifest with a column {self.label!r}"
        if not is_folder:
            raise UsageError(
                f"{display_name(source)} is not a folder with a subfolder for each label",
                hint=f"name such a folder, {hint}",
            )
        return LabelledImage(answers=(label_of_folder(source, item.id, f", {hint}"),))

    def _row(self, reader: LabelReader, item: Item) -> LabelledImage | None:
        """The prompt and answer of a row, or its label, or None. Raises UnusableRow, UsageError."""
        fields = reader.fields(item.fields)
        try:
            image = reader.read(fields, item.id)
        except UsageError as problem:
            raise UnusableRow(str(problem)) from problem
        if self.label is not None:
            answers = image.answers if is_text(fields.get(self.label)) else ()
            text = answers[0].strip() if answers else ""
            return LabelledImage(answers=(text,)) if text else None
        masks = fields.get("masks")
        codes = [mask and mask.get("codes") for mask in (masks if isinstance(masks, list) else ())]
        return self._target(item, image, codes)

    def _target(
        self, item: Item, image: LabelledImage, codes: Sequence[Any] = ()
    ) -> LabelledImage | None:
        """The prompt and answer of an image, or None. Raises UnusableRow and UsageError."""
        prompt = self._prompt(item, image)
        if self.columns.answer is None and image.objects is not None:
            if needs_header(image):
                image = upright_image(image, codes, image_header(item, image))
            elif not has_answers(image):
                image = replace(image, answers=("",))
        answers = self._answers(item, image)
        if prompt is None or not answers:
            return None
        objects = None if image.boxes is None else objects_of(image.boxes)
        return LabelledImage(prompt=prompt, answers=image.answers or answers, objects=objects)

    def _prompt(self, item: Item, image: LabelledImage) -> str | None:
        """The prompt for the model, or None. Raises UsageError if it conflicts with `--prompt`."""
        text = (image.prompt or "").strip()
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
        width, height = image_header(item, image).size
        values = location_values(item.region, width, height)
        if values is None:
            raise UnusableRow("The region is outside of its image.")
        return with_locations(prompt, values)

    def _answers(self, item: Item, image: LabelledImage) -> tuple[str, ...]:
        """The true answers; may be empty if there are boxes, which become the answer."""
        answers = tuple(text.strip() for text in image.answers)
        if any(answers) or (self.columns.answer is None and image.objects is not None):
            return answers
        has_columns = any(
            name in item.fields for name in (*self.columns.known, *self.columns.named)
        )
        if answers or has_columns:
            return answers
        try:
            return text_beside(item)
        except ValueError as problem:
            raise UnusableRow(str(problem)) from problem


def needs_header(image: LabelledImage) -> bool:
    """Whether the answer about an image depends on its size or its orientation."""
    has_locations_too = any(map(has_locations, image.answers)) and image.size is not None
    return bool(image.objects) and (has_locations_too or not has_answers(image))


def has_answers(image: LabelledImage) -> bool:
    """Whether a row has an answer with text."""
    return any(map(str.strip, image.answers))


def upright_image(image: LabelledImage, codes: Sequence[Any], header: ImageHeader) -> LabelledImage:
    """The image with its boxes upright; without an answer, boxes become it.

    Raises UnusableRow for boxes outside of the image, and for tokens of an image that EXIF rotates.
    """
    turned = upright(replace(image, objects=objects_of(image.boxes or ())), header)
    if image.size not in (None, turned.size) and (any(codes) or has_answers(image)):
        raise UnusableRow("Its tokens refer to the image before its EXIF rotation.")
    if has_answers(image):
        return turned
    return replace(turned, answers=(boxes_answer(turned.boxes or (), codes, header.size),))


def boxes_answer(boxes: Sequence[Box], codes: Sequence[Any], size: tuple[int, int]) -> str:
    """The answer with these boxes. Raises UnusableRow for a box outside of its image."""
    width, height = size
    for box in boxes:
        corners = f"{box.xmin:g}, {box.ymin:g}, {box.xmax:g}, {box.ymax:g}"
        if box.xmin >= box.xmax or box.ymin >= box.ymax:
            raise UnusableRow(f"The box {box.label!r} has no area: {corners}.")
        is_inside = min(box.xmin, box.ymin) >= -OUTSIDE_PIXELS
        if not is_inside or box.xmax > width + OUTSIDE_PIXELS or box.ymax > height + OUTSIDE_PIXELS:
            raise UnusableRow(
                f"The box {box.label!r} is outside of its image of {width} x {height}: {corners}."
            )
    return detection_text(boxes, codes, width=width, height=height)


def image_header(item: Item, image: LabelledImage) -> ImageHeader:
    """The header of an item's image, whose size must be the stated one, upright or stored.

    For an image at a URL it has the stated size. Raises ImageError and UnusableRow.
    """
    if item.data is None and item.path is not None and url_scheme(item.path):
        if image.size is None:
            raise UnusableRow("It has boxes in pixels, but no width and height of its image.")
        return ImageHeader("", Size(*image.size))
    header = whole_header(item)
    try:
        is_stored(image.size, header)
    except UsageError as problem:
        raise UnusableRow(f"{problem}.") from problem
    return header


def source_items(name: str, options: ReadOptions, on_event: OnEvent) -> Iterable[Item]:
    """The items of a manifest, a folder or a result file, with their columns."""
    is_manifest = options.image_column != ReadOptions.image_column
    if name == "-" or url_scheme(name) or is_manifest:
        return Inventory.scan([name], options)
    path = Path(parse_path(name))
    if not is_result_file(path):
        return Inventory.scan([name], options)
    locator = ImageLocator(on_event, url_reader=options.url_reader)
    return result_items(path, options, locator)


def is_error_row(item: Item) -> bool:
    """Whether the item is an error row of a result file."""
    fields = item.fields
    return all(name in fields for name in ERROR_COLUMNS) and fields["error"] is not None


def is_result_file(path: Path) -> bool:
    """Whether the path has the columns of an answering command's output."""
    if path.is_dir():
        return any(map(is_result_file, sorted(path.glob("*.parquet"))[:1]))
    names: Iterable[str] = ()
    if path.is_file() and path.suffix.lower() == ".parquet":
        from pgcli.inputs.parquet import ParquetTable  # slow to import

        try:
            names = ParquetTable(InputFile(str(path), str(path))).schema().names
        except ManifestError:  # opening it as a source reports this
            return False
    elif path.is_file() and path.suffix.lower() in (".jsonl", ".ndjson"):
        with open_regular(path) as file:
            names = parse_row(file.readline(MAX_LINE_BYTES)) or ()
    return set(names) >= COLUMNS_OF_RESULTS


def result_items(output: Path, options: ReadOptions, locator: ImageLocator) -> Iterator[Item]:
    """The rows of a result file as items with the requested columns.

    Raises UsageError for a missing column.
    """
    for number, row in enumerate(read_results(output)):
        if not options.names.accepts(str(row["id"])):
            continue
        for column in options.fields:
            if column not in row:
                hint = f"its columns are: {listed(list(row), len(row))}"
                raise UsageError(f"{output} has no column {column!r}", hint=hint)
        names = (*options.fields, *options.optional_fields)
        fields = {name: row[name] for name in names if name in row}
        item = Item(number, str(row["id"]), str(row["image"]), fields=fields)
        if not is_error_row(item):
            recorded = locator.item(number, ImageRef.of(row, output))
            item = replace(
                item,
                path=recorded.path,
                data=recorded.data,
                fault=recorded.fault,
                root=recorded.root,
            )
        yield item


def annotated_images(
    name: str, options: ReadOptions, prompt: str | None, on_event: OnEvent
) -> list[LabelledImage] | None:
    """The labels in an annotation file or folder, as `pgcli import` asks for them.

    None for another source. A `prompt` for all rows replaces the prompts of annotations.
    """
    if name == "-" or url_scheme(name) or options.image_column != ReadOptions.image_column:
        return None
    path = Path(parse_path(name))
    if (format := format_of(path)) is None:
        return None
    for column in options.fields:
        raise UsageError(
            f"{path} has no column {column!r}", hint="annotations have no columns, manifests have"
        )
    settings = LabelSettings(path if path.is_dir() else path.parent)
    labels = read_upright(format, path, settings)
    check_ids(labels, prompt)
    images = [image for image in labels.asked() if options.names.accepts(image.id)]
    for text in settings.counts.notes:
        on_event(Message(f"{path}: {text}"))
    for number, text in skipped(labels, settings.counts):
        if number:
            on_event(Message(f"{path}: {note(number, text)}"))
    return images if prompt is None else [replace(image, prompt=None) for image in images]
