"""Reads YOLO's folder: images/, labels/ with a line for each box or polygon, and data.yaml."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pgcli.errors import UsageError
from pgcli.inputs.paths import display_path
from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.labels.json_values import InvalidValue, label, mapping, text, value_errors
from pgcli.labels.labelled_image import (
    LabelFormat,
    LabelledObject,
    Labels,
    LabelSettings,
    PixelSize,
)
from pgcli.labels.shapes import bounds, fill
from pgcli.labels.upright import place_image
from pgcli.records import Box, Fault
from pgcli.stores.files import open_regular
from pgcli.text import LFS_HINT, LFS_MESSAGE, decode_text, is_lfs_pointer

MAX_BYTES, MAX_NAMES_BYTES = 16 * 2**20, 2**20  # of a label file, and of data.yaml
NO_IMAGE = Fault("missing", "There is no image for this label file.")
CLASSES = "classes.txt"
#: Files with class names, of Ultralytics, FiftyOne, Label Studio, labelImg and Darknet.
NAME_FILES = ("data.yaml", "dataset.yaml", CLASSES, f"labels/{CLASSES}", "obj.names")
APPLE_DOUBLE = "._"  # starts the names of macOS's metadata files
LINE_HINT = "correct it there"
TOLERANCE = 0.01  # by which a fraction may exceed 0 and 1, as in Ultralytics


@dataclass(frozen=True)
class DataFile:
    """The class names in data.yaml, the number of keypoint values in a line of a pose (0 for other
    labels), and the prompt if pgcli exported the folder.
    """

    names: Sequence[str]
    keypoint_values: int = 0
    prompt: str | None = None


def read_yolo(file: Path, settings: LabelSettings) -> Labels:
    """The images below a folder, or below the folder of a data.yaml, by path. Raises UsageError."""
    folder = file if file.is_dir() else file.parent
    if not file.exists():
        raise UsageError(f"{file} does not exist", hint="name the folder that has data.yaml")
    data = read_data_file(file if file.is_file() else folder, settings)
    paths = [PurePosixPath(name) for name in names_below(folder)]
    names = [str(path) for path in paths if path.suffix.lower() in IMAGE_ENDINGS]
    label_files = LabelFiles(folder, data, [labels_path(name) for name in names])
    missing = {name for name in label_files.names if not label_files.exists(name)}
    unlabelled, known = set(map(stem_of, missing)), set(label_files.names)
    unused = {
        str(path): stem_of(path)
        for path in paths
        if path.suffix.lower() == ".txt" and path.name != CLASSES
        if ("labels" in path.parts[:-1] or stem_of(path) in unlabelled)
        if str(path) not in known
    }
    if names and missing == known:
        where = f"{names[0]} needs {label_files.names[0]}"
        more = f"; rename {min(unused)}" if unused else ""
        raise UsageError(f"no image in {file} has a label file", hint=f"{where}{more}")
    images, unused_stems = [], set(unused.values())
    on_disk = replace(settings, as_given=False)  # boxes are fractions of the images
    for name, label_file in zip(names, label_files.names, strict=True):
        image = place_image(name, on_disk, folder=folder)
        if image is None or image.size is None:
            continue
        objects = tuple(label_files.objects(label_file, image.size))
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


def labels_path(name: str) -> str:
    """The label file of an image: in labels/ instead of images/, or else beside the image."""
    return str(replace_images(name, "labels").with_suffix(".txt"))


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
    other_yaml = [] if file.is_file() else [*file.glob("*.yaml"), *file.glob("*.yml")]
    candidates += other_yaml if len(other_yaml) == 1 else []
    names_file = next((path for path in candidates if path.is_file()), None)
    hint = "--label cat --label dog, or --label-file FILE, names the classes"
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
        return DataFile(names, keypoint_values(document.get("kpt_shape")), prompt)


def read_text_inside(file: Path, max_bytes: int, root: str | None = None) -> str:
    """The text of a file, which must be inside the root. Raises OSError, ValueError, and
    UsageError for a Git LFS pointer.
    """
    with open_regular(file, root) as opened:
        data = opened.read(max_bytes + 1)
    if is_lfs_pointer(data):
        raise UsageError(f"{file} {LFS_MESSAGE}", hint=LFS_HINT)
    if len(data) > max_bytes:
        raise InvalidValue("it is too large")
    return decode_text(data)


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


def keypoint_values(shape: object) -> int:
    """The number of values that follow the box of a pose, by `kpt_shape`. Raises InvalidValue."""
    if not shape:
        return 0
    sides = shape if isinstance(shape, list) else []
    is_text = all(isinstance(side, str) for side in sides)  # aliases can nest lists without end
    if len(sides) != 2 or not is_text or not sides[0].isdecimal() or sides[1] not in ("2", "3"):
        raise InvalidValue("'kpt_shape' is not a number of keypoints and 2 or 3")
    return int(sides[0][:9]) * int(sides[1])


@dataclass(frozen=True)
class LabelFiles:
    """The label files below a folder, by their relative names."""

    folder: Path
    data: DataFile
    names: Sequence[str]

    def exists(self, name: str) -> bool:
        """Whether a label file exists."""
        return os.path.lexists(self.folder / name)

    def objects(self, name: str, size: PixelSize) -> Iterator[LabelledObject]:
        """The objects in a label file, none if it does not exist. Raises UsageError."""
        with value_errors(self.folder / name, hint=LINE_HINT):
            for where, numbers in self.lines(name):
                yield self.object(numbers, size, where)

    def lines(self, name: str) -> Iterator[tuple[str, list[float]]]:
        """The lines of a file that are not empty, as numbers. Raises InvalidValue."""
        if not self.exists(name):
            return
        try:
            content = read_text_inside(self.folder / name, MAX_BYTES, os.path.realpath(self.folder))
        except OSError as problem:
            raise InvalidValue(str(problem)) from problem
        for place, line in enumerate(content.splitlines(), start=1):
            if words := line.split():
                where = f"line {place}"
                yield where, [line_number(word, where) for word in words]

    def object(self, numbers: Sequence[float], size: PixelSize, where: str) -> LabelledObject:
        """The box of a line, with a mask for a polygon. Raises InvalidValue."""
        class_ = numbers[0]
        if class_ != int(class_) or not 0 <= class_ < len(self.data.names):
            raise InvalidValue(f"{where}: the class {class_:g} has no name")
        shape, confidence = self.split(numbers[1:], where)
        if outside := [x for x in shape if not is_fraction(x)]:
            raise InvalidValue(f"{where}: {outside[0]:g} is not a fraction of the image's side")
        if not is_fraction(confidence):
            raise InvalidValue(
                f"{where}: {confidence:g} is not a confidence, which precedes a track id"
            )
        score = min(max(confidence, 0.0), 1.0)
        name, mask = self.data.names[int(class_)], None
        if len(shape) == 4:
            left, top, right, bottom = (np.array(edges(shape)) * (*size, *size)).tolist()
            return LabelledObject(Box(name, left, top, right, bottom, score, score))
        polygon_n2 = np.array(shape).reshape(-1, 2) * size
        left, top, right, bottom = bounds([polygon_n2])
        is_box = np.isin(polygon_n2[:, 0], (left, right)) & np.isin(polygon_n2[:, 1], (top, bottom))
        if len(polygon_n2) != 4 or not is_box.all():
            mask = fill([polygon_n2], size, where)
        return LabelledObject(Box(name, left, top, right, bottom, score, score), mask)

    def split(self, numbers: Sequence[float], where: str) -> tuple[Sequence[float], float]:
        """The values of a line's box or polygon, and its confidence, 1 without one.

        A box may be followed by keypoints, a confidence and a track id, a polygon of four corners
        by a confidence. Raises InvalidValue.
        """
        count, pose = len(numbers), self.data.keypoint_values
        if pose and 0 <= count - 4 - pose <= 2:
            numbers = (*numbers[:4], *numbers[4 + pose :])
        elif count == 6 and not pose and not self.is_track(numbers, where):
            return numbers, 1.0
        if len(numbers) in (4, 5, 6):
            return numbers[:4], numbers[4] if len(numbers) > 4 else 1.0
        if not pose and count == 9:
            return numbers[:8], numbers[8]
        if not pose and count >= 6 and count % 2 == 0:
            return numbers, 1.0
        kinds = f"a box or a pose of {pose} more" if pose else "a box or a polygon"
        raise InvalidValue(f"{where}: {count} numbers after the class do not make {kinds}")

    def is_track(self, numbers: Sequence[float], where: str) -> bool:
        """Whether six numbers are a box, its confidence and a track id, or else a triangle.

        If they may be either, the other lines decide. Raises InvalidValue if they do not.
        """
        kind = kind_of_line(numbers) or self.known_kind
        if not kind:
            raise InvalidValue(
                f"{where}: 6 numbers are a box, its confidence and a track id, or a triangle"
            )
        return kind == "track"

    @cached_property
    def known_kind(self) -> str:
        """The kind of the lines in all files, `track` or `polygon`; empty if both or neither."""
        kinds = set()
        for name in self.names:
            with value_errors(self.folder / name, hint=LINE_HINT):
                kinds |= {kind_of_line(numbers[1:]) for _, numbers in self.lines(name)}
        kinds.discard("")
        return kinds.pop() if len(kinds) == 1 else ""


def line_number(word: str, where: str) -> float:
    """A word of a line as a finite number. Raises InvalidValue."""
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidValue(f"{where}: {word!r} is not a number")
    return number


def kind_of_line(numbers: Sequence[float]) -> str:
    """`track` for a box with or without a track id, `polygon`, or empty if it may be either."""
    if len(numbers) != 6:
        return "track" if len(numbers) < 6 else "polygon"
    _, _, width, height, confidence, track = numbers
    if track > 1 + TOLERANCE and track == int(track):
        return "track"
    is_box = all(map(is_fraction, edges(numbers))) and width > 0 and height > 0
    return "" if is_box and 0 <= confidence <= 1 and track in (0, 1) else "polygon"


def is_fraction(value: float) -> bool:
    """Whether the value is between 0 and 1, within the tolerance."""
    return -TOLERANCE <= value <= 1 + TOLERANCE


def edges(numbers: Sequence[float]) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a box from its centre and size."""
    x, y, width, height = numbers[:4]
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2
