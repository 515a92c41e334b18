"""Reads the truth, and joins the rows of a result file with it by id and prompt."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from sys import intern

from pgcli.boxes import prompt_with_region
from pgcli.errors import NoInputError, UsageError
from pgcli.evaluation.measures import JoinedRow, task_of_prompt
from pgcli.inputs import ReadOptions
from pgcli.inputs.listing import locate_source, usage_errors
from pgcli.inputs.paths import display_path
from pgcli.labels.columns import LabelColumns, stated_size
from pgcli.labels.labelled_image import (
    LabelledImage,
    Labels,
    LeftOut,
    merged,
    skipped,
    with_location_objects,
)
from pgcli.labels.sources import is_run, read_source
from pgcli.output.reader import Row, read_results
from pgcli.parsing import has_locations
from pgcli.records import BOX_TASKS
from pgcli.rle import read_mask
from pgcli.rows import prompt_of, read_boxes, task_of
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
    captions. `remarks` are printed as notes.
    """

    name: str
    has_prompts: bool = False
    ignores_prompts: bool = False
    has_references: bool = False
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

        Raises UsageError for several answers to an unknown prompt.
        """
        for (id_, prompt), truth in self._added.items():
            if prompt is None and not self.has_references:
                self._check_answers(id_, truth)
        return {**self._added}

    def _check_answers(self, id_: str, truth: Truth) -> None:
        """Raise UsageError for several rows with texts, which may answer several prompts.

        Boxes are told apart by their labels.
        """
        if (rows := sum(not all(map(has_locations, image.answers)) for image in truth)) > 1:
            message = f"{self.name} has {rows:,} rows for {id_!r} without a prompt"
            hint = f"{PROMPT_HINT}; several answers to one prompt are a list in one row"
            raise UsageError(message, hint=hint)


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
    truths = Truths(name)
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


@dataclass(frozen=True)
class JoinedFile:
    """The rows of a result file with their truth, and the truths that have no row."""

    name: str
    path: Path
    rows: Sequence[JoinedRow]
    missing: int
    surplus: int


def join(name: str, truths: Truths) -> JoinedFile:
    """The rows of the result file in order, then a missing row for each unanswered truth.

    Rows are joined by id and prompt, or by id if rows or truth have no prompts. Raises UsageError
    if no row has a truth, for several prompts of an id that the truth does not tell apart, and for
    a truth of another size, and NoInputError without rows.
    """
    path = Path(name)
    # names of columns that all rows share: JSON's own take a kilobyte a row
    named = ({intern(name): value for name, value in row.items()} for row in read_results(path))
    rows = [*map(with_box_objects, named)]
    if not rows:
        raise NoInputError(f"no rows in {name} yet", hint="try again later")
    check_rows_differ(name, rows)
    have_prompts = any(row.get("prompt") for row in rows)
    by_prompt = truths.has_prompts and have_prompts
    by_key = truths.by_key if by_prompt else by_id(truths.by_key, have_prompts=have_prompts)
    keys = [(str(row["id"]), str(row["prompt"]) if by_prompt else None) for row in rows]
    joined = []
    for key, row in zip(keys, rows, strict=True):
        truth = by_key.get(key)
        for image in truth or ():
            check_size(image, truths.name, row)
        joined.append(joined_row(row, key, truth))
    surplus = sum(row.truth is None for row in joined)
    if surplus == len(joined):
        raise nothing_joined(name, truths, rows[0], by_prompt)
    if not by_prompt and not truths.ignores_prompts:
        check_one_prompt(name, joined, truths)
    answered = set(keys)
    unanswered = {key: truth for key, truth in by_key.items() if key not in answered}
    missing = missing_rows(unanswered, joined, by_prompt=by_prompt)
    return JoinedFile(name, path, [*joined, *missing], len(missing), surplus)


def check_one_prompt(name: str, joined: Sequence[JoinedRow], truths: Truths) -> None:
    """Raise UsageError for several questions about an id, whose truths have no prompts.

    Prompts with labels are told apart by the labels of the true boxes.
    """
    asked: dict[str, str | None] = {}
    for row in joined:
        if row.truth is None or prompt_labels(row.task, row.prompt or "") is not None:
            continue
        if (first := asked.setdefault(row.id, row.prompt)) != row.prompt:
            raise UsageError(
                f"{name} has several prompts for {row.id!r} ({first!r} and {row.prompt!r}), and "
                f"{truths.name} has answers without a prompt",
                hint=f"{PROMPT_HINT}; <--prompt-column=> '' joins rows by id alone",
            )


def only_common(files: Sequence[JoinedFile]) -> list[JoinedFile]:
    """The rows that have a truth and are in all of the files, in the same order."""
    complete = [
        {row.key: row for row in file.rows if row.row is not None and row.truth is not None}
        for file in files
    ]
    common = [key for key in complete[0] if all(key in rows for rows in complete)]
    if not common:
        raise UsageError("no row is in all files and in the truth", hint="omit --only-common")
    pairs = zip(files, complete, strict=True)
    return [replace(file, rows=[rows[key] for key in common]) for file, rows in pairs]


def paired(first: JoinedFile, second: JoinedFile) -> list[JoinedFile]:
    """Both files with the same rows in the same order; rows that a file lacks are missing rows."""
    files = (first, second)
    answered = [{row.key: row for row in file.rows if row.row is not None} for file in files]
    ids = {id_ for rows in answered for id_, _ in rows}
    missing = [
        {
            row.key: row
            for row in file.rows
            if row.row is None and (row.prompt is not None or row.id not in ids)
        }
        for file in files
    ]
    keys = dict.fromkeys(key for rows in (*answered, *missing) for key in rows)
    known = [{**missing[number], **answered[number]} for number in (0, 1)]
    return [
        replace(
            file,
            rows=[
                own[key] if key in own else replace(rival[key], row=None, boxes=(), masks=())
                for key in keys
            ],
        )
        for file, own, rival in zip(files, known, reversed(known), strict=True)
    ]


def check_size(truth: LabelledImage, name: str, row: Row) -> None:
    """Raise UsageError for a truth whose objects belong to an image of another size."""
    size = stated_size(row)
    if truth.objects and size is not None and truth.size not in (None, size):
        raise UsageError(
            f"{name}: {truth.id}: {truth.size[0]} x {truth.size[1]} is stated, and the row has "
            f"{size[0]} x {size[1]}",
            hint="scale the truth; if EXIF rotates the image, `pgcli import` writes upright boxes",
        )


def joined_row(row: Row, key: Key, truth: Truth | None) -> JoinedRow:
    """A row and its truth, without true boxes that the prompt does not ask for."""
    prompt = str(prompt_of(row))
    task = measured_task(task_of(row), prompt, truth)
    known = None if truth is None else merged_truth(truth, task, row, key[0])
    labels = prompt_labels(task, prompt) if key[1] is None else None
    if known is not None and labels is not None:
        known = known.of_labels(labels)
    row = with_box_objects(row)
    with row_errors(row):
        masks = tuple(map(read_mask, row.get("masks") or ()))
    return JoinedRow(key[0], prompt, row, known, row.get("boxes") or (), masks, task)


def with_box_objects(row: Row) -> Row:
    """The row with objects for its boxes, which take less memory than dicts. Raises UsageError."""
    boxes = row.get("boxes")
    if not boxes or isinstance(boxes, tuple):
        return row
    with row_errors(row):
        return {**row, "boxes": read_boxes(boxes)}


@contextmanager
def row_errors(row: Row) -> Iterator[None]:
    """A block that reads values of a row; raises UsageError if they are not valid."""
    try:
        yield
    except (ValueError, TypeError, KeyError) as problem:
        hint = "name a file that detect or segment wrote"
        raise UsageError(
            f"the row of {row['id']!r} is not valid: {problem}", hint=hint
        ) from problem


def missing_rows(
    truths: Mapping[Key, Truth], joined: Sequence[JoinedRow], *, by_prompt: bool
) -> list[JoinedRow]:
    """The truths without a row; if joined by id alone, with the boxes that any row asks for.

    Their task is the task of all rows, or else of their prompt.
    """
    tasks = {task_of(row.row or {}) for row in joined}
    task = tasks.pop() if len(tasks) == 1 else None
    measured = {row.task for row in joined}
    asked = {label for row in joined for label in prompt_labels(row.task, row.prompt or "") or ()}
    rows = []
    for (id_, prompt), truth in truths.items():
        is_asked = prompt is None and len(measured) == 1
        own_task = min(measured) if is_asked else measured_task(task, prompt, truth)
        known = merged_truth(truth, own_task, {}, id_)
        if asked and not by_prompt:
            known = known.of_labels(asked)
        rows.append(JoinedRow(id_, prompt, None, known, task=own_task))
    return rows


def measured_task(task: str | None, prompt: str | None, truth: Truth | None) -> str:
    """The task that decides a row's metrics: for `ask`, the task of its prompt.

    If the truth has no boxes, a prompt of `ask` that begins with `detect` is a question.
    """
    if task not in ("ask", None):
        return task
    asked = task_of_prompt(prompt)
    return asked if asked not in BOX_TASKS or truth is None or says_boxes(truth) else "ask"


def says_boxes(truth: Truth) -> bool:
    """Whether the truth has boxes; an empty true answer means no boxes."""
    texts = [image.box_text for image in truth]
    is_empty = any(text is not None for text in texts) and not any(
        map(str.strip, filter(None, texts))
    )
    is_known = any(image.objects is not None for image in truth)
    return is_known or is_empty or any(map(has_locations, filter(None, texts)))


def merged_truth(truth: Truth, task: str, row: Row, id_: str) -> LabelledImage:
    """The truth in one, with the boxes in its answers that have location tokens.

    Missing and failed rows may have no size: then boxes are only counted, and areas are NaN. Raises
    UsageError if the row has boxes but no size.
    """
    size = stated_size(row)
    is_unsized = size is None and row.get("boxes") and task in BOX_TASKS
    if is_unsized and any(has_locations(image.box_text or "") for image in truth):
        raise UsageError(
            f"the true boxes of {id_!r} are location tokens, and its row has no width and height",
            hint="give the truth as 'boxes' in pixels, or rows with the size of their image",
        )
    image, _ = merged([with_location_objects(image, size) for image in truth])
    is_empty = image.objects is None and task in BOX_TASKS and says_boxes(truth)
    return replace(image, objects=()) if is_empty else image


def check_rows_differ(name: str, rows: Sequence[Row]) -> None:
    """Raise UsageError for two rows with the same id and prompt."""
    counts = Counter((str(row["id"]), str(prompt_of(row))) for row in rows)
    (id_, prompt), count = counts.most_common(1)[0]
    if count > 1:
        raise UsageError(
            f"{name} has {count:,} rows for {id_!r} with the prompt {prompt!r}",
            hint="keep one of them",
        )


def by_id(by_key: Mapping[Key, Truth], *, have_prompts: bool) -> dict[Key, Truth]:
    """The truth by id alone. Raises UsageError for an id with several prompts."""
    counts = Counter(id_ for id_, _ in by_key)
    id_, count = counts.most_common(1)[0]
    if count > 1:
        way = ", or omit --prompt-column ''" if have_prompts else ""
        raise UsageError(
            f"rows are joined by id alone, and the truth has {count:,} prompts for {id_!r}",
            hint=f"keep one of them in the truth{way}",
        )
    return {(id_, None): truth for (id_, _), truth in by_key.items()}


def nothing_joined(name: str, truths: Truths, row: Row, by_prompt: bool) -> UsageError:
    """The error for a truth that matches no row."""
    id_ = next(iter(truths.by_key))[0]
    asked = [prompt for known, prompt in truths.by_key if known == str(row["id"])]
    if by_prompt and asked:
        return UsageError(
            f"no row of {name} has the same id and prompt in {truths.name}: {row['id']!r} has the "
            f"prompt {str(row['prompt'])!r} in {name}, but {str(asked[0])!r} in {truths.name}",
            hint=f"<--prompt-column=> '' joins rows by id alone; {PROMPT_HINT}",
        )
    return UsageError(
        f"no id in {name} occurs in {truths.name} (first ids: {row['id']!r} and {id_!r})",
        hint="ids of a folder are relative paths, those of COCO file names, and those of VQA "
        "question ids; <--id-column NAME> chooses the column of a table with the ids of the rows",
    )


@cache
def prompt_labels(task: str, prompt: str) -> frozenset[str] | None:
    """The labels that a prompt asks for; None for tasks without boxes."""
    if task not in BOX_TASKS or not prompt.startswith(f"{task} "):
        return None
    labels = prompt.removeprefix(f"{task} ").partition(" <loc")[0].split(";")
    return frozenset(label.strip() for label in labels)
