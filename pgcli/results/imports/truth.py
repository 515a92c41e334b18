"""Images with what people say is in them, as they are read from annotation tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from pgcli.images.formats import ImageHeader
from pgcli.records import Box, Fault, Region, Rle
from pgcli.results.images import MissingImages

#: A box in pixels of the upright image, and its mask if there is one. Its `score` and `confidence`
#: are those of a model's box that a person has left in the file, else 1.
BoxWithMask = tuple[Box, Rle | None]


@dataclass(frozen=True, slots=True)
class TrueText:
    """A text about an image or a `region` of it; `prompt` is None where the file has none."""

    text: str
    prompt: str | None = None
    region: Region | None = None


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """An image of an annotation file: its id, its file or address, its size, and its truth.

    `crowds` are regions of many objects that are not marked one by one. `areas` has the area of the
    object in each box, in square pixels, None where the file does not state it. `left_out` are the
    labels of regions that could not be read, None for one without: the image has objects of them.
    The size is the one that the file states; if that is not `is_stated`, it is that of the upright
    image.
    `searched` are the labels that were looked for, None for all of the file.
    `prompt` is that of its boxes or texts, where the file says it. Without `says_boxes`, nothing is
    known of its objects. `header` is that of the image's file; `fault` says why it has none, though
    its size is stated.
    """

    id: str
    image: str
    width: int
    height: int
    boxes: tuple[BoxWithMask, ...] = ()
    texts: tuple[TrueText, ...] = ()
    crowds: tuple[Box, ...] = ()
    left_out: frozenset[str | None] = frozenset()
    is_stated: bool = True
    searched: frozenset[str] | None = None
    prompt: str | None = None
    says_boxes: bool = True
    header: ImageHeader | None = None
    fault: Fault | None = None
    areas: tuple[float | None, ...] = ()

    def is_unread(self, label: str | None = None) -> bool:
        """Whether regions were left out and no box is there; with a label, regions and boxes of it.

        What is in such an image is not known.
        """
        labels = {box.label for box, _ in self.boxes}
        unread = self.left_out | {crowd.label for crowd in self.crowds}
        if label is None:
            return bool(unread) and not labels
        return label not in labels and not unread.isdisjoint((None, label))


@dataclass
class ImportCounts:
    """What was left out: entries by kind, each kind with its number and the name of its first one.

    `missing` images have no truth, as they cannot be read or named.
    """

    left_out: dict[str, tuple[int, str]] = field(default_factory=dict)
    missing: MissingImages = field(default_factory=MissingImages)
    notes: list[str] = field(default_factory=list)

    def leave_out(self, kind: str, name: str) -> None:
        """Count one more of a kind, which begins with a plural: `crowds`, `boxes without a label`.

        `name` says which one it is, as `annotation 3 of a.png` does.
        """
        count, first = self.left_out.get(kind, (0, name))
        self.left_out[kind] = count + 1, first

    @property
    def kinds(self) -> list[tuple[int, str]]:
        """The number of each kind with its words, as `wording.note` takes them."""
        return [
            (count, f"{kind} left out (first: {first})")
            for kind, (count, first) in self.left_out.items()
        ]


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

    `prompt` is that of its boxes, where an export of pgcli says it. With `is_upright`, the format
    has boxes of upright images; with `swaps_sides`, the tool states stored sizes for such boxes.
    """

    images: Sequence[AnnotatedImage]
    labels: Sequence[str] = ()
    prompt: str | None = None
    is_upright: bool = False
    swaps_sides: bool = False

    @property
    def image_count(self) -> int:
        """The number of images; those of a table may have several rows."""
        return len({image.id for image in self.images})

    @property
    def absent(self) -> MissingImages:
        """The images whose size is stated, and whose file is not there or cannot be read."""
        absent = MissingImages()
        for id_, fault in {image.id: image.fault for image in self.images}.items():
            if fault is not None:
                absent.add(id_, fault)
        return absent


@runtime_checkable
class ReadAnnotations(Protocol):
    """An import format: a function that reads the annotations in a file or a folder.

    Boxes are in pixels of the image as the file has it, or of the upright image if the annotations
    are `is_upright`. Entries that cannot be read are counted in `settings.counts`. It raises
    UsageError for a file that is not of the format.
    """

    def __call__(self, file: Path, settings: ImportSettings) -> Annotations: ...
