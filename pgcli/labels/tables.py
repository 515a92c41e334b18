"""Reads labelled rows of tables and WebDataset archives: exports of pgcli, and other data sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli import registry
from pgcli.errors import UsageError
from pgcli.images.files import ImageError
from pgcli.images.formats import whole_header
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.options import REGION
from pgcli.inputs.readers import InputFile, manifest_ending
from pgcli.labels.columns import BOX_COLUMNS, LabelReader
from pgcli.labels.json_values import label_or_none
from pgcli.labels.labelled_image import (
    LabelFormat,
    LabelledImage,
    LabelledObject,
    Labels,
    LabelSettings,
    merged,
    with_location_objects,
)
from pgcli.labels.upright import UNKNOWN_SIZE, locate
from pgcli.parsing import has_locations
from pgcli.records import BOX_TASKS, Item
from pgcli.stores.urls import url_scheme

ROW_COLUMNS = ("task", "width", "height", "error")
NO_PROMPTS = ("image", "id", REGION, *BOX_COLUMNS, *ROW_COLUMNS)


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
    read = {*NO_PROMPTS, *(names[0] for names in reader.choices)}
    columns = [name for name in items.columns if name not in read]
    return Labels(images, columns=columns, choices=reader.choices, is_table=True)


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
