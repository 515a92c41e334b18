"""The prompts and answers of rows: columns of manifests and result files, texts beside images."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from pgcli.box_filter import box_of
from pgcli.errors import UsageError
from pgcli.inputs import Inventory, ReadOptions
from pgcli.inputs.paths import url_scheme
from pgcli.inputs.readers import manifest_ending
from pgcli.parsing import detection_text
from pgcli.records import Item
from pgcli.regions import location_values, with_locations
from pgcli.stores.files import open_regular
from pgcli.tasks.question import ask, normalize
from pgcli.tasks.templates import render, template_columns
from pgcli.training.targets import ERROR_COLUMNS, FindTarget, TrainingTarget, text_of

#: The columns of prompts and of answers; the first one that has a value is read.
PROMPT_COLUMNS = ("prefix", "prompt")
ANSWER_COLUMNS = ("suffix", "answer", "txt")
BOX_COLUMNS = ("boxes", "masks", "width", "height")
#: Endings of a file with the answer, beside the image of the same name.
SIDECARS = (".txt", ".caption")
MAX_SIDECAR_BYTES = 2**20


@dataclass(frozen=True)
class AnswerTargets:
    """The answer to a prompt: of a column, of the boxes of a result file, or of a text file.

    `prompt_column` and `answer_column` are read in place of the known ones. `prompt` is that of
    rows without one; a column in braces is replaced by its value. `open_source` opens a source.
    """

    prompt_column: str | None = None
    answer_column: str | None = None
    prompt: str | None = None
    open_source: Callable[[str, ReadOptions], Iterable[Item]] = lambda name, options: (
        Inventory.scan([name], options)
    )

    @property
    def name(self) -> str:
        return f"a prompt and {repr(self.answer_column) if self.answer_column else 'an answer'}"

    @property
    def hint(self) -> str:
        return (
            '--prompt "caption en" is the prompt of all rows; --prompt-column and --answer-column '
            "name columns"
        )

    def open(self, name: str, options: ReadOptions) -> tuple[Iterable[Item], FindTarget]:
        required = [one for one in (self.prompt_column, self.answer_column) if one]
        if self.prompt is not None:
            required += template_columns(ask([self.prompt]))
        known = (*self._prompts, *self._answers, *BOX_COLUMNS, *ERROR_COLUMNS)
        optional = tuple(one for one in known if one not in required)
        read = replace(
            options,
            fields=tuple(required),
            optional_fields=optional,
            repeats_ids=True,
            allows_nulls=True,
        )
        # CSV has an empty text for every cell without a value
        may_be_empty = name == "-" or manifest_ending(name) in (".jsonl", ".ndjson", ".parquet")
        return self.open_source(name, read), partial(self._find, may_be_empty=may_be_empty)

    def _find(self, item: Item, *, may_be_empty: bool) -> TrainingTarget | None:
        """The prompt and the answer of an item. Raises UsageError for boxes that are not valid."""
        prompt, answer = self._prompt(item), self._answer(item, may_be_empty=may_be_empty)
        return None if prompt is None or answer is None else TrainingTarget(answer, prompt)

    @property
    def _prompts(self) -> tuple[str, ...]:
        return (self.prompt_column,) if self.prompt_column else PROMPT_COLUMNS

    @property
    def _answers(self) -> tuple[str, ...]:
        return (self.answer_column,) if self.answer_column else ANSWER_COLUMNS

    def _prompt(self, item: Item) -> str | None:
        """The prompt as the model gets it; None if the row has none. Raises UsageError for two."""
        given = [name for name in self._prompts if not is_blank(item.fields.get(name))]
        if self.prompt is not None:
            if given:
                raise UsageError(
                    f"--prompt is given, and {item.id} has a prompt in {given[0]!r}",
                    hint="leave out --prompt, or leave out the column",
                )
            return with_region(normalize(render(self.prompt, item)), item)
        value = item.fields[given[0]] if given else None
        if not isinstance(value, str | int | float):
            return None
        return with_region(normalize(str(value)), item)

    def _answer(self, item: Item, *, may_be_empty: bool) -> str | None:
        """The answer; None without one. With boxes, which may be none, it is empty as well."""
        fields = item.fields
        for name in self._answers:
            if text := text_of(fields.get(name)):
                return text
        if self.answer_column is None and (found := boxes_of(fields)) is not None:
            return box_text(item, found)
        if may_be_empty and any(isinstance(fields.get(name), str) for name in self._answers):
            return ""
        has_columns = any(name in fields for name in self._answers)
        return None if has_columns else sidecar_text(item)


def with_region(prompt: str, item: Item) -> str:
    """The prompt with the location tokens of the item's region. Raises UsageError."""
    if item.region is None:
        return prompt
    width, height = image_size(item, "a region")
    values = location_values(item.region, width, height)
    if values is None:
        raise UsageError(f"the region of {item.id} is not in its image", hint="correct the row")
    return with_locations(prompt, values)


def image_size(item: Item, what: str) -> tuple[int, int]:
    """The columns `width` and `height` of an item that has `what`. Raises UsageError."""
    width, height = (number(item.fields.get(name)) for name in ("width", "height"))
    if not (width and height):
        raise UsageError(
            f"{item.id} has {what} in pixels, and no width and height of its image",
            hint="add columns width and height, or write location tokens into the text",
        )
    return width, height


def is_blank(value: Any) -> bool:
    """Whether a prompt is not given: CSV has an empty text for every cell without a value."""
    return value is None or (isinstance(value, str) and not value.strip())


def boxes_of(fields: Mapping[str, Any]) -> list[Any] | None:
    """The boxes of a row, as a list or as the JSON text that CSV has; None without them."""
    value = parsed(fields.get("boxes"))
    return value if isinstance(value, list) else None


def box_text(item: Item, boxes: list[Any]) -> str:
    """The answer that has the boxes of a row. Raises UsageError for values that are not boxes."""
    found = [box_of(box) for box in boxes]
    if None in found:
        raise UsageError(
            f"the boxes of {item.id} are not boxes",
            hint="a box is {label, xmin, ymin, xmax, ymax} in pixels",
        )
    if not found:
        return ""
    width, height = image_size(item, "boxes")
    masks = parsed(item.fields.get("masks"))
    plain = [asdict(box) for box in found if box is not None]
    return detection_text(
        plain, masks if isinstance(masks, list) else (), width=width, height=height
    )


def number(value: Any) -> int:
    """The value as a whole number; 0 for anything else."""
    with suppress(TypeError, ValueError):
        return int(value)
    return 0


def parsed(value: Any) -> Any:
    """The value, or that of its JSON text."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            return json.loads(value)
    return value


def sidecar_text(item: Item) -> str | None:
    """The text of the file beside a local image; None if there is none that has a text."""
    if item.path is None or url_scheme(item.path):
        return None
    stem = os.path.splitext(item.path)[0]  # noqa: PTH122 - Path would drop a leading ./
    for ending in SIDECARS:
        try:
            with open_regular(f"{stem}{ending}", item.root) as file:
                text = file.read(MAX_SIDECAR_BYTES).decode()
        except (OSError, ValueError):
            continue
        if text.strip():
            return text.strip()
    return None
