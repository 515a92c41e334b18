"""Reads rows to train on: the images of sources, and what is learned of each."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.errors import ManifestError, NoInputError, UsageError
from pgcli.foreign_text import LFS_MESSAGE, decode_text, is_lfs_pointer
from pgcli.images.errors import ImageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.foreign_manifests import foreign_manifest, is_label_studio, read_head
from pgcli.inputs.lines import MAX_LINE_BYTES
from pgcli.inputs.options import REGION
from pgcli.inputs.paths import display_name
from pgcli.inputs.readers import UNDERSCORE, InputFile, error_text, manifest_ending
from pgcli.labelled_rows import (
    Example,
    ExampleColumns,
    classes_of,
    is_text,
    label_of_folder,
    note_of_choices,
    without_blanks,
)
from pgcli.output.lines import parse_row
from pgcli.output.reader import REQUIRED, read_results
from pgcli.pipeline.progress.events import Message, OnEvent, ignore
from pgcli.pipeline.request.error_budget import ErrorBudget
from pgcli.records import COLUMNS, Fault, Item
from pgcli.regions import location_values, parse_region, with_locations
from pgcli.results.images import ImageLocator, ImageRef
from pgcli.stores.files import NotRegularFileError, open_regular, parse_path
from pgcli.stores.urls import url_scheme
from pgcli.tasks.question import ask, normalize
from pgcli.tasks.templates import render, template_columns
from pgcli.training.rows import RowErrors, TargetText, TrainingRows
from pgcli.training.true_boxes import (
    DrawnRow,
    UnusableRow,
    has_answers,
    image_header,
    needs_header,
    settled_rows,
    upright_example,
)
from pgcli.wording import note

#: The columns of result files that say why an image has no answer.
ERROR_COLUMNS = ("error", "error_message")
#: The columns by which a result file is known.
COLUMNS_OF_RESULTS = REQUIRED.intersection(COLUMNS)
#: Endings of a file with the answer, beside the image of the same name.
SIDECARS = (".txt", ".caption")
MAX_SIDECAR_BYTES = 2**20


@dataclass(frozen=True)
class RowReader:
    """Reads the rows of sources: prompts and answers, or with a `label` column that alone.

    `columns` are read in place of the known ones. `prompt` is that of rows without one; a column in
    braces is replaced by its value. With `has_folders`, labels may be the names of folders. Rows
    that are evaluated on need the whole truth. `choices` counts rows by the columns that were read,
    each before others with values.
    """

    columns: ExampleColumns = field(default_factory=ExampleColumns)
    prompt: str | None = None
    label: str | None = None
    has_folders: bool = False
    on_event: OnEvent = ignore
    keeps_truth: bool = True
    choices: Counter[tuple[str, ...]] = field(default_factory=Counter)

    @property
    def missing(self) -> str:
        """What a row without a target lacks, for messages."""
        if self.label is not None:
            return repr(self.label)
        return f"a prompt and {repr(self.columns.answer) if self.columns.answer else 'an answer'}"

    @property
    def hint(self) -> str:
        """What to do where no row has a target."""
        if self.label is not None:
            return "correct the manifest, or name another column"
        return (
            '<--prompt "caption en"> is the prompt of all rows; <--prompt-column=> and '
            "<--answer-column=> name columns"
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
        """Add the rows of the sources; `errors` counts those that cannot be used.

        Raises UsageError for images without columns, NoInputError if no row is left, and
        TooManyErrors.
        """
        errors = errors or RowErrors(ErrorBudget(max_share=1.0))
        unusable: list[int] = []
        for name in sources:
            items, target_of = self._open(name, options)
            self.choices.clear()
            drawn: dict[int, DrawnRow] = {}  # by their places in the rows
            for item in track(items):
                if is_error_row(item):
                    rows.left_out["with_error"] += 1
                    continue
                target = self._attempt(item, partial(target_of, item), rows, errors)
                if isinstance(target, DrawnRow):
                    drawn[len(rows)] = target
                    rows.add(item, TargetText(""))
                elif target is not None:
                    rows.add(item, target)
            frames, notes = settled_rows([*drawn.values()])
            for (place, row), frame in zip(drawn.items(), frames, strict=True):
                target = self._attempt(row.item, partial(row.target, frame), rows, errors)
                if isinstance(target, TargetText):
                    text, prompt, truth = target
                    rows[place] = replace(rows[place], target=text, prompt=prompt, truth=truth)
                else:
                    unusable.append(place)
            for text in notes:
                self.on_event(Message(f"{display_name(name)}: {text}"))
            if text := note_of_choices(self.choices):
                hint = "<--answer-column=> and <--prompt-column=> name the columns that are read"
                self.on_event(Message(f"{display_name(name)}: {text}", hint=hint))
            if isinstance(items, Inventory) and (items.has_columns or UNDERSCORE in items.ignored):
                for verb, what in items.notes:
                    self.on_event(Message(f"{display_name(name)}: {verb} {what}"))
        for place in reversed(unusable):
            del rows[place]
        errors.budget.check_share(errors.tally)
        if not rows:
            for name in sources:
                if manifest_ending(name) == ".jsonl" and not url_scheme(name):
                    head = read_head(InputFile(parse_path(name), name))
                    if foreign := foreign_manifest(name, head):
                        raise foreign
            names = ", ".join(sources)
            if rows.faults and not rows.left_out["without_target"]:
                raise NoInputError(
                    f"no row of {names} can be used, such as {rows.faults[0]}",
                    hint="correct the rows or their images",
                )
            raise NoInputError(
                f"no row of {names} has an image with {self.missing}"
                + (f"; {rows.faults[0]}" if rows.faults else ""),
                hint=self.hint,
            )
        return rows

    def _attempt(
        self,
        item: Item,
        find: Callable[[], TargetText | DrawnRow | None],
        rows: TrainingRows,
        errors: RowErrors,
    ) -> TargetText | DrawnRow | None:
        """What is learned of an item; None, counted, for a row without that or with a fault."""
        fault, target = item.fault, None
        try:
            target = None if fault else find()
        except (UnusableRow, ImageError) as problem:
            fault = Fault("invalid_row", str(problem))
        if isinstance(target, DrawnRow):
            return target
        errors.add((item.id, item.image, str(item.index)), item, fault)
        if fault is not None:
            rows.faults.append(f"{item.id}: {fault.message}")
        elif target is None:
            rows.left_out["without_target"] += 1
        return target

    def _open(
        self, name: str, options: ReadOptions
    ) -> tuple[Iterable[Item], Callable[[Item], TargetText | DrawnRow | None]]:
        """The items of a source, and what finds the target of each. Raises UsageError."""
        if self.has_folders:
            source = Inventory.scan([name], replace(options, repeats_ids=True))
            if not source.has_columns:
                return source, partial(self._folder_of, name, is_folder=source.is_folder)
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
        reader = options.url_reader if url_scheme(name) else None
        location = name if reader or name == "-" else str(parse_path(name))
        columns = replace(columns, class_names=classes_of(InputFile(location, name, reader)))
        is_table = manifest_ending(name) in (".csv", ".tsv")
        return self._items(name, read), partial(self._target_of, columns, has_blanks=is_table)

    def _items(self, name: str, options: ReadOptions) -> Iterable[Item]:
        """The items of a manifest, a folder, a result file or a file of annotations."""
        is_manifest = options.image_column != ReadOptions.image_column
        if name == "-" or url_scheme(name) or is_manifest:
            return Inventory.scan([name], options)
        path = Path(parse_path(name))
        if (format := annotation_format(path)) is not None:
            return annotated_items(path, format, options, self.prompt, self.on_event)
        if not is_result_file(path):
            return Inventory.scan([name], options)
        locator = ImageLocator(self.on_event, url_reader=options.url_reader)
        return result_items(path, options, locator)

    def _folder_of(self, source: str, item: Item, *, is_folder: bool) -> TargetText:
        """The folder of an image, right below the source. Raises UsageError."""
        hint = f"or name a manifest with a column {self.label!r}"
        if not is_folder:
            raise UsageError(
                f"{display_name(source)} is not a folder, and labels are the names of folders in "
                "one",
                hint=f"name the folder that has a folder of each label, {hint}",
            )
        return TargetText(label_of_folder(source, item.id, f", {hint}"))

    def _target_of(
        self, columns: ExampleColumns, item: Item, *, has_blanks: bool
    ) -> TargetText | DrawnRow | None:
        """The prompt and the answer, or the label; None without. Raises UnusableRow, UsageError."""
        fields = without_blanks(item.fields) if has_blanks else item.fields
        try:
            example = columns.read(fields, item.id)
        except UsageError as problem:
            raise UnusableRow(str(problem)) from problem
        if self.label is not None:
            answers = example.answers if is_text(fields.get(self.label)) else ()
            text = answers[0].strip() if answers else ""
            return TargetText(text) if text else None
        prompt = self._prompt(item, example)
        finish = partial(self._finished, replace(item, data=None), prompt, fields)
        if self.columns.answer is None and example.boxes is not None:
            if needs_header(example, fields):
                header = image_header(item, fields)
                if header.orientation != 1:
                    return DrawnRow(replace(item, data=None), fields, example, header, finish)
                example = upright_example(example, fields, header)
            elif not has_answers(example):
                example = replace(example, answers=("",))
        return finish(example)

    def _finished(
        self, item: Item, prompt: str | None, fields: Mapping[str, Any], example: Example
    ) -> TargetText | None:
        """What is learned of an example with upright boxes; None without a prompt or an answer."""
        answers = self._answers(item, example, fields)
        if prompt is None or not answers:
            return None
        self.choices.update(example.choices)
        truth = None
        if self.keeps_truth:
            truth = replace(example, prompt=None, answers=example.answers or answers, masks=None)
        return TargetText(Counter(answers).most_common(1)[0][0], prompt, truth)

    def _prompt(self, item: Item, example: Example) -> str | None:
        """The prompt as the model gets it; None if the row has none. Raises UsageError for two."""
        text = (example.prompt or "").strip()
        if text and self.prompt is not None:
            raise UsageError(
                f"<--prompt=> is given, and {item.id} has a prompt of its own",
                hint="leave out <--prompt=>, or leave out the column",
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
            raise UnusableRow("The region is not in its image.")
        return with_locations(prompt, values)

    def _answers(self, item: Item, example: Example, fields: Mapping[str, Any]) -> tuple[str, ...]:
        """The true answers, of which boxes make one; with boxes, it may be empty as well."""
        answers = tuple(text.strip() for text in example.answers)
        if any(answers) or (self.columns.answer is None and example.boxes is not None):
            return answers
        has_columns = any(name in fields for name in (*self.columns.known, *self.columns.named))
        return answers or (() if has_columns else sidecar_text(item))


def is_error_row(item: Item) -> bool:
    """Whether an item is a row of a result file that has an error in place of an answer."""
    fields = item.fields
    return all(name in fields for name in ERROR_COLUMNS) and fields["error"] is not None


def sidecar_text(item: Item) -> tuple[str, ...]:
    """The text of the file beside a local image, if there is one that has a text.

    Raises UnusableRow for a file that cannot be read for certain.
    """
    if item.path is None or url_scheme(item.path):
        return ()
    stem = os.path.splitext(item.path)[0]  # noqa: PTH122 - Path would drop a leading ./
    for ending in SIDECARS:
        name = display_name(f"{stem}{ending}")
        try:
            with open_regular(f"{stem}{ending}", item.root) as file:
                data = file.read(MAX_SIDECAR_BYTES + 1)
            text = decode_text(data).strip()
        except (FileNotFoundError, NotRegularFileError):
            continue
        except OSError as problem:
            raise UnusableRow(f"{name} cannot be read: {error_text(problem)}.") from problem
        except UnicodeDecodeError as problem:
            raise UnusableRow(f"{name} is not UTF-8.") from problem
        if is_lfs_pointer(data):
            raise UnusableRow(f"{name} {LFS_MESSAGE}.")
        if len(data) > MAX_SIDECAR_BYTES:
            raise UnusableRow(f"{name} is longer than {MAX_SIDECAR_BYTES >> 20} MiB.")
        if "\0" in text:
            raise UnusableRow(f"{name} holds a NUL byte.")
        if text:
            return (text,)
    return ()


def is_result_file(path: Path) -> bool:
    """Whether the path is an output of an answering command, by its columns."""
    if path.is_dir():
        return any(map(is_result_file, sorted(path.glob("*.parquet"))[:1]))
    names: Iterable[str] = ()
    if path.is_file() and path.suffix.lower() == ".parquet":
        from pgcli.inputs.parquet import ParquetTable  # slow to import

        try:
            names = ParquetTable(InputFile(str(path), str(path))).schema().names
        except ManifestError:  # which opening it as a source says
            return False
    elif path.is_file() and path.suffix.lower() in (".jsonl", ".ndjson"):
        with open_regular(path) as file:
            names = parse_row(file.readline(MAX_LINE_BYTES)) or ()
    return set(names) >= COLUMNS_OF_RESULTS


def result_items(output: Path, options: ReadOptions, locator: ImageLocator) -> Iterator[Item]:
    """The rows of a result file as items with their columns.

    An image is searched for beside the file, as that of a manifest, and where its run found it.
    Raises UsageError for a column that a row does not have.
    """
    for number, row in enumerate(read_results(output)):
        if not options.names.accepts(str(row["id"])):
            continue
        fields = fields_of(row, options, str(output))
        item = Item(number, str(row["id"]), str(row["image"]), fields=fields)
        if is_error_row(item):
            yield item
            continue
        located = image_beside(output, item) or locator.item(number, ImageRef.of(row, output))
        yield replace(
            item,
            path=located.path,
            data=located.data,
            fault=located.fault,
            root=located.root,
        )


def fields_of(row: Mapping[str, Any], options: ReadOptions, name: str) -> dict[str, object]:
    """The columns of a row that are read."""
    for column in options.fields:
        if column not in row:
            raise UsageError(
                f"{name} has no column {column!r}", hint=f"its columns are: {', '.join(row)}"
            )
    return {name: row[name] for name in (*options.fields, *options.optional_fields) if name in row}


def image_beside(output: Path, item: Item) -> Item | None:
    """The image whose path is relative to the folder of the result file, if it exists."""
    path = os.path.join(output.parent, parse_path(item.image))  # noqa: PTH118 - a path as written
    try:
        return Item(item.index, item.id, item.image, path) if os.path.isfile(path) else None  # noqa: PTH113
    except ValueError:  # a NUL, which no file name has
        return None


def annotation_format(path: Path) -> str | None:
    """The format of a file or folder of annotations; None for another source."""
    if path.is_dir():
        return "yolo" if (path / "data.yaml").is_file() else None
    if path.suffix.lower() != ".json" or not path.is_file():
        return None
    head = read_head(InputFile(str(path), str(path)))
    if not head.startswith(b"["):
        return "coco"
    return "labelstudio" if is_label_studio(head) else None


def annotated_items(
    path: Path, format: str, options: ReadOptions, prompt: str | None, on_event: OnEvent
) -> Iterator[Item]:
    """The rows that `pgcli import` makes of annotations, as items with their columns."""
    from pgcli.results.imports.rows import TruthRows
    from pgcli.results.imports.truth import ImportSettings
    from pgcli.results.imports.upright import read_annotations

    root = path if path.is_dir() else path.parent
    settings = ImportSettings(root)
    annotations = read_annotations(format, path, settings)
    images = {image.id: image.image for image in annotations.images}
    rows = TruthRows(annotations, root, prompt)
    rows.check_ids()
    for number, row in enumerate(rows):
        if not options.names.accepts(str(row["id"])):
            continue
        fields = fields_of(row, options, str(path))
        if prompt is not None:
            fields = {name: value for name, value in fields.items() if name != "prompt"}
        region = row.get(REGION)
        yield Item(
            number,
            row["id"],
            row["image"],
            images[row["id"]],
            region=region and parse_region(region),
            fields=fields,
        )
    for text in settings.counts.notes:
        on_event(Message(f"{path}: {text}"))
    for count, text in rows.notes(settings.counts):
        if count:
            on_event(Message(f"{path}: {note(count, text)}"))
