"""Reads Label Studio's JSON export: tasks with their images and annotations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.labels.columns import are_fractions
from pgcli.labels.json_values import (
    InvalidValue,
    array,
    mapping,
    read_document,
    text,
    value_errors,
)
from pgcli.labels.labelled_image import (
    AnnotatedImage,
    Annotations,
    ImageTruth,
    ImportSettings,
)
from pgcli.labels.labelstudio_regions import (
    RegionResults,
    add_region,
    group_regions,
)
from pgcli.labels.locate import locate, upright_size
from pgcli.labels.shapes import PixelSize, checked_size

MAX_BYTES = 512 * 2**20
HINT = "export the project as JSON, not as JSON-MIN or CSV"

#: In exports of pgcli: False in the data of a task without a row of boxes.
HAS_BOXES = "has_boxes"
#: In exports of pgcli: the only prompt of the rows with boxes, and of the other rows.
PROMPT, TEXT_PROMPT = "prompt", "text_prompt"
#: Label Studio's prefixes of local and uploaded files.
LOCAL_FILES = "/data/local-files/?d="
UPLOADED = re.compile(r"/data/upload/(?:\d+/)?(?:[0-9a-f]{8}-)?")
Value = Mapping[str, Any]


def read_label_studio(file: Path, settings: ImportSettings) -> Annotations:
    """The images of the annotated tasks. Raises UsageError.

    If no task has annotations, as in exports of pgcli, predictions are read.
    """
    document = read_document(file, MAX_BYTES, hint=HINT)
    counts = settings.counts
    with value_errors(file, hint=HINT):
        tasks = [
            mapping(value, f"task {place}")
            for place, value in enumerate(array(document, "the file"), start=1)
        ]
    with value_errors(file, hint="correct it in Label Studio, and export the project again"):
        key = "annotations" if any(task.get("annotations") for task in tasks) else "predictions"
        if key == "predictions" and any(task.get(key) for task in tasks):
            counts.notes.append("no task has annotations: predictions are read")
        regions = [task_regions(task, key, f"task {n}") for n, task in enumerate(tasks, start=1)]
        check_percentages(region for group in regions for region in group or ())
        read_one = [
            read_task(task, own, f"task {n}", settings)
            for n, (task, own) in enumerate(zip(tasks, regions, strict=True), start=1)
        ]
    images = [image for image in read_one if image is not None]
    labels = {box.label: None for image in images for box, _ in image.boxes}
    return Annotations(images, sorted(labels))


def check_percentages(regions: Iterable[RegionResults]) -> None:
    """Raise InvalidValue if all rectangles are fractions."""
    values = (value for region in regions for value in region.values)
    places = ([value.get(name) for name in ("x", "y", "width", "height")] for value in values)
    numbers = ([side for side in place if isinstance(side, int | float)] for place in places)
    boxes = [place for place in numbers if len(place) == 4]
    if boxes and are_fractions(boxes):
        raise InvalidValue("the regions are fractions of the image, not percentages")


def read_task(
    task: Value,
    regions: Sequence[RegionResults] | None,
    what: str,
    settings: ImportSettings,
) -> AnnotatedImage | None:
    """The image of a task; None, counted, without an annotation or size. Raises InvalidValue."""
    if regions is None:
        settings.counts.skip("tasks without annotations", what)
        return None
    data = mapping(task.get("data"), f"{what}: data")
    name = label_studio_image_name(image_address(data, what), settings.image_prefix)
    path = locate(name, settings)
    if path is None:
        return None
    stated = region_size(regions, what)
    size = stated or upright_size(name, path, settings)
    if size is None:
        return None
    truth = ImageTruth()
    if data.get(HAS_BOXES) is False and not task.get("annotations"):  # pgcli's
        truth.unread.add(None)
    for region in regions:
        add_region(region, size, truth, settings.counts)
    own_id, prompt, text_prompt = (
        text(value, what) if isinstance(value := data.get(key), str) and value.strip() else None
        for key in ("id", PROMPT, TEXT_PROMPT)
    )
    truth.texts = [replace(entry, prompt=text_prompt) for entry in truth.texts]
    return AnnotatedImage(
        own_id or name,
        path,
        *size,
        **vars(truth),
        is_stated=stated is not None,
        prompt=prompt,
    )


def task_regions(task: Value, key: str, what: str) -> list[RegionResults] | None:
    """The regions of the ground truth or the latest annotation, or of all predictions.

    None for a task without annotations. Raises InvalidValue.
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
    regions = []
    for annotation in annotations:
        results = array(annotation.get("result"), f"{what}: result")
        regions += group_regions([mapping(value, f"{what}: result") for value in results], what)
    inside = [result for region in regions if region.is_in_image for result in region.results]
    names = (result.get("to_name") for result in inside)
    images = sorted({name for name in names if isinstance(name, str)})
    if len(images) > 1:
        raise InvalidValue(f"{what} has regions of several images: {', '.join(images)}")
    return regions


def image_address(data: Value, what: str) -> str:
    """The URL of a task's image: `image`, or else the only value that names an image."""
    if "image" in data:
        return text(data["image"], f"{what}: image")
    names = [
        value
        for value in data.values()
        if isinstance(value, str)
        and any(
            PurePosixPath(name).suffix.lower() in IMAGE_ENDINGS
            for name in (value, without_query(value))
        )
    ]
    if len(names) != 1:
        several = f"{len(names)} images in its data, and none is called 'image'"
        raise InvalidValue(f"{what} has {several if names else 'no image in its data'}")
    return text(names[0], what)


def label_studio_image_name(address: str, prefix: str | None) -> str:
    """The name of an image without the prefix of Label Studio or of the export."""
    if prefix is not None and address.startswith(prefix):
        return unquote(without_query(address.removeprefix(prefix)))
    if address.startswith(LOCAL_FILES):
        return unquote(address.removeprefix(LOCAL_FILES))
    if match := UPLOADED.match(address):
        return unquote(without_query(address[match.end() :]))
    return address


def without_query(address: str) -> str:
    """The path in a URL of a local file, or the URL without its query."""
    return address.removeprefix(LOCAL_FILES).partition("?")[0]


def region_size(regions: Sequence[RegionResults], what: str) -> PixelSize | None:
    """The size in the regions, or None. Raises InvalidValue, also for several sizes."""
    sizes = {
        checked_size(result["original_width"], result.get("original_height"), what): None
        for region in regions
        for result in region.results
        if result.get("original_width") is not None
    }
    if len(sizes) > 1:
        words = " and ".join(f"{width} x {height}" for width, height in sizes)
        raise InvalidValue(f"{what} states several sizes of its image: {words}")
    return next(iter(sizes), None)
