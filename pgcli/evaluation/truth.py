"""The truth of a file, by id and prompt, and the columns it is read from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import RowTruth
from pgcli.labelled_rows import Example, note_of_choices
from pgcli.wording import count

Key = tuple[str, str | None]
MAX_VALUE_CHARACTERS = 200  # of a value that rows are grouped by


@dataclass(frozen=True)
class TruthColumns:
    """The names of columns, as the command line gives them.

    With an empty prompt column, rows are joined by id alone.
    """

    id: str = "id"
    prompt: str | None = None
    answer: str | None = None


@dataclass
class Truths:
    """The truth by id and prompt. `columns` are the columns of the file.

    With `has_prompts`, rows are joined by prompt, too. `repeated` rows have a box of an earlier
    row. `choices` counts rows by the columns that were read, each before other columns with values.
    `remarks` are printed as notes. With `swaps_sides`, the truth states the size of the stored
    image, and boxes of the upright image.
    """

    name: str
    by_key: dict[Key, RowTruth] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)
    has_prompts: bool = False
    repeated: int = 0
    choices: Counter[tuple[str, ...]] = field(default_factory=Counter)
    remarks: dict[str, None] = field(default_factory=dict)
    swaps_sides: bool = False

    def add(self, key: Key, truth: RowTruth) -> None:
        """Add a truth; merges truths of the same id and prompt, like captions of an image."""
        known = self.by_key.get(key)
        if known is None:
            self.by_key[key] = truth
            return
        if known.size and truth.size and known.size != truth.size:
            first, second = (f"{size[0]} x {size[1]}" for size in (known.size, truth.size))
            raise UsageError(
                f"{self.name}: rows of {key[0]!r} state {first} and {second} as the size",
                hint="correct the size or the boxes of one of them",
            )
        is_repeated = any(text and text in known.box_texts for text in truth.box_texts)
        self.repeated += is_repeated or len(new_boxes(known, truth)) < len(truth.boxes or ())
        self.by_key[key] = merged(known, truth)

    def notes(self) -> Iterator[tuple[str, str]]:
        """Notes about ambiguous columns and repeated boxes, each with a hint."""
        if note := note_of_choices(self.choices):
            yield note, "--answer-column and --prompt-column name the columns that are read"
        if self.repeated:
            rows = count(self.repeated, "row")
            yield (
                f"boxes of {rows} that earlier rows of the same image and prompt have too count "
                "once",
                "",
            )
        yield from ((remark, "") for remark in self.remarks)


def truth_of(
    example: Example,
    columns: Mapping[str, Any] | None = None,
    size: tuple[int, int] | None = None,
) -> RowTruth:
    """The truth of a labelled row; masks state its size if the row does not.

    Boxes come from the most frequent of several answers.
    """
    most_frequent = [text for text, _ in Counter(example.answers).most_common(1)]
    texts = () if example.boxes is not None else tuple(most_frequent)
    sizes = (mask.size[::-1] for mask in example.masks or () if mask is not None)
    stated = size or next(sizes, None)
    return RowTruth(
        example.answers,
        example.boxes,
        example.masks,
        columns=columns or {},
        box_texts=texts,
        size=stated if example.boxes or example.masks else None,
    )


def merged(first: RowTruth, second: RowTruth) -> RowTruth:
    """Both truths in one: all answers and all boxes; shared boxes once."""
    new = new_boxes(first, second)
    boxes, masks, areas = first.boxes, first.masks, first.areas
    if second.boxes is not None:
        boxes = (*(boxes or ()), *(second.boxes[number] for number in new))
    if masks is not None or second.masks is not None:
        masks = (*aligned_masks(first), *(aligned_masks(second)[number] for number in new))
    if areas is not None or second.areas is not None:
        areas = (*first.box_areas, *(second.box_areas[number] for number in new))
    return RowTruth(
        first.answers + second.answers,
        boxes,
        masks,
        areas,
        first.crowds + second.crowds,
        merged_columns(first.columns, second.columns),
        (*first.box_texts, *(text for text in second.box_texts if text not in first.box_texts)),
        first.size or second.size,
    )


def new_boxes(first: RowTruth, second: RowTruth) -> list[int]:
    """The numbers of the boxes that only the second truth has."""
    known = {(box.label, box.corners) for box in first.boxes or ()}
    boxes = second.boxes or ()
    return [n for n, box in enumerate(boxes) if (box.label, box.corners) not in known]


def aligned_masks(truth: RowTruth) -> Sequence[Any]:
    """A mask, or None, for each box."""
    missing = len(truth.boxes or ()) - len(truth.masks or ())
    return (*(truth.masks or ()), *([None] * missing))


def merged_columns(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of both; different values become a tuple."""
    columns = {**second, **first}
    for name in first.keys() & second.keys():
        values = first[name] if isinstance(first[name], tuple) else (first[name],)
        if second[name] not in values:
            columns[name] = (*values, second[name])
    return columns


def group_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values that rows can be grouped by; long texts are truncated."""
    return {
        name: value[:MAX_VALUE_CHARACTERS] if isinstance(value, str) else value
        for name, value in row.items()
        if isinstance(value, str | int | float | bool)
    }
