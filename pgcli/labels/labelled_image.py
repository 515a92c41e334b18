"""An image with its labels, as every reader returns it, the count of what is left out, and the rows
of truth that an import writes.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from pgcli.boxes import box_area
from pgcli.errors import UsageError
from pgcli.images.formats import ImageHeader
from pgcli.inputs.options import REGION
from pgcli.inputs.paths import display_path
from pgcli.parsing import boxes as parse_boxes
from pgcli.parsing import detection_text, has_locations, text_spans
from pgcli.records import (
    Answer,
    Box,
    DecodedImage,
    Fault,
    Item,
    Mask,
    Region,
    Rle,
    Task,
    unanswered,
)
from pgcli.rows import RowSchema
from pgcli.stores.urls import url_scheme
from pgcli.text import one_of

CAPTION = "caption en"
PixelSize = tuple[int, int]  # width, height


class LabelledObject(NamedTuple):
    """An object in an image: its box in pixels, its mask, and its area in square pixels if stated.

    The label of the box may be empty. A crowd is a box around several objects that were not marked
    one by one: neither right nor wrong.
    """

    box: Box
    mask: Rle | None = None
    area: float | None = None
    is_crowd: bool = False

    @property
    def object_area(self) -> float:
        """The stated area, else the area of the box."""
        return box_area(self.box) if self.area is None else self.area


@dataclass(frozen=True, slots=True)
class LabelledImage:
    """What a source says about an image: the answers to a prompt, or its objects.

    `objects` is None where the source says nothing about objects. `image` is the file, or the URL.
    `size` is the stated width and height, None if not stated; of an upright image its own.
    `region` is the part of the image that the answers are about, `columns` are other values.
    `unread` has the label of each object that could not be read, None for one without a label.
    `header` belongs to the image file; without one, `fault` says why the file cannot be read.
    """

    id: str = ""
    image: str = ""
    prompt: str | None = None
    answers: tuple[str, ...] = ()
    objects: tuple[LabelledObject, ...] | None = None
    size: PixelSize | None = None
    region: Region | None = None
    columns: Mapping[str, Any] = field(default_factory=dict)
    unread: frozenset[str | None] = frozenset()
    header: ImageHeader | None = None
    fault: Fault | None = None

    @property
    def boxes(self) -> tuple[Box, ...] | None:
        """The boxes of the objects without crowds; None where objects are unknown."""
        objects = self.objects
        return None if objects is None else tuple(o.box for o in objects if not o.is_crowd)

    @property
    def masks(self) -> tuple[Rle | None, ...] | None:
        """The masks of the boxes; None where there are boxes, but no mask."""
        masks = tuple(o.mask for o in self.objects or () if not o.is_crowd)
        return None if self.objects is None or (masks and not any(masks)) else masks

    @property
    def box_text(self) -> str | None:
        """The answer that may have boxes: the most frequent one; None where objects are known."""
        if self.objects is not None or not self.answers:
            return None
        return Counter(self.answers).most_common(1)[0][0]

    @property
    def has_pixels(self) -> bool:
        """Whether there is something in pixels."""
        return bool(self.objects or self.region)

    def of_labels(self, labels: Iterable[str]) -> LabelledImage:
        """The image with the objects of these labels only."""
        if self.objects is None:
            return self
        known = {*labels}
        return replace(self, objects=tuple(o for o in self.objects if o.box.label in known))

    def is_unread(self, label: str | None = None) -> bool:
        """Whether objects were not read, and no box was, or none with the label if given.

        The content of such an image is unknown.
        """
        labels = {box.label for box in self.boxes or ()}
        if label is None:
            return bool(self.unread) and not labels
        return label not in labels and not self.unread.isdisjoint((None, label))


def objects_of(
    boxes: Iterable[Box], masks: Iterable[Rle | None] = ()
) -> tuple[LabelledObject, ...]:
    """Objects with these boxes and their masks."""
    return tuple(LabelledObject(box, mask) for box, mask in zip_longest(boxes, masks))


def with_location_objects(image: LabelledImage, size: PixelSize | None) -> LabelledImage:
    """The image with the objects that location tokens in its answer are about, if any.

    Without a size, boxes are fractions and areas are NaN.
    """
    text = image.box_text
    if text is None or not has_locations(text):
        return image
    width, height = size or (1, 1)
    boxes = parse_boxes(text_spans(text), width=width, height=height)
    area = None if size else math.nan
    return replace(image, objects=tuple(LabelledObject(box, area=area) for box in boxes))


def merged(images: Sequence[LabelledImage]) -> tuple[LabelledImage, int]:
    """What rows say about one image and prompt: all answers and objects; and how many repeat.

    An object that an earlier row has too is kept once.
    """
    if len(images) == 1:
        return images[0], 0
    known: set[tuple[str, Region]] = set()
    objects: list[LabelledObject] = []
    repeated = 0
    for image in images:
        keys = [(o.box.label, o.box.corners) for o in image.objects or ()]
        new = [o for o, key in zip(image.objects or (), keys, strict=True) if key not in known]
        repeated += len(keys) - len(new)
        known.update(keys)
        objects += new
    are_known = any(image.objects is not None for image in images)
    return replace(
        images[0],
        answers=tuple(text for image in images for text in image.answers),
        objects=tuple(objects) if are_known else None,
        size=next((image.size for image in images if image.size), None),
        columns=merged_columns([image.columns for image in images]),
        unread=frozenset().union(*(image.unread for image in images)),
    ), repeated


def merged_columns(columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of all; different values become a tuple."""
    values: dict[str, dict[Any, None]] = {}
    for own in columns:
        for name, value in own.items():
            values.setdefault(name, {})[value] = None
    return {name: tuple(own) if len(own) > 1 else next(iter(own)) for name, own in values.items()}


@dataclass
class LeftOut:
    """The count of what is left out: for each kind, its number and the first one.

    `notes` are other remarks about the source. `images` cannot be read or have no name, `absent`
    ones cannot be read either, but their size is stated.
    """

    kinds: dict[str, tuple[int, str]] = field(default_factory=dict)
    images: tuple[int, str] = (0, "")
    absent: tuple[int, str] = (0, "")
    notes: list[str] = field(default_factory=list)

    def skip(self, kind: str, name: str) -> None:
        """Count an entry of a kind, which starts with a plural: `boxes without a label`.

        `name` identifies the entry: `annotation 3 of a.png`.
        """
        count, first = self.kinds.get(kind, (0, name))
        self.kinds[kind] = count + 1, first

    def skip_image(self, name: str, fault: Fault) -> None:
        """Count an image that cannot be read."""
        count, first = self.images
        self.images = count + 1, first or fault_text(name, fault)

    def miss(self, name: str, fault: Fault) -> None:
        """Count an image with a stated size that cannot be read."""
        count, first = self.absent
        self.absent = count + 1, first or fault_text(name, fault)


def fault_text(name: str, fault: Fault) -> str:
    """The fault of an image with its name."""
    return f"{name if name.strip() else repr(name)}: {fault.message}"


@dataclass(frozen=True)
class LabelSettings:
    """How to find images: names are relative to `root`, which must contain the images.

    `image_prefix` precedes names in Label Studio; `labels` name YOLO's classes. With `as_given`,
    boxes are not clipped and images are not located.
    """

    root: Path
    image_prefix: str | None = None
    labels: Sequence[str] = ()
    as_given: bool = False
    counts: LeftOut = field(default_factory=LeftOut)


@dataclass(frozen=True)
class Labels:
    """The labelled images of a source, in its order: of each image its objects, then its texts.

    `labels` are the labels of a prompt in order, None for those that the objects have. `prompt`
    belongs to the boxes, if pgcli exported the source. `columns` of a table were not read, and may
    have the prompts. A row of a table may have objects and texts.
    """

    images: Iterable[LabelledImage]
    labels: Sequence[str] | None = None
    prompt: str | None = None
    columns: Sequence[str] = ()
    is_table: bool = False

    def by_id(self) -> Iterator[list[LabelledImage]]:
        """The records of each image."""
        groups: dict[str, list[LabelledImage]] = {}
        for image in self.images:
            groups.setdefault(image.id, []).append(image)
        yield from groups.values()

    def asked(self, prompt: str | None = None, *, each: bool = False) -> Iterator[LabelledImage]:
        """The records with prompts, those of an image together.

        If the source has labels, an image with known objects has the prompt of the source or a
        prompt with all labels, or with `each` a record per label; none if its content is unknown.
        `prompt` replaces all prompts.
        """
        for image in (image for group in self.by_id() for image in group):
            if image.objects is None:
                if image.answers:
                    yield replace(image, prompt=prompt or image.prompt or CAPTION)
                continue
            own = None if each else image.prompt or self.prompt
            labels = self.labels or ()
            groups: Sequence[Sequence[str]] = [[name] for name in labels] if each else [labels]
            for names in groups if labels or image.prompt or self.prompt else ():
                if not image.is_unread(names[0] if each else None):
                    asked = prompt or own or f"detect {' ; '.join(names)}"
                    yield replace(image.of_labels(names), prompt=asked)


class LabelFormat(NamedTuple):
    """A format of labels: a function that reads a file or a folder, and one that recognizes it.

    Objects are in pixels of the image as its `size` states it: stored or upright. What cannot be
    read is counted in `settings.counts`. `read` raises UsageError for another format. `import`
    names the format; `train` and `eval` use it for what it recognizes.
    """

    read: Callable[[Path, LabelSettings], Labels]
    recognizes: Callable[[Path], bool] = lambda file: False


TRUTH = "truth"  # in place of the model's name


def check_ids(labels: Labels, prompt: str | None = None) -> None:
    """Raise UsageError for two images of one id, and for two rows of one prompt.

    Rows of a table without a prompt may answer the prompts of a column that was not read.
    """
    known: set[tuple[str, str | None]] = set()
    paths: dict[str, str] = {}
    asked = set[tuple[str, Region | None]]()
    for image in labels.images:
        if (first := paths.setdefault(image.id, image.image)) != image.image:
            names = f"{display_path(first)} and {display_path(image.image)}"
            raise UsageError(
                f"two images have the id {image.id!r}: {names}", hint="give each its own id"
            )
        if image.objects is not None:
            if (image.id, image.prompt) in known:
                raise UsageError(
                    f"the image {image.id!r} occurs twice", hint="remove one of the two"
                )
            known.add((image.id, image.prompt))
        elif labels.columns and prompt is None and image.prompt is None:
            if (image.id, image.region) in asked:
                columns = one_of([*map(repr, labels.columns)])
                raise UsageError(
                    f"several rows of {image.id!r} have no prompt",
                    hint=f"rename the column of the prompts, perhaps {columns}, to 'prompt'; "
                    "<--prompt TEXT> is the prompt of all rows",
                )
            asked.add((image.id, image.region))


def skipped(labels: Labels, counts: LeftOut) -> list[tuple[int, str]]:
    """The numbers and kinds of what is left out, for `wording.with_notes`."""
    unread = sum(image.objects is not None and image.is_unread() for image in labels.images)
    return [
        *(
            (count, f"{kind} skipped (first: {first})")
            for kind, (count, first) in counts.kinds.items()
        ),
        (unread, "images without a row of boxes: no region was read as one"),
        (counts.images[0], "images skipped"),
    ]


@dataclass(frozen=True)
class TruthRows:
    """The rows of labels, which can be read several times.

    Paths inside `folder`, the output's, are relative to it. The other fields are explained in
    `Labels.asked`.
    """

    labels: Labels
    folder: Path
    prompt: str | None = None
    each: bool = False

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        has_masks = any(o.mask for image in self.labels.images for o in image.objects or ())
        has_regions = any(image.region for image in self.labels.images)
        return RowSchema(
            extras=("masks",) if has_masks else (), keep=(REGION,) if has_regions else ()
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        schema, numbers = self.schema, dict[str, int]()
        root = os.path.realpath(self.folder)
        for image in self.labels.images:
            numbers.setdefault(image.id, len(numbers))
        for image in self.labels.asked(self.prompt, each=self.each):
            for answer in answers_of(numbers[image.id], image, relative_path(image.image, root)):
                yield schema.row(answer)


def relative_path(image: str, root: str) -> str:
    """The path of an image relative to the folder `root` if it is in it; a URL unchanged."""
    if url_scheme(image):
        return image
    is_inside = image.startswith(root.rstrip("/") + "/")
    return display_path(os.path.relpath(image, root) if is_inside else image)


def answers_of(index: int, image: LabelledImage, path: str) -> Iterator[Answer]:
    """The row of an image's boxes, with the text that a model would give, or a row of each text."""
    prompt, (width, height) = image.prompt or "", image.size or (0, 0)
    decoded = DecodedImage(Item(index, image.id, path), width, height, None, 0.0)
    task: Task = "caption" if prompt.startswith("caption") else "ask"
    task = task if image.objects is None else "detect"
    row = replace(unanswered(decoded, prompt, task=task, model=TRUTH), load_ms=None)
    if image.objects is None:
        kept = {REGION: image.region and list(image.region)}
        yield from (replace(row, answer=text, kept=kept) for text in image.answers)
        return
    boxes = image.boxes or ()
    masks = tuple(Mask((), o.mask) if o.mask else None for o in image.objects)
    text = detection_text(boxes, width=width, height=height)
    yield replace(row, answer=text, boxes=boxes, masks=masks)
