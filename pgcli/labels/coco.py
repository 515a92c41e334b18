"""Reads COCO: images, annotations with boxes, polygons, masks or captions, and categories."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from pgcli.labels.coco_annotations import (
    JsonEntry,
    UnreadableError,
    check_scores,
    four_numbers,
    has_shape,
    read_annotation,
    read_caption,
)
from pgcli.labels.columns import are_fractions, stated_size
from pgcli.labels.json_values import (
    InvalidValue,
    array,
    id_text,
    label_or_none,
    mapping,
    read_document,
    unique_ids,
    value_errors,
)
from pgcli.labels.labelled_image import (
    AnnotatedImage,
    Annotations,
    ImageTruth,
    ImportCounts,
    ImportSettings,
)
from pgcli.labels.locate import local_name, locate, upright_size
from pgcli.labels.shapes import PixelSize, checked_size
from pgcli.printable import encodable
from pgcli.records import Fault

MAX_BYTES = 512 * 2**20
HINT = "name a JSON file with 'images' and 'annotations'"
#: URLs that end in the name of the image's file; LVIS has no `file_name`.
URLS = ("coco_url", "flickr_url")
NO_NAME = Fault("missing", "It has neither a file_name nor a URL.")
NO_ID = Fault("missing", "It has no id.")
NO_CROWD = (None, 0, "0", "")
#: The contributor that states sizes of stored images and boxes of upright ones.
SWAPS_SIDES = "Label Studio"
#: Labels by the ids of their categories; None for a name that no prompt can contain.
Labels = Mapping[str, str | None]


def read_coco(file: Path, settings: ImportSettings) -> Annotations:
    """The images of the file, in its order. Raises UsageError."""
    document = read_document(file, MAX_BYTES, hint=HINT)
    with value_errors(file, hint=f"correct it there, or {HINT}"):
        return read_images(mapping(document, "the file"), settings)


def read_images(document: JsonEntry, settings: ImportSettings) -> Annotations:
    """The images of the document; invalid entries are counted. Raises InvalidValue."""
    categories = entries(document.get("categories") or [], "categories", "category")
    images = entries(document.get("images"), "images", "image")
    if "annotations" not in document:
        raise InvalidValue("'annotations' is missing, so nothing is known about the images")
    annotations = entries(document["annotations"], "annotations", "annotation")
    unique_ids(annotations, "annotation")
    boxes = [box for entry in annotations if any(box := four_numbers(entry.get("bbox")) or ())]
    if boxes and are_fractions(boxes):
        raise InvalidValue("the boxes are fractions of the image, not pixels")
    if not settings.as_given:
        check_scores(annotations)
    labels = labels_by_category(categories)
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
    known: dict[str, tuple[str, AnnotatedImage]] = {}
    for place, entry in enumerate(images, start=1):
        what = f"image {place}"
        if (image := read_coco_image(entry, what, by_image, labels, settings)) is None:
            continue
        if (first := known.setdefault(image.id, (what, image))[0]) != what:
            raise InvalidValue(f"{first} and {what} have the same name: {image.id}")
    # a file of captions says nothing about objects
    has_regions = not annotations or any(map(has_shape, annotations))
    value = document.get("info")
    info: JsonEntry = value if isinstance(value, dict) else {}
    prompt = info.get("prompt")
    return Annotations(
        [image for _, image in known.values()],
        prompt_categories(categories, labels, annotations) if has_regions else [],
        prompt if isinstance(prompt, str) else None,
        swaps_sides=info.get("contributor") == SWAPS_SIDES,
    )


def entries(value: object, what: str, entry_name: str) -> list[JsonEntry]:
    """The objects of an array. Raises InvalidValue."""
    return [
        mapping(entry, f"{entry_name} {place}")
        for place, entry in enumerate(array(value, what), start=1)
    ]


def labels_by_category(categories: Sequence[JsonEntry]) -> Labels:
    """The label of each category. Raises InvalidValue for a duplicate id."""
    labels: dict[str, str | None] = {}
    for key, category in zip(unique_ids(categories, "category"), categories, strict=True):
        if key is not None:
            labels[key] = label_or_none(category.get("name"))
    return labels


def prompt_categories(
    categories: Sequence[JsonEntry], labels: Labels, annotations: Sequence[JsonEntry]
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
            and (name := labels[key]) is not None
            and (key in used or category.get("supercategory") != "none" or name not in parents)
        )
    )


def read_coco_image(
    entry: JsonEntry,
    what: str,
    by_image: Mapping[str, Mapping[str, JsonEntry]],
    labels: Labels,
    settings: ImportSettings,
) -> AnnotatedImage | None:
    """An image with its annotations; None, counted, without a name, an id, a file or a size."""
    name, key = coco_image_name(entry), id_text(entry.get("id"))
    if name is None or key is None:
        settings.counts.missing.add(name or what, NO_NAME if name is None else NO_ID)
        return None
    name, annotations = local_name(name, settings), by_image[key]
    path = name if settings.as_given else locate(name, settings)
    if path is None:
        return None
    stated = stated_size(entry) or mask_size(annotations.values())
    if stated is not None:
        checked_size(*stated, name)
    size = stated
    if size is None and not settings.as_given:
        size = upright_size(name, path, settings)
        if size is None:
            return None
    searched = searched_labels(entry, annotations.values(), labels)
    truth = ImageTruth()
    captions = entry.get("captions")  # in an export of pgcli, beside the boxes of the annotations
    for caption in captions if isinstance(captions, list) else ():
        if isinstance(caption, dict) and (text := read_caption(caption)) is not None:
            truth.texts.append(text)
    if entry.get("has_boxes") is False:
        truth.unread.add(None)
    exhaustive = None if settings.as_given else searched
    for place, annotation in annotations.items():
        where = f"{place} of {name}"
        add_annotation(annotation, where, labels, size, exhaustive, truth, settings.counts)
    row_id = entry.get("row_id")  # in an export of pgcli, if it is not the file's name
    return AnnotatedImage(
        row_id if isinstance(row_id, str) else name,
        path,
        *(size or (0, 0)),
        **vars(truth),
        is_stated=stated is not None,
        searched=searched,
    )


def add_annotation(
    annotation: JsonEntry,
    where: str,
    labels: Labels,
    size: PixelSize | None,
    exhaustive: frozenset[str] | None,
    truth: ImageTruth,
    counts: ImportCounts,
) -> None:
    """Add the box or text of an annotation; boxes of labels that are not `exhaustive` are skipped.

    Unreadable parts are counted.
    """
    text = read_caption(annotation)
    if "caption" in annotation and not has_shape(annotation):
        if text is None:
            counts.skip("captions without a text", where)
        else:
            truth.texts.append(text)
        if "bbox" in annotation or "segmentation" in annotation:
            truth.unread.add(labels.get(id_text(annotation.get("category_id")) or ""))
        return
    try:
        box, mask, area = read_annotation(annotation, where, labels, size, counts)
    except UnreadableError as problem:
        counts.skip(str(problem), where)
        truth.unread.add(labels.get(id_text(annotation.get("category_id")) or ""))
        if text is not None:
            counts.skip("texts of unread regions", where)
        return
    if text is not None:
        truth.texts.append(replace(text, region=box.corners))
    if not box.label:  # dense captions: other objects in the image are unknown
        truth.unread.add(None)
    elif exhaustive is not None and box.label not in exhaustive:
        counts.skip("boxes of labels without marks on all objects", where)
    elif annotation.get("iscrowd") not in NO_CROWD:
        truth.crowds.append(box)
    else:
        truth.boxes.append((box, mask))
        truth.areas.append(area)


def searched_labels(
    image: JsonEntry, annotations: Iterable[JsonEntry], labels: Labels
) -> frozenset[str] | None:
    """The labels for which LVIS marked all objects of an image, or none; None for other files.

    LVIS searched for the labels of the annotations and of the absent categories.
    """
    absent, partial = image.get("neg_category_ids"), image.get("not_exhaustive_category_ids")
    if not isinstance(absent, list):
        return None
    keys = {id_text(annotation.get("category_id")) for annotation in annotations}
    keys |= set(map(id_text, absent))
    keys -= set(map(id_text, partial if isinstance(partial, list) else ()))
    return frozenset(name for key in keys if (name := labels.get(key or "")) is not None)


def coco_image_name(image: JsonEntry) -> str | None:
    """The name of an image's file, or None."""
    name = image.get("file_name")
    if isinstance(name, str) and name:
        return encodable(name)
    for url in map(image.get, URLS):
        if isinstance(url, str) and (last := PurePosixPath(unquote(urlsplit(url).path)).name):
            return encodable(last)
    return None


def mask_size(annotations: Iterable[JsonEntry]) -> PixelSize | None:
    """The size in the run lengths of an image, or None."""
    for annotation in annotations:
        mask = annotation.get("segmentation")
        sides = mask.get("size") if isinstance(mask, dict) else None
        if isinstance(sides, list) and len(sides) == 2:
            return stated_size({"width": sides[1], "height": sides[0]})
    return None
