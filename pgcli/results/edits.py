"""The edits that the page of `pgcli view` saves: reading them, and the rows they correct."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pgcli.errors import UsageError
from pgcli.parsing import detection_text
from pgcli.records import BOX_TASKS
from pgcli.results.imports.json_document import read_document
from pgcli.results.imports.value_checks import (
    InvalidValue,
    array,
    label,
    mapping,
    text,
    whole_number,
)
from pgcli.rows import DIGEST_CHARACTERS

FORMAT, VERSION = "pgcli edits", 1
MAX_BYTES = 128 * 2**20
HINT = "name the file that the page of pgcli view saved with 'Save edits'"
EDIT_KEYS = {"file", "index", "id", "prompt", "digest", "state", "answer", "labels"}


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of a row, which `key` and `digest` identify; id and prompt are as the page has them.

    `answer` is the corrected text, None if it is unchanged. `labels` maps the number of a box to
    its label, or to None if the box is removed. `file` is the name of the result file on a page of
    several. `number` counts the edits of the file from 1.
    """

    number: int
    index: int
    id: str
    prompt: str
    digest: str
    state: Literal["accepted", "rejected"]
    answer: str | None = None
    labels: Mapping[int, str | None] = field(default_factory=dict)
    file: str | None = None

    @property
    def key(self) -> tuple[int, str, str]:
        """What names the row."""
        return self.index, self.id, self.prompt

    @property
    def is_correction(self) -> bool:
        """Whether the edit changes the row."""
        return self.answer is not None or bool(self.labels)

    def __str__(self) -> str:
        return f"edit {self.number} ({self.id[:100]!r}, {self.prompt[:100]!r})"


def read_edits(file: Path) -> list[Edit]:
    """The edits of a file. Raises UsageError for anything that is not such a file."""
    document = read_document(file, MAX_BYTES, hint=HINT)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise UsageError(f"{file} is not a file of edits", hint=HINT)
    if document.get("version") != VERSION:
        raise UsageError(
            f"{file} has version {document.get('version')!r} of edits, and this is version "
            f"{VERSION}",
            hint="make the page again with this version of pgcli, or update pgcli",
        )
    try:
        found = enumerate(array(document.get("edits"), "edits"), start=1)
        return [read_edit(one, number) for number, one in found]
    except InvalidValue as problem:
        raise UsageError(f"{file}: {problem}", hint=HINT) from problem


def read_edit(value: object, number: int) -> Edit:
    """One edit. Raises InvalidValue."""
    what = f"edit {number}"
    found = mapping(value, what)
    if unknown := found.keys() - EDIT_KEYS:
        raise InvalidValue(f"{what} has an unknown key, {min(unknown)!r}")
    state = found.get("state")
    if state not in ("accepted", "rejected"):
        raise InvalidValue(f"{what}: state is neither 'accepted' nor 'rejected'")
    digest = text(found.get("digest"), f"{what}: digest")
    if len(digest) != DIGEST_CHARACTERS:
        raise InvalidValue(f"{what}: digest does not have {DIGEST_CHARACTERS} characters")
    answer, file = found.get("answer"), found.get("file")
    return Edit(
        number,
        whole_number(found.get("index"), f"{what}: index"),
        text(found.get("id"), f"{what}: id"),
        text(found.get("prompt"), f"{what}: prompt"),
        digest,
        state,
        None if answer is None else text(answer, f"{what}: answer"),
        read_labels(found.get("labels"), f"{what}: labels"),
        None if file is None else text(file, f"{what}: file"),
    )


def read_labels(value: object, what: str) -> dict[int, str | None]:
    """The labels of boxes by their numbers. Raises InvalidValue."""
    labels: dict[int, str | None] = {}
    for key, name in mapping({} if value is None else value, what).items():
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise InvalidValue(f"{what}: {key!r} is not the number of a box")
        labels[int(key)] = None if name is None else label(name, f"{what}: {key}")
    return labels


def corrected(row: Mapping[str, Any], edit: Edit) -> dict[str, Any]:
    """The row with the edit's answer or labels, and without the numbers of the model's tokens.

    The answer of boxes is written anew from them. Raises InvalidValue for an edit that the row
    cannot have.
    """
    changed = dict(row)
    if not edit.is_correction:
        return changed
    boxes, masks = list(row.get("boxes") or ()), row.get("masks")
    if edit.answer is not None:
        if boxes or row.get("task") in BOX_TASKS:
            raise InvalidValue(f"{edit} changes the answer of a row with boxes, and not the labels")
        changed["answer"] = edit.answer.strip()
    if edit.labels:
        if max(edit.labels) >= len(boxes):
            raise InvalidValue(
                f"{edit} changes box {max(edit.labels)}, which the row does not have"
            )
        kept = [number for number in range(len(boxes)) if edit.labels.get(number, "") is not None]
        changed["boxes"] = [
            boxes[number] | {"label": edit.labels.get(number) or boxes[number].get("label")}
            for number in kept
        ]
        if isinstance(masks, list):
            changed["masks"] = [masks[number] for number in kept if number < len(masks)]
        changed["answer"] = detection_text(
            changed["boxes"], changed.get("masks") or (), width=row["width"], height=row["height"]
        )
    return changed | {name: None for name in ("tokens", "finish", "logprob") if name in row}
