"""Reads the edits of a page of `pgcli view`, and applies them to rows.

The page in one file saves a document; the page on a server appends a line for each edit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pgcli.boxes import clipped
from pgcli.errors import UsageError
from pgcli.labels.json_values import (
    InvalidValue,
    array,
    label,
    mapping,
    read_document,
    text,
    value_errors,
    whole_number,
)
from pgcli.output.lines import read_lines
from pgcli.output.reader import Row, read_results, reading
from pgcli.parsing import detection_text
from pgcli.records import BOX_TASKS, CORNERS, Box
from pgcli.results.image_locator import image_index
from pgcli.results.pages import clean_line, clean_text
from pgcli.rows import DIGEST_CHARACTERS, answer_digest, box_to_dict, prompt_of, read_boxes
from pgcli.text import json_object

FORMAT, VERSION = "pgcli edits", 1
MAX_BYTES = 128 * 2**20
HINT = "name the file that the page of pgcli view saved with 'Save edits'"
LINES_HINT = "remove this line, or name the file that pgcli view --serve wrote"
EDIT_KEYS = {"file", "index", "id", "prompt", "digest", "state", "answer", "boxes"}
EDIT_KEYS |= {"reviewer"}
STATES = ("accepted", "rejected", "open")
BOX_KEYS = {"label", "source", *CORNERS}
#: In pixels. The page writes corners to a tenth: a box with a smaller difference was not moved.
SAME_PIXELS = 0.06


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of the row with this `key` and `digest`; id and prompt are written as on the page.

    `answer` is the corrected text, None if unchanged. `boxes` are all boxes of the corrected row,
    None if unchanged, each with its index among the model's boxes or None for a drawn box. `file`
    names the result file on a page of several. `number` counts the edits from 1. A row that is
    `open` again has no edit. `values` are state, answer and boxes as in the file.
    """

    number: int
    index: int
    id: str
    prompt: str
    digest: str
    state: Literal["accepted", "rejected", "open"]
    answer: str | None = None
    boxes: tuple[tuple[Box, int | None], ...] | None = None
    file: str | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, str, str]:
        """The identity of the row."""
        return self.index, self.id, self.prompt

    @property
    def is_correction(self) -> bool:
        """Whether the edit changes the row."""
        return self.answer is not None or self.boxes is not None

    def __str__(self) -> str:
        return f"edit {self.number} ({self.id[:100]!r}, {self.prompt[:100]!r})"


def edits_file(output: Path) -> Path:
    """The file to which the server of a page appends the edits of an output."""
    path = output if output.name else output.resolve()  # of `.`
    return path.with_name(f"{path.name}.edits.jsonl")


def read_edits(file: Path) -> list[Edit]:
    """The edits in a file; of lines the last one of each row. Raises UsageError."""
    if file.suffix.lower() == ".jsonl":
        latest = {edit.key: edit for edit in read_edit_lines(file)}
        return [edit for edit in latest.values() if edit.state != "open"]
    document = read_document(file, MAX_BYTES, hint=HINT)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{file} is not an edits file of pgcli view", hint=HINT)
    if document.get("version") != VERSION:
        raise UsageError(
            f"{file} has version {document.get('version')!r} of edits, not {VERSION}",
            hint="make the page again with this version of pgcli, or update pgcli",
        )
    with value_errors(file, hint=HINT):
        edits = enumerate(array(document.get("edits"), "edits"), start=1)
        return [read_edit(edit, number) for number, edit in edits]


def read_edit_lines(file: Path) -> list[Edit]:
    """The edits in the lines of a file, without a truncated last one. Raises UsageError."""
    edits = []
    if not file.exists():
        hint = "pgcli view RESULTS --serve writes it; or name the file that a page saved"
        raise UsageError(f"{file} does not exist", hint=hint)
    with reading(file), value_errors(file, hint=LINES_HINT):
        for number, line in enumerate(read_lines(file), start=1):
            values = json_object(line)
            if values is None and not line.endswith(b"\n"):
                break
            edits.append(read_edit(values, number))
    return edits


def read_edit(value: object, number: int) -> Edit:
    """One edit. Raises InvalidValue."""
    what = f"edit {number}"
    values = mapping(value, what)
    if unknown := values.keys() - EDIT_KEYS:
        raise InvalidValue(f"{what} has an unknown key, {min(unknown)!r}")
    state = values.get("state")
    if state not in STATES:
        raise InvalidValue(f"{what}: state is neither accepted nor rejected nor open")
    digest = text(values.get("digest"), f"{what}: digest")
    if len(digest) != DIGEST_CHARACTERS:
        raise InvalidValue(f"{what}: digest does not have {DIGEST_CHARACTERS} characters")
    answer, file = values.get("answer"), values.get("file")
    return Edit(
        number,
        whole_number(values.get("index"), f"{what}: index"),
        text(values.get("id"), f"{what}: id"),
        text(values.get("prompt"), f"{what}: prompt"),
        digest,
        state,
        None if answer is None else text(answer, f"{what}: answer"),
        None if values.get("boxes") is None else edited_boxes(values["boxes"], f"{what}: boxes"),
        None if file is None else text(file, f"{what}: file"),
        {name: values[name] for name in ("state", "answer", "boxes") if name in values},
    )


def edited_boxes(value: object, what: str) -> tuple[tuple[Box, int | None], ...]:
    """The boxes of a corrected row, each with its source. Raises ValueError."""
    pairs = []
    boxes = read_boxes(value, what)
    for place, (box, values) in enumerate(zip(boxes, array(value, what), strict=True)):
        name, source = f"{what}[{place}]", values.get("source")
        if unknown := values.keys() - BOX_KEYS:
            raise InvalidValue(f"{name} has an unknown key, {min(unknown)!r}")
        source = None if source is None else whole_number(source, f"{name}: source")
        pairs.append((replace(box, label=label(box.label, f"{name}: label")), source))
    return tuple(pairs)


def corrected(row: Mapping[str, Any], edit: Edit) -> dict[str, Any]:
    """The row with the edit's answer or boxes, and without the numbers of the model's tokens.

    The answer is rewritten from corrected boxes. Raises InvalidValue if the edit does not fit.
    """
    changed = dict(row)
    if not edit.is_correction:
        return changed
    if edit.answer is not None:
        if row.get("boxes") or row.get("task") in BOX_TASKS:
            raise InvalidValue(
                f"{edit} changes the answer of a row with boxes instead of its boxes"
            )
        changed["answer"] = edit.answer.strip()
    if edit.boxes is not None:
        own = read_boxes(row.get("boxes") or ())
        pairs = [corrected_box(row, own, *pair, edit) for pair in edit.boxes]
        changed["boxes"] = [box_to_dict(box) for box, _ in pairs]
        if isinstance(row.get("masks"), list):
            changed["masks"] = [mask for _, mask in pairs]
        codes = [mask["codes"] if mask else None for _, mask in pairs]
        changed["answer"] = detection_text(
            [box for box, _ in pairs], codes, width=row["width"], height=row["height"]
        )
    return changed | {name: None for name in ("tokens", "finish", "logprob") if name in row}


def corrected_box(
    row: Mapping[str, Any], own_boxes: Sequence[Box], box: Box, source: int | None, edit: Edit
) -> tuple[Box, dict[str, Any] | None]:
    """A box of the corrected row and its mask.

    A drawn box has a score and a confidence of 1 and no mask. A moved box keeps the codes of its
    mask, which are relative to the box, and loses the pixels. Raises InvalidValue for an unknown
    source and for a box without an area in the image.
    """
    masks = row.get("masks") or ()
    if source is not None and source >= len(own_boxes):
        raise InvalidValue(f"{edit} changes box {source}, which the row does not have")
    own, mask = Box(box.label, *box.corners, 1.0, 1.0), None
    if source is not None:
        own = replace(own_boxes[source], label=box.label)
        mask = masks[source] if source < len(masks) else None
        if all(abs(a - b) < SAME_PIXELS for a, b in zip(own.corners, box.corners, strict=True)):
            return own, mask
    corners = clipped(box.corners, (row["width"], row["height"]))
    if corners is None:
        raise InvalidValue(f"{edit} has a box with no area in the image")
    return own.moved(corners), mask and mask | {"rle": None}


#: The rows to write.
WantedRows = Literal["not-rejected", "accepted", "all"]
UNWANTED = {"not-rejected": ("rejected",), "accepted": ("rejected", "open"), "all": ()}


@dataclass
class MatchedEdits:
    """The applicable edits by the key of their row, and the others.

    The row of a `missing` edit does not exist, and the row of a `changed` edit has another answer.
    `elsewhere` counts the edits of other files.
    """

    applied: dict[tuple[int, str, str], Edit] = field(default_factory=dict)
    missing: list[Edit] = field(default_factory=list)
    changed: list[Edit] = field(default_factory=list)
    elsewhere: int = 0
    columns: dict[str, None] = field(default_factory=dict)


def match_edits(edits: Sequence[Edit], output: Path, rows: Iterator[Row]) -> MatchedEdits:
    """Find the row of each edit. Raises UsageError for two edits of one row."""
    names = {clean_line(output.name), clean_line(str(output))}
    own = [edit for edit in edits if edit.file is None or edit.file in names]
    wanted: dict[tuple[int, str, str], Edit] = {}
    for edit in own:
        if (first := wanted.setdefault(edit.key, edit)) is not edit:
            raise UsageError(
                f"{edit} edits the same row as edit {first.number}", hint="remove one of the two"
            )
    matched = MatchedEdits(elsewhere=len(edits) - len(own))
    for row in rows:
        matched.columns |= dict.fromkeys(row)
        matching = wanted.pop(row_key(row), None)
        if matching is not None and matching.digest == answer_digest(row):
            matched.applied[matching.key] = matching
        elif matching is not None:
            matched.changed.append(matching)
    matched.missing = list(wanted.values())
    return matched


def row_key(row: Row) -> tuple[int, str, str]:
    """The key of a row, written as on the page."""
    return image_index(row), clean_text(row["id"]) or "", clean_text(prompt_of(row)) or ""


class EditedRows:
    """The rows in order, with their edits applied.

    `counts` has the written `rows` of the last pass, all `accepted`, `rejected` and `open` rows,
    and the `corrected` ones among the accepted.
    """

    def __init__(self, output: Path, edits: MatchedEdits, wanted: WantedRows):
        self._output, self._edits, self._wanted = output, edits.applied, wanted
        self.counts: Counter[str] = Counter()

    def __iter__(self) -> Iterator[Row]:
        """The wanted rows. Raises UsageError for an edit that does not fit its row."""
        self.counts.clear()
        for row in read_results(self._output, exact=True):
            edit = self._edits.get(row_key(row))
            state = "open" if edit is None else edit.state
            self.counts[state] += 1
            if state in UNWANTED[self._wanted]:
                continue
            self.counts["rows"] += 1
            if edit is None or state == "rejected":
                yield row
                continue
            self.counts["corrected"] += edit.is_correction
            try:
                yield corrected(row, edit)
            except (ValueError, TypeError, KeyError, AttributeError) as problem:
                text = f"{edit}: the boxes of its row are invalid: {problem}"
                raise UsageError(
                    str(problem) if isinstance(problem, InvalidValue) else text,
                    hint="remove this edit from the file, or make the page again",
                ) from problem
