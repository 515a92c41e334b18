"""Reads COCO: images, annotations with boxes, polygons, masks or captions, and categories.

The records of questions and answers that VQA, TextVQA and DocVQA write are read as well: they name
no image file, so they are a truth about rows by the ids of the questions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli.boxes import split_locations
from pgcli.inputs.options import REGION, InputFile
from pgcli.labels.columns import are_fractions, column_values, read_answers, stated_size
from pgcli.labels.json_values import (
    InvalidValue,
    array,
    fraction,
    id_text,
    json_head,
    label_or_none,
    mapping,
    number,
    read_document,
    unique_ids,
    value_errors,
    whole_number,
)
from pgcli.labels.labelled_image import (
    LabelFormat,
    LabelledImage,
    LabelledObject,
    Labels,
    LabelSettings,
    LeftOut,
    PixelSize,
)
from pgcli.labels.upright import bounds, checked_size, fill, place_image, points
from pgcli.records import Box, Fault, Region, Rle
from pgcli.rle import encode_counts, mask_area, mask_bounds
from pgcli.text import encodable, without_marks

HINT = "name a JSON file with 'images' and 'annotations'"
QUESTION_IDS = ("question_id", "questionId")  # VQA's, and DocVQA's
NO_NAME = Fault("missing", "It has no file_name.")
NO_ID = Fault("missing", "It has no id.")
LEADING_DOT = re.compile(r"^(\./+)+")  # ids in a run have none
NO_CROWD = (None, 0, "0", "")
JsonEntry = Mapping[str, Any]
#: Labels by the ids of their categories; None for a name that no prompt can contain.
Categories = Mapping[str, str | None]


class UnreadableError(Exception):
    """An unreadable annotation, with the kind of its fault for `LeftOut.skip`."""


def read_coco(file: Path | InputFile, settings: LabelSettings) -> Labels:
    """The images of the file, in its order. Raises UsageError."""
    document = read_document(file, hint=HINT)
    with value_errors(file, hint=f"correct it there, or {HINT}"):
        return read_images(mapping(document, "the file"), settings)


def is_coco(file: Path) -> bool:
    """Whether a file has JSON, but no list."""
    head = json_head(file)
    return head is not None and not head.startswith(b"[")


COCO = LabelFormat(read_coco, is_coco)


def read_images(document: JsonEntry, settings: LabelSettings) -> Labels:
    """The images of the document; invalid entries are counted. Raises InvalidValue."""
    if (records := question_records(document)) is not None and settings.as_given:
        return Labels([*answered_questions(records)], [])
    categories = entries(document.get("categories") or [], "categories", "category")
    images = entries(document.get("images"), "images", "image")
    if "annotations" not in document:
        raise InvalidValue("'annotations' is missing, so nothing is known about the images")
    annotations = entries(document["annotations"], "annotations", "annotation")
    if any("neg_category_ids" in image for image in images):
        raise InvalidValue("LVIS marks some labels of each image only, which pgcli does not read")
    unique_ids(annotations, "annotation")
    boxes = [box for entry in annotations if any(box := four_numbers(entry.get("bbox")) or ())]
    if boxes and are_fractions(boxes):
        raise InvalidValue("the boxes are fractions of the image, not pixels")
    category_ids = unique_ids(categories, "category")
    pairs = zip(category_ids, categories, strict=True)
    names = {key: label_or_none(entry.get("name")) for key, entry in pairs if key is not None}
    by_image: dict[str, dict[str, JsonEntry]] = {
        key: {} for key in unique_ids(images, "image") if key is not None
    }
    for place, annotation in enumerate(annotations, start=1):
        key, what = id_text(annotation.get("image_id")), f"annotation {place}"
        if key in by_image:
            by_image[key][what] = annotation
        else:
            settings.counts.skip("annotations of images that are not listed", what)
    if annotations and not any(by_image.values()):
        raise InvalidValue("no annotation has the id of an image")
    # a file of captions says nothing about objects
    has_objects = not annotations or any(map(has_shape, annotations))
    known: dict[str, str] = {}
    read: list[LabelledImage] = []
    for place, entry in enumerate(images, start=1):
        what = f"image {place}"
        own = [*read_entry(entry, what, by_image, names, settings)]
        if own and (first := known.setdefault(own[0].id, what)) != what:
            raise InvalidValue(f"{first} and {what} have the same name: {own[0].id}")
        read += own if has_objects or not own else [replace(own[0], objects=None), *own[1:]]
    value = document.get("info")
    prompt = value.get("prompt") if isinstance(value, dict) else None
    return Labels(
        read,
        prompt_categories(categories, names, annotations) if has_objects else [],
        prompt if isinstance(prompt, str) else None,
    )


def question_records(document: JsonEntry) -> Sequence[Any] | None:
    """The records of questions and answers; None for any other document."""
    for name in ("annotations", "data", "questions"):
        records = document.get(name)
        if isinstance(records, list) and records and question_id(records[0]) is not None:
            return records
    return None


def question_id(record: Any) -> str | None:
    """The question id of a record; None for any other record."""
    known = record if isinstance(record, Mapping) else {}
    values = (known.get(name) for name in QUESTION_IDS)
    return next((str(value) for value in values if isinstance(value, int | str)), None)


def answered_questions(records: Sequence[Any]) -> Iterator[LabelledImage]:
    """The answers to each question by its id. Raises InvalidValue."""
    known: set[str] = set()
    for place, record in enumerate(records, start=1):
        id_ = question_id(record)
        if id_ is None:
            raise InvalidValue(f"record {place} has no question_id")
        answers = read_answers(record.get("answers", record.get("answer")))
        if not answers:
            raise InvalidValue(f"question {id_} has no answers; --truth needs a file with answers")
        if id_ in known:
            raise InvalidValue(f"question {id_} occurs twice")
        known.add(id_)
        yield LabelledImage(id_, answers=answers, columns=column_values(record))


def entries(value: object, what: str, entry_name: str) -> list[JsonEntry]:
    """The objects of an array. Raises InvalidValue."""
    return [
        mapping(entry, f"{entry_name} {place}")
        for place, entry in enumerate(array(value, what), start=1)
    ]


def prompt_categories(
    categories: Sequence[JsonEntry], names: Categories, annotations: Sequence[JsonEntry]
) -> list[str]:
    """The labels of a prompt, in the order of the categories, without Roboflow's root category.

    The root has no annotations and is the `supercategory` of the others.
    """
    used = {id_text(annotation.get("category_id")) for annotation in annotations}
    parents = [category.get("supercategory") for category in categories]
    return list(
        dict.fromkeys(
            name
            for category in categories
            if (key := id_text(category.get("id"))) is not None
            and (name := names[key]) is not None
            and (key in used or category.get("supercategory") != "none" or name not in parents)
        )
    )


def read_entry(
    entry: JsonEntry,
    what: str,
    by_image: Mapping[str, Mapping[str, JsonEntry]],
    names: Categories,
    settings: LabelSettings,
) -> Iterator[LabelledImage]:
    """An image with its objects, then one for each text; none, counted, without a file."""
    name, key = id_text(entry.get("file_name")) or None, id_text(entry.get("id"))
    if name is None or key is None:
        settings.counts.skip_image(name or what, NO_NAME if name is None else NO_ID)
        return
    name, annotations = LEADING_DOT.sub("", name), by_image[key]
    size = stated_size(entry) or mask_size(annotations.values())
    if size is not None:
        checked_size(*size, name)
    if (image := place_image(name, settings, size)) is None:
        return
    row_id = entry.get("row_id")  # in an export of pgcli, if it is not the file's name
    if isinstance(row_id, str):
        image = replace(image, id=row_id)
    captions = entry.get("captions")  # in an export of pgcli, beside the boxes of the annotations
    listed = captions if isinstance(captions, list) else ()
    read = [read_caption(caption) for caption in listed if isinstance(caption, dict)]
    texts = [text for text in read if text is not None]
    unread: set[str | None] = {None} if entry.get("has_boxes") is False else set()
    objects: list[LabelledObject] = []
    for place, annotation in annotations.items():
        where = f"{place} of {name}"
        category = names.get(id_text(annotation.get("category_id")) or "")
        text = read_caption(annotation)
        if "caption" in annotation and not has_shape(annotation):
            if text is None:
                settings.counts.skip("captions without a text", where)
            else:
                texts.append(text)
            if "bbox" in annotation or "segmentation" in annotation:
                unread.add(category)
            continue
        try:
            labelled = read_annotation(annotation, where, names, image.size, settings.counts)
        except UnreadableError as problem:
            settings.counts.skip(str(problem), where)
            unread.add(category)
            if text is not None:
                settings.counts.skip("texts of unread regions", where)
            continue
        if text is not None:
            texts.append(replace(text, region=labelled.box.corners))
        if not labelled.box.label:  # dense captions: other objects in the image are unknown
            unread.add(None)
        else:
            objects.append(labelled)
    yield replace(image, objects=tuple(objects), unread=frozenset(unread))
    for text in texts:
        yield replace(image, prompt=text.prompt, answers=text.answers, region=text.region)


def mask_size(annotations: Iterable[JsonEntry]) -> PixelSize | None:
    """The size in the run lengths of an image, or None."""
    for annotation in annotations:
        mask = annotation.get("segmentation")
        sides = mask.get("size") if isinstance(mask, dict) else None
        if isinstance(sides, list) and len(sides) == 2:
            return stated_size({"width": sides[1], "height": sides[0]})
    return None


def has_shape(annotation: JsonEntry) -> bool:
    """Whether an annotation has a box or a mask, which may be invalid."""
    return bool(annotation.get("bbox") or annotation.get("segmentation"))


def read_caption(annotation: JsonEntry) -> LabelledImage | None:
    """A caption with its prompt and region, which exports of pgcli have, or None.

    A blank caption beside a box or a mask is ignored.
    """
    caption, prompt = annotation.get("caption"), annotation.get("prompt")
    if not isinstance(caption, str) or (not caption.strip() and has_shape(annotation)):
        return None
    prompt, region = encodable(prompt) if isinstance(prompt, str) else None, None
    if (corners := four_numbers(annotation.get(REGION))) is not None:
        # the prompt has the region as location tokens, too
        prompt, region = prompt and split_locations(prompt)[0], corners
    answers = (encodable(without_marks(caption).strip()),)
    return LabelledImage(prompt=prompt, answers=answers, region=region)


def read_annotation(
    annotation: JsonEntry,
    where: str,
    names: Categories,
    size: PixelSize | None,
    counts: LeftOut,
) -> LabelledObject:
    """The object of an annotation; its label may be empty beside a caption.

    Raises UnreadableError, and InvalidValue for a score that is not from 0 to 1.
    """
    key = id_text(annotation.get("category_id"))
    is_caption = annotation.get("category_id") is None and read_caption(annotation) is not None
    if not is_caption and (key is None or key not in names):
        raise UnreadableError("annotations of categories that are not listed")
    name = "" if is_caption else names[key or ""]
    if name is None:
        raise UnreadableError("annotations of categories with names that no prompt can contain")
    mask, corners = None, None
    try:
        mask, corners = read_segmentation(annotation.get("segmentation"), where, size, counts)
    except UnreadableError as problem:
        if not annotation.get("bbox"):
            raise
        counts.skip(str(problem), where)
    if annotation.get("bbox"):
        if (sides := four_numbers(annotation["bbox"])) is None:
            raise UnreadableError("boxes without four numbers")
        left, top, width, height = sides
        if width < 0 or height < 0:
            raise UnreadableError("boxes with a negative side")
        corners = left, top, left + width, top + height
        attributes = annotation.get("attributes")
        if mask is None and isinstance(attributes, dict) and attributes.get("rotation"):
            raise UnreadableError("boxes with a rotation")
    if corners is None:
        raise UnreadableError("annotations without a box or a mask")
    score, confidence = (
        None if (value := annotation.get(name)) is None else fraction(value, f"{where}: {name}")
        for name in ("score", "confidence")
    )
    area = None
    try:
        area = None if annotation.get("area") is None else number(annotation["area"], "")
    except InvalidValue:
        counts.skip("areas without a number", where)
    score = 1.0 if score is None else score
    confidence = score if confidence is None else confidence
    is_crowd = annotation.get("iscrowd") not in NO_CROWD
    return LabelledObject(Box(name, *corners, score, confidence), mask, area, is_crowd)


def read_segmentation(
    value: object, where: str, size: PixelSize | None, counts: LeftOut
) -> tuple[Rle | None, Region | None]:
    """The mask of polygons or run lengths and its bounds, None without one.

    Polygons without an image size have bounds only. Raises UnreadableError.
    """
    if not value:
        return None, None
    try:
        if isinstance(value, list):
            every = [array(polygon, "polygon") for polygon in value]
            polygons = [points(polygon, "polygon") for polygon in every if len(polygon) >= 6]
            if not polygons:
                raise UnreadableError("polygons with fewer than three points")
            if len(polygons) < len(every):
                counts.skip("polygons with fewer than three points", where)
            if size is None:
                counts.skip("masks of images without a size", where)
            return None if size is None else fill(polygons, size, "mask"), bounds(polygons)
        mask = run_lengths(mapping(value, "mask"))
        if size is not None and mask.size != size[::-1]:
            raise UnreadableError("masks of another size than their image")
        return (mask, mask_bounds(mask)) if mask_area(mask) else (None, None)
    except ValueError:
        raise UnreadableError("masks that cannot be read") from None


def run_lengths(encoding: JsonEntry) -> Rle:
    """A mask in one of COCO's encodings. Raises InvalidValue and ValueError."""
    counts = encoding.get("counts")
    height, width = (whole_number(side, "size") for side in array(encoding.get("size"), "size"))
    checked_size(width, height, "size")
    if isinstance(counts, str):
        return Rle((height, width), counts)
    runs = [whole_number(run, "counts") for run in array(counts, "counts")]
    return encode_counts(runs, size=(height, width))


def four_numbers(value: object) -> Region | None:
    """The value as four numbers; None for anything else."""
    try:
        first, second, third, fourth = (number(side, "") for side in array(value, ""))
    except ValueError:
        return None
    return first, second, third, fourth
