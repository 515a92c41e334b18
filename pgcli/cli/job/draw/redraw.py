"""--draw of `pgcli view`: saved rows, drawn as their run would have drawn them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from pgcli.cli.job.draw.painter import DrawHook
from pgcli.cli.result_files.image_locator import ImageLocator, image_key, wanted_image
from pgcli.cli.result_files.image_search import ImageSearch
from pgcli.errors import UsageError
from pgcli.records import Answer, Item, Mask
from pgcli.rle import spans
from pgcli.rows import RowSchema, fill_columns
from pgcli.views.gallery.sanitize import clean_box

Row = Mapping[str, Any]


def draw_rows(output: Path, rows: Iterable[Row], drawing: DrawHook, search: ImageSearch) -> None:
    """Draw the image of each row, within the `with` block of the hook.

    Raises UsageError for an invalid row, and for an image in the folder that is drawn into.
    """
    for row_index, (row, item) in enumerate(with_items(rows, ImageLocator([output], search))):
        # several prompts on one image are several drawings
        for _ in drawing.wrap_items([replace(item, index=row_index)]):
            drawing.on_row(replace(answer(output, row), index=row_index))


def with_items(rows: Iterable[Row], locator: ImageLocator) -> Iterator[tuple[Row, Item]]:
    """Each row with its item, which is looked up once for consecutive rows of one image."""
    for index, (_, same) in enumerate(groupby(rows, key=image_key)):
        item = None
        for row in same:
            item = item or locator.item(index, wanted_image(row))
            yield row, item


def answer(output: Path, row: Row) -> Answer:
    """The row's answer, with the boxes and masks that can be drawn."""
    try:
        given = row["boxes"] or ()
        boxes = [one for one in given if clean_box(one) and isinstance(one.get("label"), str)]
        made = RowSchema.of(row).answer(fill_columns({**row, "boxes": boxes}))
    except (ValueError, TypeError, KeyError) as problem:
        raise UsageError(
            f"{output}: row {row['id']!r} cannot be drawn: {problem}",
            hint="name a file or folder that detect or segment wrote",
        ) from problem
    if made.masks is None or len(boxes) < len(given):
        return replace(made, masks=None)
    return replace(made, masks=tuple(drawable(mask, made) for mask in made.masks))


def drawable(mask: Mask | None, answer: Answer) -> Mask | None:
    """The mask, without pixels if its size is not the image's: a short text encodes any size."""
    if mask is None or mask.rle is None:
        return mask
    try:
        if mask.rle.size == (answer.height, answer.width):
            spans(mask.rle)
            return mask
    except (ValueError, AttributeError, TypeError):
        pass
    return replace(mask, rle=None)
