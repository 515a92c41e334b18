"""Rows of truth: what an annotation file says, as rows that a model could have answered."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.inputs.options import REGION
from pgcli.inputs.paths import display_path
from pgcli.labels.labelled_image import AnnotatedImage, Annotations, BoxWithMask, ImportCounts
from pgcli.parsing import detection_text
from pgcli.records import Answer, DecodedImage, Item, Mask, Region, Task, unanswered
from pgcli.rows import RowSchema
from pgcli.stores.urls import url_scheme
from pgcli.wording import one_of

TRUTH = "truth"  # in place of the model's name
CAPTION = "caption en"


@dataclass(frozen=True)
class TruthRows:
    """The rows of annotations, which can be read several times.

    If the file has boxes, each image has a row of boxes, which may be empty, with the prompt of the
    file or else a prompt with all labels, or with `each` a row per label. If all boxes of an image
    were skipped, it has no such row, because its content is unknown. Each text is a row. `prompt`
    replaces all prompts. Paths inside `folder`, the output's, are relative to it.
    """

    annotations: Annotations
    folder: Path
    prompt: str | None = None
    each: bool = False

    def check_ids(self) -> None:
        """Raise UsageError for two images of one id, and for two rows of one prompt.

        Rows of a table without a prompt may answer the prompts of an unread column.
        """
        known: set[tuple[str, str | None]] = set()
        paths: dict[str, str] = {}
        asked = set[tuple[str, Region | None]]()
        for image in self.annotations.images:
            if (first := paths.setdefault(image.id, image.image)) != image.image:
                names = f"{display_path(first)} and {display_path(image.image)}"
                raise UsageError(
                    f"two images have the id {image.id!r}: {names}", hint="give each its own id"
                )
            if not image.says_boxes:
                if self.annotations.unread and self.prompt is None:
                    self._check_prompt(image, asked)
                continue
            if (image.id, image.prompt) in known:
                raise UsageError(
                    f"the image {image.id!r} occurs twice", hint="remove one of the two"
                )
            known.add((image.id, image.prompt))

    def _check_prompt(self, image: AnnotatedImage, asked: set[tuple[str, Region | None]]) -> None:
        """Raise UsageError for the second row with texts about an image but without a prompt."""
        keys = {(image.id, text.region) for text in image.texts if text.prompt is None}
        if not asked.isdisjoint(keys):
            columns = one_of([*map(repr, self.annotations.unread)])
            raise UsageError(
                f"several rows of {image.id!r} have no prompt",
                hint=f"rename the column of the prompts, perhaps {columns}, to 'prompt'; <--prompt "
                "TEXT> is the prompt of all rows",
            )
        asked |= keys

    def notes(self, counts: ImportCounts) -> list[tuple[int, str]]:
        """The numbers and kinds of skipped entries."""
        unread = sum(image.is_unread() for image in self.annotations.images)
        return [
            *counts.kinds,
            (unread, "images without a row of boxes: no region was read as one"),
            (counts.missing.count, "images skipped"),
        ]

    @property
    def schema(self) -> RowSchema:
        """The columns of the rows."""
        has_masks = any(mask for image in self.annotations.images for _, mask in image.boxes)
        has_regions = any(
            entry.region for image in self.annotations.images for entry in image.texts
        )
        return RowSchema(
            extras=("masks",) if has_masks else (), keep=(REGION,) if has_regions else ()
        )

    def __iter__(self) -> Iterator[dict[str, Any]]:
        schema = self.schema
        root = os.path.realpath(self.folder)
        by_id: dict[str, list[AnnotatedImage]] = {}
        for image in self.annotations.images:
            by_id.setdefault(image.id, []).append(image)
        for index, images in enumerate(by_id.values()):
            for image in images:
                path = relative_path(image.image, root)
                for answer in self._answers(index, image, path):
                    yield schema.row(answer)

    def _answers(self, index: int, image: AnnotatedImage, path: str) -> Iterator[Answer]:
        searched = image.searched
        labels = [
            label for label in self.annotations.labels if searched is None or label in searched
        ]
        file_prompt = self.annotations.prompt
        groups: Sequence[Sequence[str]] = [[name] for name in labels] if self.each else [labels]
        for names in groups if image.says_boxes and (labels or image.prompt or file_prompt) else ():
            if image.is_unread(names[0] if self.each else None):
                continue
            boxes = [(box, mask) for box, mask in image.boxes if box.label in names]
            own = None if self.each else image.prompt or file_prompt
            prompt = self.prompt or own or f"detect {' ; '.join(names)}"
            yield box_answer(index, image, path, prompt, boxes)
        for text in image.texts:
            prompt = self.prompt or text.prompt or CAPTION
            task: Task = "caption" if prompt.startswith("caption") else "ask"
            kept = {REGION: text.region and list(text.region)}
            yield imported_row(index, image, path, task, prompt, text.text, kept=kept)


def relative_path(image: str, root: str) -> str:
    """The path of an image relative to the folder `root` if it is in it; a URL unchanged."""
    if url_scheme(image):
        return image
    is_inside = image.startswith(root.rstrip("/") + "/")
    return display_path(os.path.relpath(image, root) if is_inside else image)


def box_answer(
    index: int, image: AnnotatedImage, path: str, prompt: str, true_boxes: Sequence[BoxWithMask]
) -> Answer:
    """The row of an image's boxes; the answer is the text that a model would give."""
    boxes = tuple(box for box, _ in true_boxes)
    masks = tuple(mask and Mask((), mask) for _, mask in true_boxes)
    text = detection_text(boxes, width=image.width, height=image.height)
    return imported_row(index, image, path, "detect", prompt, text, boxes=boxes, masks=masks)


def imported_row(
    index: int, image: AnnotatedImage, path: str, task: Task, prompt: str, text: str, **more: Any
) -> Answer:
    """A row without the numbers of a model."""
    decoded = DecodedImage(Item(index, image.id, path), image.width, image.height, None, 0.0)
    row = unanswered(decoded, prompt, task=task, model=TRUTH)
    return replace(row, answer=text, load_ms=None, **more)
