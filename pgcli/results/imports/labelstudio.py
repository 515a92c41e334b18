"""Reads Label Studio's JSON export: boxes, polygons and texts of annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

import numpy as np

from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.results.imports.coco import share
from pgcli.results.imports.json_values import (
    InvalidValue,
    array,
    label,
    mapping,
    number,
    read_document,
    text,
    value_errors,
)
from pgcli.results.imports.locate import locate, upright_size
from pgcli.results.imports.shapes import Size, bounds, clipped, fill, image_size
from pgcli.results.imports.truth import (
    AnnotatedImage,
    Annotations,
    ImportCounts,
    ImportSettings,
    TrueBox,
    TrueText,
)

MAX_BYTES = 512 * 2**20
HINT = "export the project as JSON, not as JSON-MIN"
#: What the server puts before the names of local and of uploaded files.
LOCAL_FILES = "/data/local-files/?d="
UPLOADED = re.compile(r"/data/upload/(?:\d+/)?(?:[0-9a-f]{8}-)?")
REGIONS = ("rectanglelabels", "polygonlabels")
Value = Mapping[str, Any]


def read(file: Path, settings: ImportSettings) -> Annotations:
    """The images of the tasks that were annotated. Raises UsageError.

    Where no task has annotations, as in what `pgcli export` writes, predictions are taken.
    """
    document = read_document(file, MAX_BYTES, hint=HINT)
    with value_errors(file, hint=HINT):
        tasks = [
            mapping(value, f"task {place}")
            for place, value in enumerate(array(document, "the file"), start=1)
        ]
        key = "annotations" if any(task.get("annotations") for task in tasks) else "predictions"
        if key == "predictions" and any(task.get(key) for task in tasks):
            settings.counts.notes.append("no task has annotations: predictions are taken")
        read_one = [read_task(n, task, key, settings) for n, task in enumerate(tasks, start=1)]
    images = [image for image in read_one if image is not None]
    labels = {box.label: None for image in images for box in image.boxes}
    return Annotations(images, sorted(labels))


def read_task(place: int, task: Value, key: str, settings: ImportSettings) -> AnnotatedImage | None:
    """The image of a task; None, counted, without annotation or size. Raises InvalidValue."""
    what = f"task {place}"
    results = chosen_results(task, key, what)
    if results is None:
        settings.counts.leave_out("tasks that nobody annotated", what)
        return None
    data = mapping(task.get("data"), f"{what}: data")
    name = image_name(image_address(data, what), settings.image_prefix)
    path = locate(name, settings)
    if path is None:
        return None
    size = stated_size(results, what) or upright_size(name, path, settings)
    if size is None:
        return None
    boxes: list[TrueBox] = []
    texts: list[TrueText] = []
    left_out: set[str | None] = set()
    for result in results:
        boxes += result_boxes(result, size, what, settings.counts, left_out)
        texts += result_texts(result, what)
    own_id = data.get("id")
    id_ = text(own_id, f"{what}: id") if isinstance(own_id, str) and own_id else name
    return AnnotatedImage(
        id_, path, *size, tuple(boxes), tuple(texts), left_out=frozenset(left_out)
    )


def chosen_results(task: Value, key: str, what: str) -> Sequence[Value] | None:
    """The results of the ground truth or else of the latest annotation, of all predictions; None
    for a task that was not annotated. Raises InvalidValue.
    """
    values = array(task.get(key) or [], f"{what}: {key}")
    annotations = [mapping(value, f"{what}: {key}") for value in values]
    annotations = [value for value in annotations if not value.get("was_cancelled")]
    if not annotations:
        return None
    if key == "annotations":
        annotations = [
            max(
                annotations,
                key=lambda value: (value.get("ground_truth") is True, str(value.get("updated_at"))),
            )
        ]
    return [
        mapping(result, f"{what}: result")
        for annotation in annotations
        for result in array(annotation.get("result"), f"{what}: result")
    ]


def image_address(data: Value, what: str) -> str:
    """The address of a task's image: `image`, or else the only value that names one."""
    if "image" in data:
        return text(data["image"], f"{what}: image")
    names = [
        value
        for value in data.values()
        if isinstance(value, str) and PurePosixPath(value).suffix.lower() in IMAGE_ENDINGS
    ]
    if len(names) != 1:
        raise InvalidValue(f"{what} has no image in its data")
    return text(names[0], what)


def image_name(address: str, prefix: str | None) -> str:
    """The name of an image without what Label Studio, or the export, put before it."""
    if prefix is not None and address.startswith(prefix):
        return unquote(address.removeprefix(prefix))
    if address.startswith(LOCAL_FILES):
        return unquote(address.removeprefix(LOCAL_FILES))
    if match := UPLOADED.match(address):
        return unquote(address[match.end() :])
    return address


def stated_size(results: Sequence[Value], what: str) -> Size | None:
    """The size that the regions state; None without regions. Raises InvalidValue."""
    for result in results:
        if result.get("original_width") is not None:
            return image_size(result["original_width"], result.get("original_height"), what)
    return None


def result_texts(result: Value, what: str) -> Iterator[TrueText]:
    """The texts and choices of a result. Raises InvalidValue."""
    kind = result.get("type")
    if kind not in ("textarea", "choices"):
        return
    value = mapping(result.get("value"), f"{what}: value").get(
        "text" if kind == "textarea" else kind
    )
    for entry in [value] if isinstance(value, str) else array(value, f"{what}: {kind}"):
        yield TrueText(text(entry, f"{what}: {kind}").strip())


def result_boxes(
    result: Value, size: Size, what: str, counts: ImportCounts, left_out: set[str | None]
) -> Iterator[TrueBox]:
    """A box for each label of a region; other kinds are counted, and their labels added to
    `left_out`. Raises InvalidValue.
    """
    kind = result.get("type")
    if kind in ("textarea", "choices"):
        return
    value = mapping(result.get("value") or {}, f"{what}: value")
    is_turned = bool(result.get("image_rotation") or value.get("rotation"))
    names = array(value.get(str(kind)), f"{what}: {kind}") if kind in REGIONS else []
    if is_turned or not names:
        counts.leave_out("regions of other kinds", what)
        left_out.add(None)
        return
    box = region(str(kind), value, size, what)
    for name in names:
        score = share(result.get("score"))
        corners = (box.xmin, box.ymin, box.xmax, box.ymax)
        named = TrueBox(label(name, f"{what}: {kind}"), *corners, box.mask, score, score)
        if clipped_box := clipped(named, size, counts, what):
            yield clipped_box
        else:
            left_out.add(named.label)


def region(kind: str, value: Value, size: Size, what: str) -> TrueBox:
    """The box and the mask of a region. Raises InvalidValue."""
    if kind == "polygonlabels":
        polygon_n2 = percent_points(value.get("points"), what) / 100 * size
        return TrueBox("", *bounds([polygon_n2]), fill([polygon_n2], size, what))
    sides = [number(value.get(name), f"{what}: {name}") for name in ("x", "y", "width", "height")]
    x, y, across, down = (np.array(sides) / 100 * (*size, *size)).tolist()
    return TrueBox("", x, y, x + across, y + down)


def percent_points(value: object, what: str) -> np.ndarray:
    """The points of a polygon, (n, 2). Raises InvalidValue."""
    pairs = [array(pair, f"{what}: points") for pair in array(value, f"{what}: points")]
    if len(pairs) < 3 or any(len(pair) != 2 for pair in pairs):
        raise InvalidValue(f"{what}: points is not a polygon of three points or more")
    return np.array([[number(x, f"{what}: points") for x in pair] for pair in pairs])
