"""Reads YOLO's folder: images/, labels/ with a line for each box or polygon, and data.yaml."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from pgcli.errors import UsageError
from pgcli.inputs.paths import display_path
from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.records import Fault
from pgcli.results.imports.json_values import InvalidValue, label
from pgcli.results.imports.locate import locate, upright_size
from pgcli.results.imports.shapes import Size, bounds, clipped, fill
from pgcli.results.imports.truth import (
    AnnotatedImage,
    Annotations,
    ImportCounts,
    ImportSettings,
    TrueBox,
)
from pgcli.stores.files import open_regular

MAX_BYTES, MAX_NAMES_BYTES = 16 * 2**20, 2**20  # of a file of labels, and of data.yaml
NO_IMAGE = Fault("missing", "There is no image of this file of labels.")


def read(file: Path, settings: ImportSettings) -> Annotations:
    """The images of the folder, or of the folder of a data.yaml, by path. Raises UsageError."""
    folder = file if file.is_dir() else file.parent
    if not file.exists():
        raise UsageError(f"{file} does not exist", hint="name the folder that has data.yaml")
    names = read_names(file if file.is_file() else folder, settings)
    label_files = {name for name in files_below(folder, {".txt"}) if is_labels(name)}
    images = []
    for name in files_below(folder, IMAGE_ENDINGS):
        path = locate(name, settings, folder)
        own = labels_path(name)
        label_files.discard(own)
        size = upright_size(name, path, settings) if path is not None else None
        if path is None or size is None:
            continue
        left_out: set[str | None] = set()
        boxes = read_boxes(folder, own, names, size, settings.counts, left_out)
        images.append(
            AnnotatedImage(image_id(name), path, *size, boxes, left_out=frozenset(left_out))
        )
    for name in sorted(label_files):
        settings.counts.missing.add(name, NO_IMAGE)
    return Annotations(images, list(dict.fromkeys(names)))


def files_below(folder: Path, endings: frozenset[str] | set[str]) -> list[str]:
    """The paths of files with these endings, relative to the folder, in code-point order."""
    paths = (
        os.path.relpath(os.path.join(parent, name), folder)  # noqa: PTH118 - of very many files
        for parent, _, names in os.walk(folder)
        for name in names
        if os.path.splitext(name)[1].lower() in endings  # noqa: PTH122 - of very many files
    )
    return sorted(paths)


def is_labels(name: str) -> bool:
    """Whether a text file is in a folder of labels."""
    return "labels" in PurePosixPath(name).parts[:-1]


def labels_path(name: str) -> str:
    """The file of an image's labels: in labels/ instead of images/, else beside the image."""
    return str(replace_images(name, "labels").with_suffix(".txt"))


def image_id(name: str) -> str:
    """The path of an image without the folder images/."""
    return display_path(str(replace_images(name)))


def replace_images(name: str, *new: str) -> PurePosixPath:
    """The path with its last folder `images` replaced."""
    parts = PurePosixPath(name).parts
    last = max((n for n, part in enumerate(parts[:-1]) if part == "images"), default=None)
    return PurePosixPath(*(parts if last is None else (*parts[:last], *new, *parts[last + 1 :])))


def read_names(file: Path, settings: ImportSettings) -> list[str]:
    """The labels of the classes in their order. Raises UsageError."""
    if settings.labels:
        return list(settings.labels)
    candidates = [file] if file.is_file() else [file / "data.yaml", file / "classes.txt"]
    names_file = next((path for path in candidates if path.is_file()), None)
    hint = "--labels A,B or --labels FILE names the classes"
    if names_file is None:
        raise UsageError(f"{file} has neither data.yaml nor classes.txt", hint=hint)
    try:
        with open_regular(names_file) as opened:
            data = opened.read(MAX_NAMES_BYTES + 1)
        if len(data) > MAX_NAMES_BYTES:
            raise InvalidValue("it is too large")
        content = data.decode()
        if names_file.suffix == ".txt":
            names: object = [line for line in content.splitlines() if line.strip()]
        else:
            names = yaml_names(content)
        return [label(name, f"class {number}") for number, name in enumerate(in_order(names))]
    except (OSError, ValueError, RecursionError, InvalidValue) as problem:
        raise UsageError(
            f"{names_file} does not name the classes: {problem}", hint=hint
        ) from problem


def yaml_names(content: str) -> object:
    """The `names` of data.yaml. Raises InvalidValue."""
    import yaml  # type: ignore[import-untyped]

    try:
        # all scalars are text, and the keys that copy other values are plain keys
        document = yaml.load(content, yaml.BaseLoader)
    except yaml.YAMLError as problem:
        raise InvalidValue(str(problem)) from problem
    if not isinstance(document, dict) or "names" not in document:
        raise InvalidValue("it has no 'names'")
    return document["names"]


def in_order(names: object) -> Sequence[object]:
    """A list of names, or a mapping of 0, 1, ... to names. Raises InvalidValue."""
    if isinstance(names, list):
        return names
    if isinstance(names, dict):
        keys = [str(number) for number in range(len(names))]
        if sorted(names) == sorted(keys):
            return [names[key] for key in keys]
    raise InvalidValue("'names' is neither a list nor a mapping of 0, 1 and so on")


def read_boxes(
    folder: Path,
    name: str,
    names: Sequence[str],
    size: Size,
    counts: ImportCounts,
    left_out: set[str | None],
) -> tuple[TrueBox, ...]:
    """The boxes of an image; none without a file. Labels of others are added to `left_out`.

    Raises UsageError.
    """
    file = folder / name
    if not os.path.lexists(file):
        return ()
    try:
        with open_regular(file, os.path.realpath(folder)) as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise InvalidValue("it is too large")
        boxes = []
        for what, box in parsed_lines(data.decode(), names, size):
            if clipped_box := clipped(box, size, counts, f"{name}, {what}"):
                boxes.append(clipped_box)
            else:
                left_out.add(box.label)
        return tuple(boxes)
    except (OSError, ValueError, InvalidValue) as problem:
        raise UsageError(f"{file}: {problem}", hint="correct it there") from problem


def parsed_lines(content: str, names: Sequence[str], size: Size) -> Iterator[tuple[str, TrueBox]]:
    """The boxes of a file of labels, each with its line. Raises InvalidValue."""
    for place, line in enumerate(content.splitlines(), start=1):
        if not (words := line.split()):
            continue
        what = f"line {place}"
        try:
            numbers = np.array([float(word) for word in words[1:]])
        except ValueError:
            raise InvalidValue(f"{what} does not have numbers") from None
        if not np.isfinite(numbers).all() or (abs(numbers) > 1e6).any():
            raise InvalidValue(f"{what} has a number that is not a fraction")
        if not words[0].isascii() or not words[0].isdigit() or not int(words[0][:9]) < len(names):
            raise InvalidValue(f"{what} has a class without a name")
        yield what, parsed_box(names[int(words[0])], numbers, size, what)


def parsed_box(name: str, numbers: np.ndarray, size: Size, what: str) -> TrueBox:
    """A box of four numbers, with a fifth for its confidence, or of a polygon's points."""
    if len(numbers) in (4, 5):
        x, y, width, height = numbers[:4]
        corners = (
            np.array([[x - width / 2, y - height / 2], [x + width / 2, y + height / 2]]) * size
        )
        score = min(max(float(numbers[4]), 0.0), 1.0) if len(numbers) == 5 else 1.0
        left, top, right, bottom = corners.ravel().tolist()
        return TrueBox(name, left, top, right, bottom, None, score, score)
    if len(numbers) < 6 or len(numbers) % 2:
        raise InvalidValue(f"{what} has neither a box nor a polygon")
    polygon_n2 = numbers.reshape(-1, 2) * size
    left, top, right, bottom = bounds([polygon_n2])
    is_box = np.isin(polygon_n2[:, 0], (left, right)) & np.isin(polygon_n2[:, 1], (top, bottom))
    mask = None if len(polygon_n2) == 4 and is_box.all() else fill([polygon_n2], size, what)
    return TrueBox(name, left, top, right, bottom, mask)
