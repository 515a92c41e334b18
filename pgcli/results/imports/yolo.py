"""Reads YOLO's folder: images/, labels/ with a line for each box or polygon, and data.yaml."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from pgcli.errors import UsageError
from pgcli.foreign_text import LFS_HINT, LFS_MESSAGE, decode_text, is_lfs_pointer
from pgcli.inputs.paths import display_path
from pgcli.inputs.readers import IMAGE_ENDINGS
from pgcli.records import Box, Fault
from pgcli.results.imports.json_values import InvalidValue, label, text, value_errors
from pgcli.results.imports.locate import locate, upright_size
from pgcli.results.imports.shapes import PixelSize, bounds, fill, inside
from pgcli.results.imports.truth import (
    AnnotatedImage,
    Annotations,
    BoxWithMask,
    ImportCounts,
    ImportSettings,
)
from pgcli.stores.files import open_regular

MAX_BYTES, MAX_NAMES_BYTES = 16 * 2**20, 2**20  # of a file of labels, and of data.yaml
NO_IMAGE = Fault("missing", "There is no image of this file of labels.")
CLASSES = "classes.txt"
#: What names the classes: files of Ultralytics, FiftyOne, Label Studio, labelImg and Darknet.
NAME_FILES = ("data.yaml", "dataset.yaml", CLASSES, f"labels/{CLASSES}", "obj.names")
APPLE_DOUBLE = "._"  # begins the names of files that macOS writes beside others
TOLERANCE = 0.01  # by which a fraction may exceed 0 and 1; that of Ultralytics


@dataclass(frozen=True)
class DataFile:
    """What data.yaml says: the labels of the classes in their order, how many numbers follow the
    box in a line of a pose, 0 where lines have no keypoints, and the prompt of an export of pgcli.
    """

    names: Sequence[str]
    keypoint_numbers: int = 0
    prompt: str | None = None


def read_yolo(file: Path, settings: ImportSettings) -> Annotations:
    """The images of the folder, or of the folder of a data.yaml, by path. Raises UsageError."""
    folder = file if file.is_dir() else file.parent
    if not file.exists():
        raise UsageError(f"{file} does not exist", hint="name the folder that has data.yaml")
    data = read_data_file(file if file.is_file() else folder, settings)
    names = files_below(folder, IMAGE_ENDINGS)
    labels = LabelFolder(folder, data, [labels_path(name) for name in names])
    label_files = {name for name in files_below(folder, {".txt"}) if is_labels(name)}
    images = []
    for name in names:
        path = locate(name, settings, folder)
        own = labels_path(name)
        label_files.discard(own)
        size = upright_size(name, path, settings) if path is not None else None
        if path is None or size is None:
            continue
        boxes, left_out = labels.boxes(own, size, settings.counts)
        images.append(AnnotatedImage(image_id(name), path, *size, boxes, left_out=left_out))
    for name in sorted(label_files):
        settings.counts.missing.add(name, NO_IMAGE)
    return Annotations(images, [*dict.fromkeys(data.names)], data.prompt, is_upright=True)


def files_below(folder: Path, endings: frozenset[str] | set[str]) -> list[str]:
    """The paths of files with these endings, relative to the folder, in code-point order."""
    paths = (
        os.path.relpath(os.path.join(parent, name), folder)  # noqa: PTH118 - of very many files
        for parent, _, names in os.walk(folder)
        for name in names
        if not name.startswith(APPLE_DOUBLE) and os.path.splitext(name)[1].lower() in endings  # noqa: PTH122 - of very many files
    )
    return sorted(paths)


def is_labels(name: str) -> bool:
    """Whether a text file is in a folder of labels, and not the one that names the classes."""
    path = PurePosixPath(name)
    return "labels" in path.parts[:-1] and path.name != CLASSES


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


def read_data_file(file: Path, settings: ImportSettings) -> DataFile:
    """What the file of the classes says, with the labels of the settings if there are any.

    Raises UsageError.
    """
    candidates = [file] if file.is_file() else [file / name for name in NAME_FILES]
    names_file = next((path for path in candidates if path.is_file()), None)
    hint = "--label cat --label dog, or --label-file FILE, names the classes"
    if names_file is None:
        if settings.labels:
            return DataFile(settings.labels)
        raise UsageError(f"{file} has none of {', '.join(NAME_FILES)}", hint=hint)
    try:
        content = read_text_inside(names_file, MAX_NAMES_BYTES)
        if names_file.suffix in (".txt", ".names"):
            document: Mapping[str, Any] = {"names": [n for n in content.splitlines() if n.strip()]}
        else:
            document = yaml_mapping(content)
        values = settings.labels or in_order(document.get("names"))
        names = [label(name, f"class {number}") for number, name in enumerate(values)]
    except (OSError, ValueError, RecursionError) as problem:
        raise UsageError(
            f"{names_file} does not name the classes: {problem}", hint=hint
        ) from problem
    with value_errors(names_file, hint="correct it there"):
        prompt = document.get("prompt")
        prompt = text(prompt, "prompt") if prompt and not settings.labels else None
        return DataFile(names, keypoint_numbers(document.get("kpt_shape")), prompt)


def read_text_inside(file: Path, max_bytes: int, root: str | None = None) -> str:
    """The text of a file, which has to be in the root. Raises OSError, ValueError, InvalidValue,
    and UsageError for a pointer of Git LFS.
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
        # all scalars are text, and the keys that copy other values are plain keys
        document = yaml.load(content, yaml.BaseLoader)
    except yaml.YAMLError as problem:
        raise InvalidValue(str(problem)) from problem
    if not isinstance(document, dict):
        raise InvalidValue("it has no 'names'")
    return document


def in_order(names: object) -> Sequence[object]:
    """A list of names, or a mapping of 0, 1, ... to names. Raises InvalidValue."""
    if names is None:
        raise InvalidValue("it has no 'names'")
    if isinstance(names, list):
        return names
    if isinstance(names, dict):
        keys = [str(number) for number in range(len(names))]
        if sorted(names) == sorted(keys):
            return [names[key] for key in keys]
    raise InvalidValue("'names' is neither a list nor a mapping of 0, 1 and so on")


def keypoint_numbers(shape: object) -> int:
    """How many numbers a pose has after its box, by `kpt_shape`. Raises InvalidValue."""
    if not shape:
        return 0
    sides = shape if isinstance(shape, list) else []
    if len(sides) != 2 or not str(sides[0]).isdecimal() or sides[1] not in ("2", "3"):
        raise InvalidValue("'kpt_shape' is not a number of keypoints and 2 or 3")
    return int(sides[0][:9]) * int(sides[1])


@dataclass(frozen=True)
class LabelFolder:
    """The files of labels of a folder, by their paths in it."""

    folder: Path
    data: DataFile
    files: Sequence[str]

    def boxes(
        self, name: str, size: PixelSize, counts: ImportCounts
    ) -> tuple[tuple[BoxWithMask, ...], frozenset[str]]:
        """The boxes of an image, none without a file, and the labels of those that were left out.

        Raises UsageError.
        """
        boxes, left_out = [], set()
        with label_errors(self.folder / name):
            for place, words in self.lines(name):
                box, mask = self.box(words, size, f"line {place}")
                if corners := inside(box.corners, size, counts, f"{name}, line {place}"):
                    boxes.append((box.moved(corners), mask))
                else:
                    left_out.add(box.label)
        return tuple(boxes), frozenset(left_out)

    def lines(self, name: str) -> Iterator[tuple[int, list[str]]]:
        """The lines of a file that are not empty, by number, as words. Raises InvalidValue."""
        if not os.path.lexists(self.folder / name):
            return
        content = read_text_inside(self.folder / name, MAX_BYTES, os.path.realpath(self.folder))
        for place, line in enumerate(content.splitlines(), start=1):
            if words := line.split():
                yield place, words

    def box(self, words: Sequence[str], size: PixelSize, what: str) -> BoxWithMask:
        """A box, or that of a polygon, of a pose or of a track. Raises InvalidValue."""
        numbers = line_numbers(words, what)
        place = numbers[0]
        if place != int(place) or not 0 <= place < len(self.data.names):
            raise InvalidValue(f"{what}: the class {words[0]} has no name")
        shape, confidence = self.split(numbers[1:], what)
        if outside := [x for x in shape if not -TOLERANCE <= x <= 1 + TOLERANCE]:
            raise InvalidValue(f"{what}: {outside[0]:g} is not a fraction of the image's side")
        if not -TOLERANCE <= confidence <= 1 + TOLERANCE:
            raise InvalidValue(
                f"{what}: {confidence:g} is not a confidence, which precedes the id of a track"
            )
        score = min(max(confidence, 0.0), 1.0)
        return shape_box(self.data.names[int(place)], np.array(shape), score, size, what)

    def split(self, numbers: Sequence[float], what: str) -> tuple[Sequence[float], float]:
        """The numbers of a line's box or polygon, and its confidence, 1 without one.

        A box may be followed by keypoints, by its confidence, and by that and the id of a track.
        Four corners may be followed by a confidence.
        """
        count = len(numbers)
        pose = self.data.keypoint_numbers
        if pose and 0 <= count - 4 - pose <= 2:
            numbers = (*numbers[:4], *numbers[4 + pose :])
            is_box = True
        else:
            is_box = count in (4, 5) or (count == 6 and (pose > 0 or self.is_track(numbers, what)))
        if is_box:
            return numbers[:4], numbers[4] if len(numbers) > 4 else 1.0
        if not pose and count == 9:
            return numbers[:8], numbers[8]
        if not pose and count >= 6 and count % 2 == 0:
            return numbers, 1.0
        kinds = f"a box, nor a pose of {pose} more" if pose else "a box nor of a polygon"
        raise InvalidValue(f"{what}: {count} numbers after the class are neither those of {kinds}")

    def is_track(self, numbers: Sequence[float], what: str) -> bool:
        """Whether six numbers are a box, its confidence and the id of a track, not a triangle.

        Where they may be both, other lines of the folder decide. Raises InvalidValue if none does.
        """
        kind = kind_of_six(numbers)
        if kind == "either" and not (kind := self.known_kind):
            raise InvalidValue(
                f"{what}: 6 numbers are a box, its confidence and the id of a track, or a triangle"
            )
        return kind == "track"

    @cached_property
    def known_kind(self) -> str:
        """The kind of the folder's lines, `track` or `polygon`; empty if it has both or neither."""
        kinds = set()
        for name in self.files:
            with label_errors(self.folder / name):
                for place, words in self.lines(name):
                    numbers = line_numbers(words, f"line {place}")[1:]
                    if len(numbers) == 6:
                        kinds.add(kind_of_six(numbers))
                    elif len(numbers) >= 4:
                        kinds.add("track" if len(numbers) < 6 else "polygon")
        kinds.discard("either")
        return kinds.pop() if len(kinds) == 1 else ""


@contextmanager
def label_errors(file: Path) -> Iterator[None]:
    """A block in which problems with a file of labels become a UsageError that names it."""
    try:
        yield
    except (OSError, ValueError) as problem:
        raise UsageError(f"{file}: {problem}", hint="correct it there") from problem


def line_numbers(words: Iterable[str], what: str) -> list[float]:
    """The words of a line as numbers. Raises InvalidValue."""
    numbers = []
    for word in words:
        try:
            number = float(word)
        except ValueError:
            raise InvalidValue(f"{what}: {word!r} is not a number") from None
        if not math.isfinite(number):
            raise InvalidValue(f"{what}: {word!r} is not a number")
        numbers.append(number)
    return numbers


def kind_of_six(numbers: Sequence[float]) -> str:
    """What six numbers after a class are: `track`, `polygon`, or `either`."""
    x, y, width, height, confidence, track = numbers
    if track != int(track):
        return "polygon"
    if track > 1 + TOLERANCE:
        return "track"
    is_inside = all(-TOLERANCE <= at <= 1 + TOLERANCE for at in edges(x, y, width, height))
    is_box = is_inside and width > 0 and height > 0 and 0 <= confidence <= 1
    return "either" if is_box and track >= 0 else "polygon"


def edges(x: float, y: float, width: float, height: float) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a box that is given by its centre."""
    return x - width / 2, y - height / 2, x + width / 2, y + height / 2


def shape_box(
    name: str, shape: np.ndarray, score: float, size: PixelSize, what: str
) -> BoxWithMask:
    """The box of four numbers, or of a polygon's points with its mask. Raises InvalidValue."""
    if len(shape) == 4:
        left, top, right, bottom = (np.array(edges(*shape)) * (*size, *size)).tolist()
        return Box(name, left, top, right, bottom, score, score), None
    polygon_n2 = shape.reshape(-1, 2) * size
    left, top, right, bottom = bounds([polygon_n2])
    is_box = np.isin(polygon_n2[:, 0], (left, right)) & np.isin(polygon_n2[:, 1], (top, bottom))
    mask = None if len(polygon_n2) == 4 and is_box.all() else fill([polygon_n2], size, what)
    return Box(name, left, top, right, bottom, score, score), mask
