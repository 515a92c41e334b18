"""Reads COCO: images, annotations with boxes, polygons, masks or captions, and categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from pgcli.examples import stated_size
from pgcli.foreign_text import without_marks
from pgcli.inputs.options import REGION
from pgcli.printable import encodable
from pgcli.records import Fault, Rle
from pgcli.regions import split_locations
from pgcli.results.frames import Corners
from pgcli.results.imports.json_values import (
    InvalidValue,
    array,
    id_text,
    label,
    mapping,
    number,
    read_document,
    score_unit,
    unique_ids,
    value_errors,
    whole_number,
)
from pgcli.results.imports.locate import local_name, locate, upright_size
from pgcli.results.imports.shapes import (
    Size,
    bounds,
    fill,
    image_size,
    mask_bounds,
    points,
    rotated_bounds,
)
from pgcli.results.imports.truth import (
    AnnotatedImage,
    Annotations,
    ImportCounts,
    ImportSettings,
    TrueBox,
    TrueText,
)
from pgcli.rle import area, encode_counts

MAX_BYTES = 512 * 2**20
HINT = "name a JSON file with 'images' and 'annotations'"
#: What names an image: the addresses, whose last part is the file's name, where LVIS has no name.
URLS = ("coco_url", "flickr_url")
NO_NAME = Fault("missing", "It has neither a file_name nor an address.")
NO_ID = Fault("missing", "It has no id.")
NO_CROWD = (None, 0, "0", "")
#: The contributor whose sizes are those of stored images, and boxes those of upright ones.
SWAPS_SIDES = "Label Studio"
Entry = Mapping[str, Any]


class UnreadableError(Exception):
    """An annotation that cannot be read: the kind of its fault, for `ImportCounts.leave_out`."""


def read(file: Path, settings: ImportSettings) -> Annotations:
    """The images of the file, in its order. Raises UsageError."""
    document = read_document(file, MAX_BYTES, hint=HINT)
    with value_errors(file, hint=f"correct it there, or {HINT}"):
        return read_images(mapping(document, "the file"), settings)


def read_images(document: Entry, settings: ImportSettings) -> Annotations:
    """The images of the document, whose odd entries are counted. Raises InvalidValue."""
    categories = entries(document.get("categories") or [], "categories", "category")
    images = entries(document.get("images"), "images", "image")
    if "annotations" not in document:
        raise InvalidValue("it has no 'annotations', and says nothing about its images")
    annotations = entries(document["annotations"], "annotations", "annotation")
    annotations = annotations if settings.as_given else with_shares(annotations)
    labels = read_labels(categories)
    own: dict[str, list[tuple[int, Entry]]] = {
        key: [] for key in unique_ids(images, "image") if key is not None
    }
    unique_ids(annotations, "annotation")
    for place, annotation in enumerate(annotations, start=1):
        key = id_text(annotation.get("image_id"))
        if key in own:
            own[key].append((place, annotation))
        else:
            settings.counts.leave_out(
                "annotations of images that are not listed", f"annotation {place}"
            )
    if annotations and not any(own.values()):
        raise InvalidValue("no annotation has the id of an image")
    known: dict[str, tuple[int, AnnotatedImage]] = {}
    for place, entry in enumerate(images, start=1):
        if (image := read_image(entry, f"image {place}", own, labels, settings)) is None:
            continue
        if (first := known.setdefault(image.id, (place, image))[0]) != place:
            raise InvalidValue(f"image {first} and image {place} have the same name: {image.id}")
    # of captions alone, no image says that nothing is there
    has_regions = not annotations or any(map(has_region, annotations))
    value = document.get("info")
    info: Entry = value if isinstance(value, dict) else {}
    prompt = info.get("prompt")
    return Annotations(
        [image for _, image in known.values()],
        asked_labels(categories, labels, annotations) if has_regions else [],
        prompt if isinstance(prompt, str) else None,
        swaps_sides=info.get("contributor") == SWAPS_SIDES,
    )


def entries(value: object, what: str, entry_name: str) -> list[Entry]:
    """The objects of an array. Raises InvalidValue."""
    return [
        mapping(entry, f"{entry_name} {place}")
        for place, entry in enumerate(array(value, what), start=1)
    ]


def read_labels(categories: Sequence[Entry]) -> dict[str, str | None]:
    """The labels by the ids of their categories; None for one that no prompt can have.

    Raises InvalidValue for two categories with one id.
    """
    labels: dict[str, str | None] = {}
    for key, category in zip(unique_ids(categories, "category"), categories, strict=True):
        if key is not None:
            try:
                labels[key] = label(category.get("name"), "name")
            except InvalidValue:
                labels[key] = None
    return labels


def asked_labels(
    categories: Sequence[Entry], labels: Mapping[str, str | None], annotations: Sequence[Entry]
) -> list[str]:
    """The labels of a prompt, in the order of the categories, without the root of Roboflow.

    It is a category that has no annotations, and of which the others are kinds.
    """
    used = {id_text(annotation.get("category_id")) for annotation in annotations}
    parents = [category.get("supercategory") for category in categories]
    return list(
        dict.fromkeys(
            name
            for category in categories
            if (key := id_text(category.get("id"))) is not None
            and (name := labels[key]) is not None
            and (key in used or category.get("supercategory") != "none" or name not in parents)
        )
    )


def read_image(
    image: Entry,
    what: str,
    own: Mapping[str, Sequence[tuple[int, Entry]]],
    labels: Mapping[str, str | None],
    settings: ImportSettings,
) -> AnnotatedImage | None:
    """An image with its annotations; None, counted, without a name, an id, a file or a size."""
    counts, key = settings.counts, id_text(image.get("id"))
    name = image_name(image)
    if name is None or key is None:
        counts.missing.add(what if name is None else name, NO_NAME if name is None else NO_ID)
        return None
    name = local_name(name, settings)
    path = name if settings.as_given else locate(name, settings)
    if path is None:
        return None
    stated = stated_size(image) or mask_size(own[key])
    if stated is not None:
        image_size(*stated, name)
    size = stated
    if stated is None and not settings.as_given:
        size = upright_size(name, path, settings)
        if size is None:
            return None
    boxes: list[TrueBox] = []
    crowds: list[TrueBox] = []
    texts = own_texts(image)
    left_out: set[str | None] = {None} if image.get("has_boxes") is False else set()
    searched = searched_labels(image, own[key], labels)
    for place, annotation in own[key]:
        where = f"annotation {place} of {name}"
        text = read_caption(annotation)
        if "caption" in annotation and not has_region(annotation):
            if text is None:
                counts.leave_out("captions without a text", where)
            else:
                texts.append(text)
            continue
        try:
            box = read_box(annotation, where, labels, size, counts)
        except UnreadableError as problem:
            counts.leave_out(str(problem), where)
            left_out.add(labels.get(id_text(annotation.get("category_id")) or ""))
            if text is not None:
                counts.leave_out("texts of unread regions", where)
        else:
            if text is not None:
                texts.append(replace(text, region=box.corners))
            if not box.label:  # dense captions: what else is in the image is not known
                left_out.add(None)
                continue
            is_crowd = annotation.get("iscrowd") not in NO_CROWD
            if not settings.as_given and searched is not None and box.label not in searched:
                counts.leave_out("boxes of labels whose objects are not all marked", where)
            else:
                (crowds if is_crowd else boxes).append(box)
    row_id = image.get("row_id")  # of an export of pgcli, if it is not the file's name
    return AnnotatedImage(
        row_id if isinstance(row_id, str) else name,
        path,
        *(size or (0, 0)),
        tuple(boxes),
        tuple(texts),
        tuple(crowds),
        frozenset(left_out),
        is_stated=stated is not None,
        searched=searched,
    )


def searched_labels(
    image: Entry,
    annotations: Sequence[tuple[int, Entry]],
    labels: Mapping[str, str | None],
) -> frozenset[str] | None:
    """The labels that LVIS searched an image for, and marked all objects of; None for other files.

    They are those of its annotations and of the categories that it is known not to have.
    """
    absent, partial = image.get("neg_category_ids"), image.get("not_exhaustive_category_ids")
    if not isinstance(absent, list):
        return None
    keys = {id_text(annotation.get("category_id")) for _, annotation in annotations}
    keys |= set(map(id_text, absent))
    keys -= set(map(id_text, partial if isinstance(partial, list) else ()))
    return frozenset(name for key in keys if (name := labels.get(key or "")) is not None)


def own_texts(image: Entry) -> list[TrueText]:
    """The texts that an export of pgcli has in the image, beside the boxes of its annotations."""
    captions = image.get("captions")
    listed = captions if isinstance(captions, list) else ()
    texts = (read_caption(caption) for caption in listed if isinstance(caption, dict))
    return [text for text in texts if text is not None]


def corners_of(value: object) -> Corners | None:
    """The four numbers of a region; None for anything else."""
    try:
        left, top, right, bottom = (number(side, "region") for side in array(value, "region"))
    except (InvalidValue, ValueError):
        return None
    return left, top, right, bottom


def image_name(image: Entry) -> str | None:
    """The name of an image's file; None without one."""
    name = image.get("file_name")
    if isinstance(name, str) and name:
        return encodable(name)
    for url in map(image.get, URLS):
        if isinstance(url, str) and (last := PurePosixPath(unquote(urlsplit(url).path)).name):
            return encodable(last)
    return None


def mask_size(annotations: Sequence[tuple[int, Entry]]) -> Size | None:
    """The size that the run lengths of an image state; None without any."""
    for _, annotation in annotations:
        mask = annotation.get("segmentation")
        sides = mask.get("size") if isinstance(mask, dict) else None
        if isinstance(sides, list) and len(sides) == 2:
            return stated_size({"width": sides[1], "height": sides[0]})
    return None


def has_region(annotation: Entry) -> bool:
    """Whether an annotation has a box or a mask, however it is written."""
    return bool(annotation.get("bbox") or annotation.get("segmentation"))


def read_caption(annotation: Entry) -> TrueText | None:
    """A caption, with the prompt and the region that an export of pgcli has; None without one.

    One that is blank says nothing of the image if the annotation has a box or a mask.
    """
    caption, prompt = annotation.get("caption"), annotation.get("prompt")
    if not isinstance(caption, str) or (not caption.strip() and has_region(annotation)):
        return None
    prompt, region = encodable(prompt) if isinstance(prompt, str) else None, None
    if (corners := corners_of(annotation.get(REGION))) is not None:
        # which the prompt has as location tokens, too
        prompt, region = prompt and split_locations(prompt)[0], corners
    return TrueText(encodable(without_marks(caption).strip()), prompt, region)


def read_box(
    annotation: Entry,
    where: str,
    labels: Mapping[str, str | None],
    size: Size | None,
    counts: ImportCounts,
) -> TrueBox:
    """A box and its mask, as far as they can be read; one with a caption may have no label.

    Raises UnreadableError.
    """
    if "segments_info" in annotation:
        raise UnreadableError("annotations of panoptic segmentation")
    key = id_text(annotation.get("category_id"))
    is_caption = annotation.get("category_id") is None and read_caption(annotation) is not None
    if not is_caption and (key is None or key not in labels):
        raise UnreadableError("annotations of categories that are not listed")
    name = "" if is_caption else labels[key or ""]
    if name is None:
        raise UnreadableError("annotations of categories whose names no prompt can have")
    mask, corners = None, None
    try:
        mask, corners = read_mask(annotation.get("segmentation"), where, size, counts)
    except UnreadableError as problem:
        if not annotation.get("bbox"):
            raise
        counts.leave_out(str(problem), where)
    if annotation.get("bbox"):
        corners = box_corners(annotation["bbox"])
        if mask is None:
            corners = rotated_bounds(corners, rotation_of(annotation), centre(corners))
    if corners is None:
        raise UnreadableError("annotations without a box or a mask")
    score = own_number(annotation, "score", where, counts)
    confidence = own_number(annotation, "confidence", where, counts)
    object_size = own_number(annotation, "area", where, counts)
    score = 1.0 if score is None else score
    confidence = score if confidence is None else confidence
    return TrueBox(name, *corners, mask, score, confidence, object_size, where)


def rotation_of(annotation: Entry) -> float:
    """The degrees by which CVAT's box is rotated about its centre; `bbox` is the one before."""
    attributes = annotation.get("attributes")
    degrees = as_number(attributes.get("rotation")) if isinstance(attributes, dict) else None
    return degrees or 0.0


def centre(corners: Corners) -> tuple[float, float]:
    """The centre of a box."""
    left, top, right, bottom = corners
    return (left + right) / 2, (top + bottom) / 2


def own_number(annotation: Entry, name: str, where: str, counts: ImportCounts) -> float | None:
    """A number that an annotation may have; None without, counted for a value that is none."""
    value = annotation.get(name)
    if value is None:
        return None
    if (known := as_number(value)) is None:
        counts.leave_out(f"{name}s without a number", where)
    return known


def as_number(value: object) -> float | None:
    """The value if it is a number, else None."""
    try:
        return number(value, "")
    except InvalidValue:
        return None


def with_shares(annotations: list[Entry]) -> list[Entry]:
    """The annotations, with scores of percent as shares. Raises InvalidValue for other scores."""
    for name in ("score", "confidence"):
        scores = [as_number(annotation.get(name)) for annotation in annotations]
        places = (f"annotation {place}" for place in range(1, len(scores) + 1))
        unit = score_unit(zip(scores, places, strict=True))
        annotations = [
            annotation if score is None or unit == 1 else {**annotation, name: score / unit}
            for annotation, score in zip(annotations, scores, strict=True)
        ]
    return annotations


def box_corners(value: object) -> Corners:
    """Left, top, right and bottom of a bbox. Raises UnreadableError."""
    try:
        left, top, width, height = (number(side, "bbox") for side in array(value, "bbox"))
    except (InvalidValue, ValueError):
        raise UnreadableError("boxes without four numbers") from None
    if width < 0 or height < 0:
        raise UnreadableError("boxes with a negative side")
    return left, top, left + width, top + height


def read_mask(
    value: object, where: str, size: Size | None, counts: ImportCounts
) -> tuple[Rle | None, Corners | None]:
    """The mask of a segmentation, polygons or run lengths, and its bounds; None without one.

    Without a size, polygons have their bounds only. Raises UnreadableError.
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
                counts.leave_out("polygons with fewer than three points", where)
            if size is None:
                counts.leave_out("masks of images without a size", where)
            return None if size is None else fill(polygons, size, "mask"), bounds(polygons)
        mask = run_lengths(mapping(value, "mask"))
        if size is not None and mask.size != size[::-1]:
            raise UnreadableError("masks of another size than their image")
        return (mask, mask_bounds(mask)) if area(mask) else (None, None)
    except (InvalidValue, ValueError):
        raise UnreadableError("masks that cannot be read") from None


def run_lengths(encoding: Entry) -> Rle:
    """A mask in one of COCO's encodings. Raises InvalidValue and ValueError."""
    counts = encoding.get("counts")
    height, width = (whole_number(side, "size") for side in array(encoding.get("size"), "size"))
    image_size(width, height, "size")
    if isinstance(counts, str):
        return Rle((height, width), counts)
    runs = [whole_number(run, "counts") for run in array(counts, "counts")]
    return encode_counts(runs, size=(height, width))
