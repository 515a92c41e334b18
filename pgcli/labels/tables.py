"""Reads labelled rows of tables and WebDataset archives: exports of pgcli, and other data sets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from pgcli import registry
from pgcli.errors import UsageError
from pgcli.images.errors import ImageError
from pgcli.images.formats import whole_header
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.options import REGION
from pgcli.inputs.readers import InputFile, manifest_ending
from pgcli.labels.columns import (
    BOX_COLUMNS,
    Example,
    ExampleReader,
    note_of_choices,
    stated_size,
)
from pgcli.labels.json_values import label_or_none
from pgcli.labels.labelled_image import (
    AnnotatedImage,
    Annotations,
    BoxWithMask,
    ImportSettings,
    TrueText,
)
from pgcli.labels.locate import UNKNOWN_SIZE, locate
from pgcli.parsing import boxes as parse_boxes
from pgcli.parsing import has_locations, text_spans
from pgcli.records import BOX_TASKS, Box, Item, Region
from pgcli.stores.urls import url_scheme

ROW_COLUMNS = ("task", "width", "height", "error")
NO_PROMPTS = ("image", "id", REGION, *BOX_COLUMNS, *ROW_COLUMNS)


def read_table(file: Path, settings: ImportSettings) -> Annotations:
    """The rows of the file in order, each as an image with boxes or texts. Raises UsageError.

    Consecutive rows of one image have the same id. Failed rows and rows without an answer are
    skipped.
    """
    if manifest_ending(str(file)) is None:
        raise UsageError(
            f"{file} is not a table or an archive",
            hint=f"name a file that ends in {', '.join(registry.names('manifests'))}",
        )
    reader = ExampleReader.of(InputFile(str(file), str(file)))
    options = ReadOptions(
        optional_fields=(*reader.columns.known, *ROW_COLUMNS),
        has_column_options=False,
        repeats_ids=True,
        allows_nulls=True,
    )
    images = []
    items = Inventory.scan([str(file)], options)
    for item in items:
        fields = reader.fields(item.fields)
        if fields.get("error") is not None:
            settings.counts.skip("rows with an error", item.id)
            continue
        example = reader.read(fields, item.id)
        if (image := image_of_row(item, example, fields, file, settings)) is not None:
            images.append(image)
    if note := note_of_choices(reader.choices):
        settings.counts.notes.append(note)
    images = merged_rows(images, settings)
    labels = dict.fromkeys(box.label for image in images for box, _ in image.boxes)
    read = {*NO_PROMPTS, *(names[0] for names in reader.choices)}
    return Annotations(images, sorted(labels), unread=[n for n in items.columns if n not in read])


def merged_rows(images: Iterable[AnnotatedImage], settings: ImportSettings) -> list[AnnotatedImage]:
    """The rows, with the boxes of one image and prompt in one: tables may have a row for each."""
    groups: dict[object, list[AnnotatedImage]] = {}
    for number, image in enumerate(images):
        key = image.id, image.image, image.width, image.height, image.prompt
        groups.setdefault(key if image.says_boxes else number, []).append(image)
    return [own[0] if len(own) == 1 else merged_boxes(own, settings) for own in groups.values()]


def merged_boxes(rows: Sequence[AnnotatedImage], settings: ImportSettings) -> AnnotatedImage:
    """The first row of an image with the boxes of all its rows; boxes of earlier rows once."""
    known, boxes = set[tuple[str, Region]](), list[BoxWithMask]()
    for row in rows:
        new = [pair for pair in row.boxes if (pair[0].label, pair[0].corners) not in known]
        for _ in row.boxes[len(new) :]:
            settings.counts.skip("boxes that earlier rows of the image have too", row.id)
        known.update((box.label, box.corners) for box, _ in new)
        boxes += new
    return replace(rows[0], boxes=tuple(boxes), unread={*chain(*(row.unread for row in rows))})


def image_of_row(
    item: Item, example: Example, fields: Mapping[str, Any], file: Path, settings: ImportSettings
) -> AnnotatedImage | None:
    """The image of a row with its truth; None, counted, without a truth or a size."""
    path, size = image_path(item, file, settings), stated_size(fields)
    header = fault = None
    if path is None:
        return None
    if not url_scheme(path):
        try:
            header = whole_header(item)
        except ImageError as problem:
            fault = problem.fault
    is_stated = size is not None
    if size is None and header is not None:
        size = header.size.width, header.size.height
    if size is None:
        settings.counts.missing.add(item.id, fault or UNKNOWN_SIZE)
        return None
    boxes = example_boxes(example, fields.get("task"), size)
    if boxes is None and not example.answers:
        settings.counts.skip("rows without an answer", item.id)
        return None
    if boxes is not None and not fields.get("task"):
        for text in example.answers:
            if text.strip() and not has_locations(text):
                settings.counts.skip("texts of rows with boxes", item.id)
    prompt = (example.prompt or "").strip() or None
    named = [pair for pair in boxes or () if prompt or label_or_none(pair[0].label)]
    for _ in (boxes or ())[len(named) :]:
        settings.counts.skip("boxes with labels that no prompt can contain", item.id)
    return AnnotatedImage(
        item.id,
        path,
        *size,
        boxes=named,
        unread={None} if len(named) < len(boxes or ()) else frozenset(),
        texts=()
        if boxes is not None
        else tuple(TrueText(t, prompt, item.region) for t in example.answers),
        is_stated=is_stated,
        prompt=prompt,
        says_boxes=boxes is not None,
        header=header,
        fault=fault,
    )


def image_path(item: Item, file: Path, settings: ImportSettings) -> str | None:
    """The path of a row's image, of its archive with the member's name, or of the table with its
    bytes, or its URL; None, counted, without one.
    """
    if item.data is not None or item.span is not None:
        return os.path.realpath(
            item.image if any(map(manifest_ending, item.image.split("/"))) else file
        )
    is_beside = item.fault is None and item.path is not None
    if is_beside and (url_scheme(str(item.path)) or os.path.isfile(str(item.path))):  # noqa: PTH113
        return str(item.path) if url_scheme(str(item.path)) else os.path.realpath(str(item.path))
    if item.fault is not None and item.fault.code not in ("missing", "path_not_allowed"):
        settings.counts.missing.add(item.id, item.fault)
        return None
    return locate(item.image, settings)


def example_boxes(
    example: Example, task: object, size: tuple[int, int]
) -> tuple[BoxWithMask, ...] | None:
    """The boxes of a row, in pixels or as location tokens; None for a row of texts.

    In result files, rows of captions have an empty list of boxes.
    """
    boxes: Sequence[Box] | None = example.boxes
    texts = [text for text in example.answers if has_locations(text)]
    if boxes is None and texts:
        width, height = size
        read = (parse_boxes(text_spans(text), width=width, height=height) for text in texts)
        boxes = [*chain.from_iterable(read)]
    is_of_boxes = (
        task in BOX_TASKS if isinstance(task, str) else not any(map(str.strip, example.answers))
    )
    if boxes is None or not (boxes or is_of_boxes):
        return None
    masks = example.masks or ()
    scores = [1.0 if box.score is None else box.score for box in boxes]
    scored = [
        replace(box, score=score, confidence=score if box.confidence is None else box.confidence)
        for box, score in zip(boxes, scores, strict=True)
    ]
    return tuple(zip_longest(scored, masks[: len(boxes)]))
