"""Annotated images, as the readers of annotation formats return them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from pgcli.images.formats import ImageHeader
from pgcli.records import Box, Fault, Region, Rle

#: A box in pixels of the upright image, and its mask or None. `score` and `confidence` are 1, or
#: the values of a model's box that a person kept.
BoxWithMask = tuple[Box, Rle | None]


@dataclass(frozen=True, slots=True)
class TrueText:
    """A text about an image or one `region`; `prompt` is None if the file has no prompt."""

    text: str
    prompt: str | None = None
    region: Region | None = None


@dataclass
class ImageTruth:
    """The regions and texts of one image, as a format's reader collects them.

    `areas` has the area of each box's object in square pixels, None if the file does not state it.
    `crowds` are boxes around several objects that were not marked one by one. `unread` has the
    label of each region that could not be read, None for a region without a label.
    """

    boxes: list[BoxWithMask] = field(default_factory=list)
    areas: list[float | None] = field(default_factory=list)
    crowds: list[Box] = field(default_factory=list)
    texts: list[TrueText] = field(default_factory=list)
    unread: set[str | None] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class AnnotatedImage:
    """An image of an annotation file: its id, its file or URL, its size and its truth.

    The size is the stated one, or the upright size of the file if none `is_stated`. `searched` are
    the labels that annotators looked for in this image, None for all labels of the file. `prompt`
    belongs to the boxes or texts. If not `says_boxes`, the objects of the image are unknown.
    `header` belongs to the image file; without one, `fault` says why the file cannot be read. The
    other fields are explained in `ImageTruth`.
    """

    id: str
    image: str
    width: int
    height: int
    boxes: Sequence[BoxWithMask] = ()
    areas: Sequence[float | None] = ()
    crowds: Sequence[Box] = ()
    texts: Sequence[TrueText] = ()
    unread: Set[str | None] = frozenset()
    is_stated: bool = True
    searched: frozenset[str] | None = None
    prompt: str | None = None
    says_boxes: bool = True
    header: ImageHeader | None = None
    fault: Fault | None = None

    def is_unread(self, label: str | None = None) -> bool:
        """Whether the image has unread regions and no box, or none with the label if given.

        The content of such an image is unknown.
        """
        labels = {box.label for box, _ in self.boxes}
        unread = {*self.unread, *(crowd.label for crowd in self.crowds)}
        if label is None:
            return bool(unread) and not labels
        return label not in labels and not unread.isdisjoint((None, label))


@dataclass
class SkippedImages:
    """The number of unreadable images, and a description of the first one."""

    count: int = 0
    first: str = ""

    def add(self, image: str, fault: Fault) -> None:
        """Count one more."""
        self.count += 1
        name = image if image.strip() else repr(image)
        self.first = self.first or f"{name}: {fault.message}"


@dataclass
class ImportCounts:
    """The skipped entries: for each kind, their number and the name of the first one.

    `missing` counts images that cannot be read or have no name.
    """

    skipped: dict[str, tuple[int, str]] = field(default_factory=dict)
    missing: SkippedImages = field(default_factory=SkippedImages)
    notes: list[str] = field(default_factory=list)

    def skip(self, kind: str, name: str) -> None:
        """Count an entry of a kind, which starts with a plural: `boxes without a label`.

        `name` identifies the entry: `annotation 3 of a.png`.
        """
        count, first = self.skipped.get(kind, (0, name))
        self.skipped[kind] = count + 1, first

    @property
    def kinds(self) -> list[tuple[int, str]]:
        """The number of each kind with its words, for `wording.with_notes`."""
        return [
            (count, f"{kind} skipped (first: {first})")
            for kind, (count, first) in self.skipped.items()
        ]


@dataclass(frozen=True)
class ImportSettings:
    """How to find images: names are relative to `root`, which must contain the images.

    `image_prefix` precedes names in Label Studio; `labels` name YOLO's classes. With `as_given`,
    boxes are not clipped and images are not located.
    """

    root: Path
    image_prefix: str | None = None
    labels: Sequence[str] = ()
    as_given: bool = False
    counts: ImportCounts = field(default_factory=ImportCounts)


@dataclass(frozen=True)
class Annotations:
    """The images of a file, and the labels of its boxes in order, empty if it has texts only.

    `prompt` belongs to its boxes, if pgcli exported the file. With `is_upright`, the format has
    boxes of upright images; with `swaps_sides`, the tool states stored sizes for such boxes.
    `unread` are the other columns of a table, one of which may have the prompts.
    """

    images: Sequence[AnnotatedImage]
    labels: Sequence[str] = ()
    prompt: str | None = None
    is_upright: bool = False
    swaps_sides: bool = False
    unread: Sequence[str] = ()

    @property
    def image_count(self) -> int:
        """The number of images; a table may have several rows of an image."""
        return len({image.id for image in self.images})

    @property
    def absent(self) -> SkippedImages:
        """The images with a stated size and a missing or unreadable file."""
        absent = SkippedImages()
        for id_, fault in {image.id: image.fault for image in self.images}.items():
            if fault is not None:
                absent.add(id_, fault)
        return absent


@runtime_checkable
class ReadAnnotations(Protocol):
    """An import format: a function that reads the annotations in a file or a folder.

    Boxes are in pixels of the stored image, or of the upright image if the annotations are
    `is_upright`. Unreadable entries are counted in `settings.counts`. Raises UsageError for a file
    in another format.
    """

    def __call__(self, file: Path, settings: ImportSettings) -> Annotations: ...
