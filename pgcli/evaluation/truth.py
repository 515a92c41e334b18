"""The truth about rows, by id and prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pgcli.boxes import prompt_with_region
from pgcli.errors import UsageError
from pgcli.inputs import ReadOptions
from pgcli.inputs.listing import locate_source, usage_errors
from pgcli.inputs.paths import display_path
from pgcli.labels.columns import LabelColumns, note_of_choices
from pgcli.labels.labelled_image import LabelledImage, Labels, LeftOut, skipped
from pgcli.labels.sources import is_run, read_source
from pgcli.parsing import has_locations
from pgcli.stores import Reader
from pgcli.text import with_notes

Key = tuple[str, str | None]
PROMPT_HINT = "<--prompt-column NAME> names the column of the truth with the prompts"
#: The rows of the truth about an id and a prompt.
Truth = Sequence[LabelledImage]


@dataclass
class Truths:
    """The truth by id and prompt.

    With `has_prompts`, rows are joined by prompt, too; with `ignores_prompts`, the user asked for
    ids alone. With `has_references`, an image without a prompt may have several texts, as COCO's
    captions. `choices` counts rows by the columns that were read. `remarks` are printed as notes.
    """

    name: str
    has_prompts: bool = False
    ignores_prompts: bool = False
    has_references: bool = False
    choices: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    remarks: dict[str, None] = field(default_factory=dict)
    _added: dict[Key, list[LabelledImage]] = field(default_factory=dict)

    def add(self, key: Key, truth: LabelledImage) -> None:
        """Add a truth to those of the same id and prompt."""
        self._added.setdefault(key, []).append(truth)

    def add_image(self, image: LabelledImage, counts: LeftOut) -> None:
        """Add what an annotation file says about an image.

        Texts of regions without a prompt are skipped: a region is part of a prompt.
        """
        prompt = None if image.objects is not None else image.prompt
        if (image.unread and not image.boxes) or (image.objects is None and not image.answers):
            return
        if prompt is not None and image.size is not None:
            prompt = prompt_with_region(prompt, image.region, *image.size)
        elif prompt is None and image.region is not None:
            counts.skip("texts of regions", image.id)
            return
        self.has_prompts |= prompt is not None
        self.add((image.id, prompt), image)

    @cached_property
    def by_key(self) -> dict[Key, Truth]:
        """The truth by id and prompt, once all are added.

        Raises UsageError for different sizes, and for several answers to an unknown prompt.
        """
        for (id_, prompt), truth in self._added.items():
            if prompt is None and not self.has_references:
                self._check_answers(id_, truth)
            sizes = [*dict.fromkeys(image.size for image in truth if image.objects and image.size)]
            if len(sizes) > 1:
                first, second = (f"{width} x {height}" for width, height in sizes[:2])
                raise UsageError(
                    f"{self.name}: rows of {id_!r} state {first} and {second} as the size",
                    hint="correct the size or the boxes of one of them",
                )
        return {**self._added}

    def _check_answers(self, id_: str, truth: Truth) -> None:
        """Raise UsageError for several rows with texts, which may answer several prompts.

        Boxes are told apart by their labels.
        """
        if (rows := sum(not all(map(has_locations, image.answers)) for image in truth)) > 1:
            message = f"{self.name} has {rows:,} rows for {id_!r} without a prompt"
            hint = f"{PROMPT_HINT}; several answers to one prompt are a list in one row"
            raise UsageError(message, hint=hint)

    def notes(self) -> Iterator[tuple[str, str]]:
        """Notes about ambiguous columns and what was left out, each with a hint."""
        if note := note_of_choices(self.choices):
            yield note, "--answer-column and --prompt-column name the columns that are read"
        yield from ((remark, "") for remark in self.remarks)


def read_truth(
    name: str,
    columns: LabelColumns | None = None,
    id_column: str = "id",
    url_reader: Reader | None = None,
) -> Truths:
    """The truth in a local file or folder, or in a file at a URL. Raises UsageError.

    With an empty prompt column, rows are joined by id alone.
    """
    columns = columns or LabelColumns()
    file = locate_source(name, ReadOptions(url_reader=url_reader))
    if file.url_reader is None and not (Path(file.path).exists() or is_run(file)):
        raise UsageError(f"{name} does not exist", hint="--truth names a manifest with answers")
    counts, shown = LeftOut(), display_path(name)
    named = LabelColumns(columns.prompt or None, columns.answer)
    with usage_errors(shown):
        labels = read_source(file, named, id_column, counts)
        truths = truths_of(labels, shown, counts)
    truths.ignores_prompts = columns.prompt == ""
    truths.has_prompts &= not truths.ignores_prompts
    if not truths.by_key:
        reasons = "; ".join([f"{shown} has no rows", *truths.remarks])
        raise UsageError(reasons, hint="--truth names a manifest with answers")
    return truths


def truths_of(labels: Labels, name: str, counts: LeftOut) -> Truths:
    """The truth that labels say, with remarks about what was left out."""
    truths = Truths(name, choices=labels.choices)
    truths.has_references = not labels.is_table
    for image in labels.images:
        if labels.is_table:
            truths.has_prompts |= image.prompt is not None
            truths.add((image.id, image.prompt), image)
        elif image.objects is None or labels.labels != []:
            truths.add_image(image, counts)
    for remark in (with_notes("", skipped(labels, counts)).removeprefix("; "), *counts.notes):
        if remark:
            truths.remarks[remark] = None
    return truths
