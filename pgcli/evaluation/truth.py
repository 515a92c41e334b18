"""The truth of a file, by id and prompt, and the columns it is read from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any

from pgcli.errors import UsageError
from pgcli.evaluation.joined_row import RowTruth
from pgcli.labels.columns import Example, note_of_choices
from pgcli.parsing import has_locations
from pgcli.records import Box, Region, Rle
from pgcli.wording import count, one_of

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
    """The truth by id and prompt.

    With `has_prompts`, rows are joined by prompt, too; with `ignores_prompts`, the user asked for
    ids alone. With `has_references`, an image without a prompt may have several texts, as COCO's
    captions. `roles` are the columns of ids, images, and others that a command names. `repeated`
    rows have a box of an earlier row. `choices` counts rows by the columns that were read, each
    before other columns with values. `remarks` are printed as notes. With `swaps_sides`, the truth
    states the size of the stored image, and boxes of the upright image.
    """

    name: str
    has_prompts: bool = False
    ignores_prompts: bool = False
    has_references: bool = False
    roles: set[str] = field(default_factory=set)
    repeated: int = 0
    choices: Counter[tuple[str, ...]] = field(default_factory=Counter)
    remarks: dict[str, None] = field(default_factory=dict)
    swaps_sides: bool = False
    _added: dict[Key, list[RowTruth]] = field(default_factory=dict)

    def add(self, key: Key, truth: RowTruth) -> None:
        """Add a truth; those of the same id and prompt are merged, like captions of an image."""
        self._added.setdefault(key, []).append(truth)

    @cached_property
    def by_key(self) -> dict[Key, RowTruth]:
        """The truth by id and prompt, once all are added.

        Raises UsageError for different sizes, and for several answers to an unknown prompt.
        """
        merged_truths = {}
        for key in [*self._added]:
            truths = self._added.pop(key)
            if key[1] is None and not self.has_references:
                self._check_answers(key[0], truths)
            sizes = [*dict.fromkeys(truth.size for truth in truths if truth.size)]
            if len(sizes) > 1:
                first, second = (f"{width} x {height}" for width, height in sizes[:2])
                raise UsageError(
                    f"{self.name}: rows of {key[0]!r} state {first} and {second} as the size",
                    hint="correct the size or the boxes of one of them",
                )
            merged_truths[key], repeated = merged(truths)
            self.repeated += repeated
        return merged_truths

    def _check_answers(self, id_: str, truths: Sequence[RowTruth]) -> None:
        """Raise UsageError for several rows with texts, which may answer several prompts.

        Boxes are told apart by their labels.
        """
        if (rows := sum(not all(map(has_locations, truth.answers)) for truth in truths)) > 1:
            hint = f"{self.prompt_hint(truths)}several answers to one prompt are a list in one row"
            message = f"{self.name} has {rows:,} rows for {id_!r} without a prompt"
            raise UsageError(message, hint=hint)

    def prompt_hint(self, truths: Iterable[RowTruth]) -> str:
        """Names the columns that could be the prompt, and the option; empty without any."""
        read = self.roles | {names[0] for names in self.choices}
        texts = dict.fromkeys(
            name
            for truth in truths
            for name, value in truth.columns.items()
            if name not in read and isinstance(value, str | tuple)
        )
        if not texts or not self.roles:
            return ""
        columns = one_of([*map(repr, texts)])
        return f"<--prompt-column NAME> reads the prompts of the truth, perhaps from {columns}; "

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
    answers = example.answers
    texts = answers if example.boxes is None else ()
    if len(texts) > 1:
        texts = (Counter(texts).most_common(1)[0][0],)
    sizes = (mask.size[::-1] for mask in example.masks or () if mask is not None)
    stated = size or next(sizes, None)
    return RowTruth(
        answers,
        example.boxes,
        example.masks,
        columns=columns or {},
        box_texts=texts,
        size=stated if example.boxes or example.masks else None,
    )


def merged(truths: Sequence[RowTruth]) -> tuple[RowTruth, int]:
    """The truths in one: all answers and all boxes. Counts truths with boxes of earlier ones.

    Such boxes are kept once.
    """
    if len(truths) == 1:
        return truths[0], 0
    known: set[tuple[str, Region] | str] = set()  # boxes, and texts with location tokens
    boxes: list[tuple[Box, Rle | None, float]] = []
    repeated = 0
    for truth in truths:
        own = [*zip_longest(truth.boxes or (), truth.masks or (), truth.box_areas)]
        new = [values for values in own if (values[0].label, values[0].corners) not in known]
        texts = {text for text in truth.box_texts if has_locations(text)}
        repeated += len(new) < len(own) or not known.isdisjoint(texts)
        known.update(texts, ((box.label, box.corners) for box, _, _ in new))
        boxes += new
    has_masks = any(truth.masks is not None for truth in truths)
    has_areas = any(truth.areas is not None for truth in truths)
    truth = RowTruth(
        tuple(text for truth in truths for text in truth.answers),
        None if all(truth.boxes is None for truth in truths) else tuple(box for box, _, _ in boxes),
        tuple(mask for _, mask, _ in boxes) if has_masks else None,
        tuple(area for _, _, area in boxes) if has_areas else None,
        tuple(box for truth in truths for box in truth.crowds),
        merged_columns([truth.columns for truth in truths]),
        tuple(dict.fromkeys(text for truth in truths for text in truth.box_texts)),
        next((truth.size for truth in truths if truth.size), None),
    )
    return truth, repeated


def merged_columns(columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The columns of all; different values become a tuple."""
    values: dict[str, dict[Any, None]] = {}
    for own in columns:
        for name, value in own.items():
            values.setdefault(name, {})[value] = None
    return {name: tuple(own) if len(own) > 1 else next(iter(own)) for name, own in values.items()}


def group_values(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values that rows can be grouped by; long texts are truncated, lists and objects None."""
    values = {name: value for name, value in row.items() if value is not None}
    for name, value in values.items():
        if isinstance(value, str):
            values[name] = value[:MAX_VALUE_CHARACTERS]
        elif not isinstance(value, int | float):
            values[name] = None
    return values
