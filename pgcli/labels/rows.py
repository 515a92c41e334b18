"""Rows of truth: what labels say, as rows that a model could have answered."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.inputs.options import REGION
from pgcli.inputs.paths import display_path
from pgcli.labels.labelled_image import LabelledImage, Labels, LeftOut
from pgcli.parsing import detection_text
from pgcli.records import Answer, DecodedImage, Item, Mask, Region, Task, unanswered
from pgcli.rows import RowSchema
from pgcli.stores.urls import url_scheme
from pgcli.text import one_of

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
