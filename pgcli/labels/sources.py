"""Reads what any source says about images: annotations, labelled rows of tables, and folders.

`read_upright` opens the images, for `import` and `train`; `read_source` does not, for the truth of
`eval`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli import registry
from pgcli.boxes import prompt_with_region
from pgcli.errors import UsageError
from pgcli.images.files import ImageError, Size
from pgcli.images.formats import ImageHeader, whole_header
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.options import REGION, InputFile, ManifestRow, error_text, manifest_ending
from pgcli.inputs.paths import display_name
from pgcli.inputs.rows import row_name
from pgcli.inputs.tables import open_table
from pgcli.labels.coco import read_coco
from pgcli.labels.columns import (
    BOX_COLUMNS,
    LabelColumns,
    LabelReader,
    column_values,
    label_of_folder,
)
from pgcli.labels.json_values import label_or_none, read_text_inside
from pgcli.labels.labelled_image import (
    LabelFormat,
    LabelledImage,
    LabelledObject,
    Labels,
    LabelSettings,
    LeftOut,
    merged,
    with_location_objects,
)
from pgcli.labels.upright import (
    UNKNOWN_SIZE,
    in_image,
    locate,
    note_of_turned,
    upright,
    with_header,
)
from pgcli.output.reader import read_results, state_folder
from pgcli.parsing import has_locations
from pgcli.records import BOX_TASKS, Fault, Item
from pgcli.stores.files import NotRegularFileError
from pgcli.stores.urls import url_scheme
from pgcli.tasks import normalize

#: Endings of text files with the answer, beside an image of the same name.
SIDECARS = (".txt", ".caption")
MAX_SIDECAR_BYTES = 2**20
ROW_COLUMNS = ("task", "width", "height", "error")
NO_PROMPTS = ("image", "id", REGION, *BOX_COLUMNS, *ROW_COLUMNS)
HINT = (
    "--truth takes .jsonl, .csv, .tsv, .parquet, a folder of .parquet, annotations (COCO, YOLO, "
    "Label Studio or VQA), and a folder with a folder of images for each label"
)


def read_upright(format: str, file: Path, settings: LabelSettings) -> Labels:
    """The labels in a file of this format, upright and clipped. Raises UsageError."""
    known: LabelFormat = registry.load("imports", format)
    labels = known.read(file, settings)
    names: dict[str, None] = {}
    turned: dict[str, None] = {}
    absent: dict[str, Fault] = {}
    images: list[LabelledImage] = []
    for image in map(with_header, labels.images):
        if image.fault is not None:
            absent[image.id] = image.fault
        names |= dict.fromkeys(o.box.label for o in image.objects or ())
        header = image.header or ImageHeader("", Size(*(image.size or (0, 0))))
        moved = upright(image, header, f"{file}: {image.id}: ")
        if moved.has_pixels and image.size != moved.size:
            turned[image.id] = None
        images += in_image(moved, header.size, settings.counts)
    for id_, fault in absent.items():
        settings.counts.miss(id_, fault)
    if turned:
        settings.counts.notes.append(note_of_turned([*turned]))
    return replace(
        labels, images=images, labels=sorted(names) if labels.labels is None else labels.labels
    )


def format_of(path: Path) -> str | None:
    """The format of labels that a file or folder has; None for another source."""
    formats = ((name, registry.load("imports", name)) for name in registry.names("imports"))
    return next((name for name, known in formats if known.recognizes(path)), None)


def read_source(file: InputFile, columns: LabelColumns, id_column: str, counts: LeftOut) -> Labels:
    """The labels in a file or folder: annotations, a manifest, a result file, or folders of labels.

    Raises UsageError.
    """
    path = Path(file.path)
    root = path if path.is_dir() else path.parent
    settings = LabelSettings(root, as_given=True, counts=counts)
    format = None if file.url_reader is not None or is_run(file) else format_of(path)
    if format is not None:
        known: LabelFormat = registry.load("imports", format)
        labels = known.read(path, settings)
    elif file.path.lower().endswith(".json"):
        labels = read_coco(file, settings)
    elif is_label_folder(file):
        labels = Labels([*folder_labels(file)])
    else:
        return read_tables(file, columns, id_column, counts)
    for option, is_given in (
        ("--id-column", id_column != ReadOptions.id_column),
        ("--prompt-column", bool(columns.prompt)),
        ("--answer-column", columns.answer is not None),
    ):
        if is_given:
            raise UsageError(
                f"{option} has no effect on {file.name}, which is not a table", hint="omit it"
            )
    return labels


def is_run(file: InputFile) -> bool:
    """Whether the file or folder is the output of a run."""
    return file.url_reader is None and state_folder(Path(file.path)).exists()


def is_label_folder(file: InputFile) -> bool:
    """Whether the file is a folder of folders without Parquet files."""
    folder = Path(file.path)
    if file.url_reader is not None or not folder.is_dir() or is_run(file):
        return False
    return not any(folder.glob("*.parquet")) and any(entry.is_dir() for entry in folder.iterdir())


def folder_labels(file: InputFile) -> Iterator[LabelledImage]:
    """The images of a folder with a folder per label. Raises UsageError."""
    inventory = Inventory.scan([file.path], ReadOptions())
    if inventory.has_columns:
        raise UsageError(f"{file.name} has manifests, not a folder per label", hint=HINT)
    for item in inventory:
        label = label_of_folder(file.name, item.id)
        yield LabelledImage(item.id, answers=(label,), columns={"label": label})


def read_tables(file: InputFile, columns: LabelColumns, id_column: str, counts: LeftOut) -> Labels:
    """The rows of a manifest, of a folder of Parquet, or of a result file. Raises UsageError."""
    options = ReadOptions(id_column=id_column)
    images: list[LabelledImage] = []
    for part in table_files(file):
        reader = LabelReader.of(part, columns)
        for row in table_rows(part):
            if row.fault is not None:
                raise UsageError(f"{row.position} cannot be read: {row.fault.message}", hint=HINT)
            values = reader.fields(row.values)
            id_ = row_name(ManifestRow(row.position, values), options)
            if id_ is None:
                raise UsageError(
                    f"{row.position} has neither {id_column!r} nor a path in 'image'",
                    hint="rows are joined by id: name the column of ids with --id-column",
                )
            if values.get("error") is not None:
                counts.skip("rows with an error", id_)
                continue
            for name in columns.named:
                if name not in values:
                    hint = f"its columns are: {', '.join(values)}"
                    raise UsageError(f"{row.position} has no {name!r}", hint=hint)
            image = reader.read(values, row.position)
            prompt = image.prompt
            if prompt is not None:
                size = values.get("width"), values.get("height")
                prompt = prompt_with_region(normalize(prompt), values.get(REGION), *size)
            images.append(replace(image, id=id_, prompt=prompt, columns=column_values(values)))
    return Labels(images, is_table=True)


def table_files(file: InputFile) -> list[InputFile]:
    """The file, or the Parquet files of a folder without a state folder. Raises UsageError."""
    folder = Path(file.path)
    if file.url_reader is not None or not folder.is_dir() or is_run(file):
        return [file]
    if paths := sorted(folder.glob("*.parquet")):
        return [InputFile(str(path), str(path)) for path in paths]
    raise UsageError(
        f"{file.name} is a folder without .parquet files, and without folders", hint=HINT
    )


def table_rows(file: InputFile) -> Iterator[ManifestRow]:
    """The rows of a manifest, or of a run. Raises UsageError."""
    if is_run(file):  # its newest rows may still be in the state folder
        for number, values in enumerate(read_results(Path(file.path)), 1):
            yield ManifestRow(f"{file.name}, row {number}", values)
        return
    ending = manifest_ending(file.path)
    if ending is None or ending.startswith((".tar", ".tgz")):
        raise UsageError(f"{file.name} is not a table", hint=HINT)
    table = open_table(file)
    schema = table.schema()
    names = frozenset(() if schema is None else schema.names)
    yield from (row for _, row in table.read(names, images=False))


def read_table(file: Path, settings: LabelSettings) -> Labels:
    """The rows of the file in order, each as an image with objects or texts. Raises UsageError.

    Consecutive rows of one image have the same id. Failed rows and rows without an answer are
    skipped.
    """
    if manifest_ending(str(file)) is None:
        raise UsageError(
            f"{file} is not a table or an archive",
            hint=f"name a file that ends in {', '.join(registry.names('manifests'))}",
        )
    reader = LabelReader.of(InputFile(str(file), str(file)))
    options = ReadOptions(
        optional_fields=(*reader.columns.known, *ROW_COLUMNS),
        has_column_options=False,
        repeats_ids=True,
        allows_nulls=True,
    )
    items = Inventory.scan([str(file)], options)
    images = [*merged_rows(read_items(items, reader, file, settings), settings)]
    known = [
        next((name for name in names if name in items.columns), "")
        for names in (reader.columns.prompts, reader.columns.answers)
    ]
    columns = [name for name in items.columns if name not in (*NO_PROMPTS, *known)]
    return Labels(images, columns=columns, is_table=True)


TABLE = LabelFormat(read_table)


def read_items(
    items: Iterable[Item], reader: LabelReader, file: Path, settings: LabelSettings
) -> Iterator[LabelledImage]:
    """The images of the rows that have labels and a size; the others are counted."""
    for item in items:
        fields = reader.fields(item.fields)
        if fields.get("error") is not None:
            settings.counts.skip("rows with an error", item.id)
            continue
        labelled = reader.read(fields, item.id)
        path = image_path(item, file, settings)
        if path is None:
            continue
        image = replace(labelled, id=item.id, image=path)
        if not url_scheme(path):
            try:
                header = whole_header(item)
                image = replace(image, header=header, size=image.size or header.size)
            except ImageError as problem:
                image = replace(image, fault=problem.fault)
        if image.size is None:
            settings.counts.skip_image(item.id, image.fault or UNKNOWN_SIZE)
        elif (known := image_of_row(image, item, fields, settings)) is not None:
            yield known


def image_of_row(
    image: LabelledImage, item: Item, fields: Mapping[str, Any], settings: LabelSettings
) -> LabelledImage | None:
    """The image with its objects or its texts; None, counted, without either."""
    objects = row_objects(image, fields.get("task"))
    if objects is None and not image.answers:
        settings.counts.skip("rows without an answer", item.id)
        return None
    prompt = (image.prompt or "").strip() or None
    if objects is None:
        return replace(image, prompt=prompt, objects=None, region=item.region)
    for text in image.answers if not fields.get("task") else ():
        if text.strip() and not has_locations(text):
            settings.counts.skip("texts of rows with boxes", item.id)
    named = tuple(o for o in objects if prompt or label_or_none(o.box.label))
    for _ in objects[len(named) :]:
        settings.counts.skip("boxes with labels that no prompt can contain", item.id)
    unread: frozenset[str | None] = frozenset({None} if len(named) < len(objects) else ())
    return replace(image, prompt=prompt, objects=named, answers=(), unread=unread)


def row_objects(image: LabelledImage, task: object) -> tuple[LabelledObject, ...] | None:
    """The objects of a row, in pixels or as location tokens; None for a row of texts.

    In result files, rows of captions have an empty list of boxes.
    """
    objects = with_location_objects(image, image.size).objects
    is_of_boxes = (
        task in BOX_TASKS if isinstance(task, str) else not any(map(str.strip, image.answers))
    )
    return tuple(map(scored, objects)) if objects or (objects is not None and is_of_boxes) else None


def scored(known: LabelledObject) -> LabelledObject:
    """The object whose box has a score and a confidence, 1 without others."""
    box = known.box
    score = 1.0 if box.score is None else box.score
    confidence = score if box.confidence is None else box.confidence
    return known._replace(box=replace(box, score=score, confidence=confidence))


def merged_rows(
    images: Iterable[LabelledImage], settings: LabelSettings
) -> Iterator[LabelledImage]:
    """The rows, with the objects of one image and prompt in one: tables may have a row for each."""
    groups: dict[object, list[LabelledImage]] = {}
    for number, image in enumerate(images):
        key = image.id, image.image, image.size, image.prompt
        groups.setdefault(number if image.objects is None else key, []).append(image)
    for rows in groups.values():
        image, repeated = merged(rows)
        for _ in range(repeated):
            settings.counts.skip("boxes that earlier rows of the image have too", image.id)
        yield image


def image_path(item: Item, file: Path, settings: LabelSettings) -> str | None:
    """The path of a row's image, of its archive with the member's name, or of the table with its
    bytes, or its URL; None, counted, without one.
    """
    if item.data is not None or item.span is not None:
        is_in_container = any(map(manifest_ending, item.image.split("/")))
        return os.path.realpath(item.image if is_in_container else file)
    is_beside = item.fault is None and item.path is not None
    if is_beside and (url_scheme(str(item.path)) or os.path.isfile(str(item.path))):  # noqa: PTH113
        return str(item.path) if url_scheme(str(item.path)) else os.path.realpath(str(item.path))
    if item.fault is not None and item.fault.code not in ("missing", "path_not_allowed"):
        settings.counts.skip_image(item.id, item.fault)
        return None
    return locate(item.image, settings)


def text_beside(item: Item) -> tuple[str, ...]:
    """The text of the file beside a local image; empty without such a file or text.

    `a.png.txt` comes before `a.txt`, which may be about `a.jpg`. Raises ValueError for an
    unreadable or invalid file.
    """
    if item.path is None or url_scheme(item.path):
        return ()
    stem = os.path.splitext(item.path)[0]  # noqa: PTH122 - Path would drop a leading ./
    for path in (base + ending for base in (item.path, stem) for ending in SIDECARS):
        name = display_name(path)
        try:
            text = read_text_inside(path, MAX_SIDECAR_BYTES, item.root).strip()
        except (FileNotFoundError, NotRegularFileError):
            continue
        except OSError as problem:
            raise ValueError(f"{name} cannot be read: {error_text(problem)}.") from problem
        except ValueError as problem:
            raise ValueError(f"{name} cannot be read: {problem}.") from problem
        if text:
            return (text,)
    return ()
