"""Reads COCO: images, annotations with boxes, polygons, masks or captions, and categories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgcli.results.imports.json_values import (
    InvalidValue,
    array,
    label,
    mapping,
    number,
    read_document,
    text,
    value_errors,
    whole_number,
)
from pgcli.results.imports.locate import locate
from pgcli.results.imports.shapes import (
    Size,
    bounds,
    clipped,
    coco_mask,
    coco_polygons,
    image_size,
    mask_bounds,
)
from pgcli.results.imports.truth import (
    AnnotatedImage,
    Annotations,
    ImportSettings,
    TrueBox,
    TrueText,
)

MAX_BYTES = 512 * 2**20
HINT = "name a JSON file with 'images' and 'annotations'"


def read(file: Path, settings: ImportSettings) -> Annotations:
    """The images of the file, in its order. Raises UsageError."""
    document = read_document(file, MAX_BYTES, hint=HINT)
    with value_errors(file, hint=f"correct it there, or {HINT}"):
        return read_images(mapping(document, "the file"), settings)


def read_images(document: Mapping[str, Any], settings: ImportSettings) -> Annotations:
    """The images of the document. Raises InvalidValue."""
    categories = read_categories(document.get("categories", []))
    by_image: dict[int, list[tuple[str, Mapping[str, Any]]]] = {}
    for place, value in enumerate(array(document.get("annotations"), "annotations"), start=1):
        annotation = mapping(value, f"annotation {place}")
        image_id = whole_number(annotation.get("image_id"), f"annotation {place}: image_id")
        by_image.setdefault(image_id, []).append((f"annotation {place}", annotation))
    images = []
    for place, value in enumerate(array(document.get("images"), "images"), start=1):
        what = f"image {place}"
        image = mapping(value, what)
        name = text(image.get("file_name"), f"{what}: file_name")
        size = image_size(image.get("width"), image.get("height"), what)
        own = by_image.pop(whole_number(image.get("id"), f"{what}: id"), [])
        boxes: list[TrueBox] = []
        crowds: list[TrueBox] = []
        left_out: set[str | None] = set()
        texts = []
        for where, annotation in own:
            if "caption" in annotation:
                texts.append(read_caption(annotation, where))
                continue
            box = read_box(annotation, where, categories, size)
            inside = box if settings.as_given else clipped(box, size, settings.counts, where)
            if inside is None:
                left_out.add(box.label)
            elif annotation.get("iscrowd"):
                crowds.append(inside)
                if not settings.as_given:
                    settings.counts.leave_out("crowds", where)
            else:
                boxes.append(inside)
        row_id = image.get("row_id")  # of an export of pgcli, if it is not the file's name
        if path := name if settings.as_given else locate(name, settings):
            id_ = name if row_id is None else text(row_id, f"{what}: row_id")
            images.append(
                AnnotatedImage(
                    id_,
                    path,
                    *size,
                    tuple(boxes),
                    tuple(texts),
                    tuple(crowds),
                    frozenset(left_out),
                )
            )
    if by_image:
        where = next(iter(by_image.values()))[0][0]
        raise InvalidValue(f"{where} is of an image that is not there, or is there twice")
    info = document.get("info")
    prompt = info.get("prompt") if isinstance(info, dict) else None
    prompt = None if prompt is None else text(prompt, "info: prompt")
    return Annotations(images, list(dict.fromkeys(categories.values())), prompt)


def read_categories(value: object) -> dict[int, str]:
    """The labels by the ids of their categories. Raises InvalidValue."""
    categories: dict[int, str] = {}
    for place, entry in enumerate(array(value, "categories"), start=1):
        category = mapping(entry, f"category {place}")
        key = whole_number(category.get("id"), f"category {place}: id")
        categories[key] = label(category.get("name"), f"category {place}: name")
    return categories


def read_caption(annotation: Mapping[str, Any], what: str) -> TrueText:
    """A caption, with the prompt that an export of pgcli has. Raises InvalidValue."""
    prompt = annotation.get("prompt")
    caption = text(annotation.get("caption"), f"{what}: caption").strip()
    return TrueText(caption, None if prompt is None else text(prompt, f"{what}: prompt"))


def read_box(
    annotation: Mapping[str, Any],
    what: str,
    categories: Mapping[int, str],
    size: Size,
) -> TrueBox:
    """A box and its mask. Raises InvalidValue."""
    name = categories.get(whole_number(annotation.get("category_id"), f"{what}: category_id"))
    if name is None:
        raise InvalidValue(f"{what} has a category_id that no category has")
    segmentation = annotation.get("segmentation")
    mask = coco_mask(segmentation, size, f"{what}: segmentation") if segmentation else None
    if annotation.get("bbox") is not None:
        sides = [
            number(side, f"{what}: bbox") for side in array(annotation["bbox"], f"{what}: bbox")
        ]
        if len(sides) != 4:
            raise InvalidValue(f"{what}: bbox does not have four numbers")
        left, top, right, bottom = (*sides[:2], sides[0] + sides[2], sides[1] + sides[3])
    elif isinstance(segmentation, list) and segmentation:
        left, top, right, bottom = bounds(coco_polygons(segmentation, what))
    elif mask is not None:
        left, top, right, bottom = mask_bounds(mask)
    else:
        raise InvalidValue(f"{what} has neither bbox nor segmentation nor caption")
    score = share(annotation.get("score"))
    confidence = share(annotation.get("confidence", score))
    area = object_area(annotation.get("area"))
    return TrueBox(name, left, top, right, bottom, mask, score, confidence, area)


def object_area(value: object) -> float | None:
    """The value if it is a number that a float can hold, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def share(value: object) -> float:
    """The value if it is a number from 0 to 1, else 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return 1.0
    return float(value)
