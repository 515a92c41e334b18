"""Images with what people say is in them, as they are read from annotation tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pgcli.records import Rle
from pgcli.results.images import MissingImages


@dataclass(frozen=True, slots=True)
class TrueBox:
    """A labelled box in pixels of the upright image, and its mask if there is one.

    `score` and `confidence` are those of a model's box that a person has left in the file, else 1.
    `area` is that of the object, in square pixels, where the file says it.
    """

    label: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    mask: Rle | None = None
    score: float = 1.0
    confidence: float = 1.0
    area: float | None = None


@dataclass(frozen=True, slots=True)
class TrueText:
    """A text about an image; `prompt` is None where the file has none."""

    text: str
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """An image of an annotation file: its id, its file or address, its size, and its truth.

    `crowds` are regions of many objects that are not marked one by one.
    """

    id: str
    image: str
    width: int
    height: int
    boxes: tuple[TrueBox, ...] = ()
    texts: tuple[TrueText, ...] = ()
    crowds: tuple[TrueBox, ...] = ()


@dataclass
class ImportCounts:
    """What was left out. `outside` boxes have no area in their image, `others` are regions of kinds
    that are not boxes or masks. `missing` images have no truth, as they cannot be read or named.
    """

    outside: int = 0
    crowds: int = 0
    others: int = 0
    open: int = 0
    missing: MissingImages = field(default_factory=MissingImages)
    absent: MissingImages = field(default_factory=MissingImages)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class ImportSettings:
    """How images are named: `root` is the folder that names are relative to, and that images have
    to be in; `image_prefix` precedes them in Label Studio. `labels` name YOLO's classes.

    With `as_given`, boxes are not cut off at the edges of images, and images are not located.
    """

    root: Path
    image_prefix: str | None = None
    labels: Sequence[str] = ()
    as_given: bool = False
    counts: ImportCounts = field(default_factory=ImportCounts)


@dataclass(frozen=True)
class Annotations:
    """The images of a file, and the labels of its boxes in their order; none for texts only.

    `prompt` is that of its boxes, where an export of pgcli says it.
    """

    images: Sequence[AnnotatedImage]
    labels: Sequence[str] = ()
    prompt: str | None = None


#: Reads a file; raises UsageError.
ReadAnnotations = Callable[[Path, ImportSettings], Annotations]
