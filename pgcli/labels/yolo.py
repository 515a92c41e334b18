"""Reads YOLO's folder: images/, labels/ with a line for each box or polygon, and data.yaml."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pgcli.errors import UsageError
from pgcli.inputs.options import IMAGE_ENDINGS
from pgcli.inputs.paths import display_path
from pgcli.labels.json_values import (
    InvalidValue,
    label,
    mapping,
    read_text_inside,
    text,
    value_errors,
)
from pgcli.labels.labelled_image import (
    LabelFormat,
    LabelledObject,
    Labels,
    LabelSettings,
    PixelSize,
)
from pgcli.labels.upright import bounds, fill, place_image
from pgcli.records import Box, Fault

MAX_BYTES, MAX_NAMES_BYTES = 16 * 2**20, 2**20  # of a label file, and of data.yaml
NO_IMAGE = Fault("missing", "There is no image for this label file.")
CLASSES = "classes.txt"
NAME_FILES = ("data.yaml", CLASSES)  # with the class names, in a folder
APPLE_DOUBLE = "._"  # starts the names of macOS's metadata files
TOLERANCE = 0.01  # by which a fraction may exceed 0 and 1, as in Ultralytics


@dataclass(frozen=True)
class DataFile:
    """The class names in data.yaml, and the prompt if pgcli exported the folder."""

    names: Sequence[str]
    prompt: str | None = None


def read_yolo(file: Path, settings: LabelSettings) -> Labels:
    """The images below a folder, or below the folder of a data.yaml, by path. Raises UsageError."""
    folder = file if file.is_dir() else file.parent
    if not file.exists():
        raise UsageError(f"{file} does not exist", hint="name the folder that has data.yaml")
    data = read_data_file(file if file.is_file() else folder, settings)
    paths = [PurePosixPath(name) for name in names_below(folder)]
    names = [str(path) for path in paths if path.suffix.lower() in IMAGE_ENDINGS]
    # in labels/ instead of images/, or else beside the image
    label_files = {name: str(replace_images(name, "labels").with_suffix(".txt")) for name in names}
    known = set(label_files.values())
    missing = {name for name in known if not os.path.lexists(folder / name)}
    unlabelled = set(map(stem_of, missing))
    unused = {
        str(path): stem_of(path)
        for path in paths
        if path.suffix.lower() == ".txt" and path.name != CLASSES
        if ("labels" in path.parts[:-1] or stem_of(path) in unlabelled)
        if str(path) not in known
    }
    if names and missing == known:
        where = f"{names[0]} needs {label_files[names[0]]}"
        more = f"; rename {min(unused)}" if unused else ""
        raise UsageError(f"no image in {file} has a label file", hint=f"{where}{more}")
    images, unused_stems = [], set(unused.values())
    on_disk = replace(settings, as_given=False)  # boxes are fractions of the images
    for name, label_file in label_files.items():
        image = place_image(name, on_disk, folder=folder)
        if image is None or image.size is None:
            continue
        objects = tuple(read_objects(folder / label_file, folder, data, image.size))
        is_unknown = label_file in missing and stem_of(name) in unused_stems
        unread = frozenset({None}) if is_unknown else frozenset[str | None]()
        id_ = display_path(str(replace_images(name)))
        images.append(replace(image, id=id_, objects=objects, unread=unread))
    for name in sorted(unused):
        settings.counts.skip_image(name, NO_IMAGE)
    return Labels(images, [*dict.fromkeys(data.names)], data.prompt)


def is_yolo(file: Path) -> bool:
    """Whether a folder has a data.yaml."""
    return file.is_dir() and (file / "data.yaml").is_file()


YOLO = LabelFormat(read_yolo, is_yolo)


def stem_of(name: str | PurePosixPath) -> str:
    """The file name up to the first dot, to find label files in other folders or in other case."""
    return PurePosixPath(name).name.casefold().partition(".")[0]


def names_below(folder: Path) -> list[str]:
    """The paths of the images and texts below the folder, relative to it, in code-point order."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)  # noqa: PTH118 - Path is slow
        for parent, _, names in os.walk(folder)
        for name in names
        if not name.startswith(APPLE_DOUBLE)
    )


def replace_images(name: str, *new: str) -> PurePosixPath:
    """The path with its last folder `images` replaced."""
    parts = PurePosixPath(name).parts
    last = max((n for n, part in enumerate(parts[:-1]) if part == "images"), default=None)
    return PurePosixPath(*(parts if last is None else (*parts[:last], *new, *parts[last + 1 :])))


def read_data_file(file: Path, settings: LabelSettings) -> DataFile:
    """The content of the file with the class names, or of the one in a folder.

    Labels in the settings replace the names. Raises UsageError.
    """
    candidates = [file] if file.is_file() else [file / name for name in NAME_FILES]
    names_file = next((path for path in candidates if path.is_file()), None)
    hint = "name the YAML file itself, or the classes with --label cat --label dog"
    if names_file is None:
        if settings.labels:
            return DataFile(settings.labels)
        raise UsageError(f"{file} has none of {', '.join(NAME_FILES)}", hint=hint)
    try:
        content = read_text_inside(names_file, MAX_NAMES_BYTES)
        if names_file.suffix in (".txt", ".names"):
            document: Mapping[str, Any] = {"names": content.rstrip().splitlines()}
        else:
            document = yaml_mapping(content)
        values = settings.labels or ordered_names(document.get("names"))
        names = [label(name, f"class {number}") for number, name in enumerate(values)]
    except (OSError, ValueError, RecursionError) as problem:
        raise UsageError(
            f"{names_file} has no valid class names: {problem}", hint=hint
        ) from problem
    with value_errors(names_file, hint="correct it there"):
        prompt = document.get("prompt")
        prompt = text(prompt, "prompt") if prompt and not settings.labels else None
        if document.get("kpt_shape"):
            raise InvalidValue("'kpt_shape' names keypoints, and pgcli reads boxes and polygons")
        return DataFile(names, prompt)


def yaml_mapping(content: str) -> Mapping[str, Any]:
    """The values of data.yaml. Raises InvalidValue."""
    import yaml  # type: ignore[import-untyped]

    try:
        document = yaml.load(content, yaml.BaseLoader)  # makes texts, and resolves no merge keys
    except yaml.YAMLError as problem:
        raise InvalidValue(str(problem)) from problem
    return mapping(document, "the file")


def ordered_names(value: object) -> Sequence[object]:
    """The names in a list, or in a mapping from 0, 1, ... to names. Raises InvalidValue."""
    if isinstance(value, dict):
        keys = [str(number) for number in range(len(value))]
        if sorted(value) == sorted(keys):
            return [value[key] for key in keys]
    elif isinstance(value, list):
        return value
    raise InvalidValue(
        "it has no 'names'"
        if value is None
        else "'names' is neither a list nor a mapping from 0, 1 and so on"
    )


def read_objects(
    file: Path, folder: Path, data: DataFile, size: PixelSize
) -> Iterator[LabelledObject]:
    """The objects in a label file, none if it does not exist. Raises UsageError."""
    if not os.path.lexists(file):
        return
    with value_errors(file, hint="correct it there"):
        try:
            content = read_text_inside(file, MAX_BYTES, os.path.realpath(folder))
        except OSError as problem:
            raise InvalidValue(str(problem)) from problem
        for place, line in enumerate(content.splitlines(), start=1):
            if words := line.split():
                where = f"line {place}"
                numbers = [line_number(word, where) for word in words]
                yield object_of_line(numbers, data, size, where)


def object_of_line(
    numbers: Sequence[float], data: DataFile, size: PixelSize, where: str
) -> LabelledObject:
    """The box of a line, with a mask for a polygon. Raises InvalidValue."""
    class_ = numbers[0]
    if class_ != int(class_) or not 0 <= class_ < len(data.names):
        raise InvalidValue(f"{where}: the class {class_:g} has no name")
    shape, confidence = split_line(numbers[1:], where)
    if outside := [x for x in shape if not is_fraction(x)]:
        raise InvalidValue(f"{where}: {outside[0]:g} is not a fraction of the image's side")
    if not is_fraction(confidence):
        raise InvalidValue(f"{where}: {confidence:g} is not a confidence")
    score = min(max(confidence, 0.0), 1.0)
    name, mask = data.names[int(class_)], None
    if len(shape) == 4:
        left, top, right, bottom = (np.array(edges(shape)) * (*size, *size)).tolist()
        return LabelledObject(Box(name, left, top, right, bottom, score, score))
    polygon_n2 = np.array(shape).reshape(-1, 2) * size
    left, top, right, bottom = bounds([polygon_n2])
    is_box = np.isin(polygon_n2[:, 0], (left, right)) & np.isin(polygon_n2[:, 1], (top, bottom))
    if len(polygon_n2) != 4 or not is_box.all():
        mask = fill([polygon_n2], size, where)
    return LabelledObject(Box(name, left, top, right, bottom, score, score), mask)


def split_line(numbers: Sequence[float], where: str) -> tuple[Sequence[float], float]:
    """The values of a line's box or polygon, and its confidence, 1 without one.

    A box and a polygon of four corners may have a confidence. Raises InvalidValue.
    """
    count = len(numbers)
    if count in (5, 9):
        return numbers[:-1], numbers[-1]
    if count == 6 and may_be_track(numbers):
        raise InvalidValue(
            f"{where}: 6 numbers are a triangle, or a box with its confidence and a track id: "
            "remove the track ids"
        )
    if count >= 4 and count % 2 == 0:
        return numbers, 1.0
    raise InvalidValue(f"{where}: {count} numbers after the class do not make a box or a polygon")


def may_be_track(numbers: Sequence[float]) -> bool:
    """Whether six numbers may be a box, its confidence and a track id."""
    _, _, width, height, confidence, track = numbers
    is_box = all(map(is_fraction, edges(numbers))) and width > 0 and height > 0
    return is_box and 0 <= confidence <= 1 and track == int(track)


def line_number(word: str, where: str) -> float:
    """A word of a line as a finite number. Raises InvalidValue."""
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidValue(f"{where}: {word!r} is not a number")
    return number


def is_fraction(value: float) -> bool:
    """Whether the value is between 0 and 1, within the tolerance."""
    return -TOLERANCE <= value <= 1 + TOLERANCE


def edges(numbers: Sequence[float]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a box from its centre and size."""
    x, y, width, height = numbers[:4]
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2
