"""Reads COCO: images, annotations with boxes, polygons, masks or captions, and categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from pgcli.labelled_rows import stated_size
from pgcli.printable import encodable
from pgcli.records import Box, Fault
from pgcli.results.imports.coco_annotations import (
    JsonEntry,
    UnreadableError,
    has_shape,
    read_annotation,
    read_caption,
    with_shares,
)
from pgcli.results.imports.json_values import (
    InvalidValue,
    array,
    id_text,
    label,
    mapping,
    read_document,
    unique_ids,
    value_errors,
)
from pgcli.results.imports.locate import local_name, locate, upright_size
from pgcli.results.imports.shapes import PixelSize, checked_size
from pgcli.results.imports.truth import (
    AnnotatedImage,
    Annotations,
    BoxWithMask,
    ImportSettings,
    TrueText,
)

MAX_BYTES = 512 * 2**20
HINT = "name a JSON file with 'images' and 'annotations'"
#: What names an image: the addresses, whose last part is the file's name, where LVIS has no name.
URLS = ("coco_url", "flickr_url")
NO_NAME = Fault("missing", "It has neither a file_name nor an address.")
NO_ID = Fault("missing", "It has no id.")
NO_CROWD = (None, 0, "0", "")
#: The contributor whose sizes are those of stored images, and boxes those of upright ones.
SWAPS_SIDES = "Label Studio"


def read_coco(file: Path, settings: ImportSettings) -> Annotations:
    """The images of the file, in its order. Raises UsageError."""
    document = read_document(file, MAX_BYTES, hint=HINT)
    with value_errors(file, hint=f"correct it there, or {HINT}"):
        return read_images(mapping(document, "the file"), settings)


def read_images(document: JsonEntry, settings: ImportSettings) -> Annotations:
    """The images of the document, whose odd entries are counted. Raises InvalidValue."""
    categories = entries(document.get("categories") or [], "categories", "category")
    images = entries(document.get("images"), "images", "image")
    if "annotations" not in document:
        raise InvalidValue("it has no 'annotations', and says nothing about its images")
    annotations = entries(document["annotations"], "annotations", "annotation")
    annotations = annotations if settings.as_given else with_shares(annotations)
    labels = labels_by_category(categories)
    own: dict[str, list[tuple[int, JsonEntry]]] = {
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
        if (image := read_coco_image(entry, f"image {place}", own, labels, settings)) is None:
            continue
        if (first := known.setdefault(image.id, (place, image))[0]) != place:
            raise InvalidValue(f"image {first} and image {place} have the same name: {image.id}")
    # of captions alone, no image says that nothing is there
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


def labels_by_category(categories: Sequence[JsonEntry]) -> dict[str, str | None]:
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


def prompt_categories(
    categories: Sequence[JsonEntry],
    labels: Mapping[str, str | None],
    annotations: Sequence[JsonEntry],
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


def read_coco_image(
    image: JsonEntry,
    what: str,
    own: Mapping[str, Sequence[tuple[int, JsonEntry]]],
    labels: Mapping[str, str | None],
    settings: ImportSettings,
) -> AnnotatedImage | None:
    """An image with its annotations; None, counted, without a name, an id, a file or a size."""
    counts, key = settings.counts, id_text(image.get("id"))
    name = coco_image_name(image)
    if name is None or key is None:
        counts.missing.add(what if name is None else name, NO_NAME if name is None else NO_ID)
        return None
    name = local_name(name, settings)
    path = name if settings.as_given else locate(name, settings)
    if path is None:
        return None
    stated = stated_size(image) or mask_size(own[key])
    if stated is not None:
        checked_size(*stated, name)
    size = stated
    if stated is None and not settings.as_given:
        size = upright_size(name, path, settings)
        if size is None:
            return None
    boxes: list[BoxWithMask] = []
    areas: list[float | None] = []
    crowds: list[Box] = []
    texts = own_texts(image)
    left_out: set[str | None] = {None} if image.get("has_boxes") is False else set()
    searched = searched_labels(image, own[key], labels)
    for place, annotation in own[key]:
        where = f"annotation {place} of {name}"
        text = read_caption(annotation)
        if "caption" in annotation and not has_shape(annotation):
            if text is None:
                counts.leave_out("captions without a text", where)
            else:
                texts.append(text)
            continue
        try:
            box, mask, area = read_annotation(annotation, where, labels, size, counts)
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
            if not settings.as_given and searched is not None and box.label not in searched:
                counts.leave_out("boxes of labels whose objects are not all marked", where)
            elif annotation.get("iscrowd") not in NO_CROWD:
                crowds.append(box)
            else:
                boxes.append((box, mask))
                areas.append(area)
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
        areas=tuple(areas),
    )


def searched_labels(
    image: JsonEntry,
    annotations: Sequence[tuple[int, JsonEntry]],
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


def own_texts(image: JsonEntry) -> list[TrueText]:
    """The texts that an export of pgcli has in the image, beside the boxes of its annotations."""
    captions = image.get("captions")
    listed = captions if isinstance(captions, list) else ()
    texts = (read_caption(caption) for caption in listed if isinstance(caption, dict))
    return [text for text in texts if text is not None]


def coco_image_name(image: JsonEntry) -> str | None:
    """The name of an image's file; None without one."""
    name = image.get("file_name")
    if isinstance(name, str) and name:
        return encodable(name)
    for url in map(image.get, URLS):
        if isinstance(url, str) and (last := PurePosixPath(unquote(urlsplit(url).path)).name):
            return encodable(last)
    return None


def mask_size(annotations: Sequence[tuple[int, JsonEntry]]) -> PixelSize | None:
    """The size that the run lengths of an image state; None without any."""
    for _, annotation in annotations:
        mask = annotation.get("segmentation")
        sides = mask.get("size") if isinstance(mask, dict) else None
        if isinstance(sides, list) and len(sides) == 2:
            return stated_size({"width": sides[1], "height": sides[0]})
    return None
