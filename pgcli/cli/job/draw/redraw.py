"""--draw of view: rows that are there already, painted as their run would have painted them."""

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
from pgcli.records import EXTRA_COLUMNS, Answer, Item, Mask
from pgcli.rle import spans
from pgcli.rows import RowSchema, fill_columns
from pgcli.views.gallery.sanitize import clean_box

Row = Mapping[str, Any]


def draw_rows(output: Path, rows: Iterable[Row], drawing: DrawHook, search: ImageSearch) -> None:
    """Have each row's picture drawn, within the drawing's own `with` block.

    Raises UsageError for a row that is none, and for a picture that lies where it would be drawn.
    """
    for place, (row, item) in enumerate(with_items(rows, ImageLocator([output], search))):
        # several prompts about one picture are several drawings
        for _ in drawing.watch([replace(item, index=place)]):
            drawing.draw(replace(answer(output, row), index=place))


def with_items(rows: Iterable[Row], places: ImageLocator) -> Iterator[tuple[Row, Item]]:
    """Every row with its item, found once where rows about one picture follow one another."""
    for index, (_, same) in enumerate(groupby(rows, key=image_key)):
        item = None
        for row in same:
            item = item or places.item(index, wanted_image(row))
            yield row, item


def answer(output: Path, row: Row) -> Answer:
    """The row's answer, with those of its boxes and masks that can be painted."""
    boxes = [
        one for one in row["boxes"] or () if clean_box(one) and isinstance(one.get("label"), str)
    ]
    try:
        made = RowSchema(extras=tuple(name for name in EXTRA_COLUMNS if name in row)).answer(
            fill_columns({**row, "boxes": boxes})
        )
    except (ValueError, TypeError) as problem:
        raise UsageError(
            f"{output}: row {row['id']!r} cannot be drawn: {problem}",
            hint="name a file or folder that detect or segment wrote",
        ) from problem
    if made.masks is None or len(boxes) < len(row["boxes"]):
        return replace(made, masks=None)
    return replace(made, masks=tuple(painted(mask, made) for mask in made.masks))


def painted(mask: Mask | None, made: Answer) -> Mask | None:
    """The mask, without pixels that are not of this picture: few characters spell any size."""
    if mask is None or mask.rle is None:
        return mask
    try:
        if mask.rle.size == (made.height, made.width):
            spans(mask.rle)
            return mask
    except (ValueError, AttributeError, TypeError):
        pass
    return replace(mask, rle=None)
