"""The rows that are trained on: an image each, and a text, a label or an answer."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from pgcli.labelled_rows import Example
from pgcli.pipeline.progress.tally import Tally
from pgcli.pipeline.request.error_budget import ErrorBudget
from pgcli.records import Fault, Item

#: The id and the `image_key` of rows, and for a single row also its prompt and target.
RowKey = tuple[str, ...]
IMAGE_ID = 2  # values of a key that is of all rows of an image


def seed_of(*values: int | str) -> int:
    """A seed of 63 bits that follows from the values, for a generator of its own."""
    digest = hashlib.sha256(repr(values).encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class TargetText(NamedTuple):
    """What is learned of an image: a text, a label, or the answer to a prompt.

    `truth` is all that the row says, by which the model's own answers are measured; None where
    they are not.
    """

    text: str
    prompt: str = ""
    truth: Example | None = None


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """An image and what is learned of it: its text, its label, or the answer to its `prompt`.

    `image_key` is equal for rows of the same file or of the same bytes. Bytes from a table or a
    compressed archive are not held here: they are `bytes_at`, start and size, in the store.
    """

    item: Item
    target: str
    image_key: str
    bytes_at: tuple[int, int] | None = None
    prompt: str = ""
    truth: Example | None = None

    @property
    def image_id(self) -> RowKey:
        """What the image's fault is known by: ids of several sources may be equal."""
        return self.item.id, self.image_key


class RowStore:
    """A temporary file with the bytes of images in tables and compressed archives.

    These are read at random in every epoch, which their sources do not allow.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the store
        self._size = 0

    def add(self, data: bytes) -> tuple[int, int]:
        """Append the data; return where it begins, and its size."""
        self._file.write(data)
        self._size += len(data)
        return self._size - len(data), len(data)

    def read(self, start: int, size: int) -> bytes:
        """The data that was appended."""
        self._file.flush()
        return os.pread(self._file.fileno(), size, start)

    def item(self, row: TrainingRow) -> Item:
        """The row's item, with its bytes where they are stored here."""
        if row.bytes_at is None:
            return row.item
        return replace(row.item, data=self.read(*row.bytes_at))

    def close(self) -> None:
        self._file.close()


class TrainingRows(list[TrainingRow]):
    """The rows of sources; bytes of their images that are not in a file are in the store.

    `skipped` counts rows by the reason: without a target, or with an error in a result file;
    `faults` name those that cannot be used.
    """

    def __init__(self, store: RowStore, rows: Iterable[TrainingRow] = ()):
        super().__init__(rows)
        self.store = store
        self.skipped: Counter[str] = Counter()
        self.faults: list[str] = []

    def add(self, item: Item, target: TargetText) -> None:
        """Append a row; bytes of its image that are not in a file are stored."""
        key, bytes_at = item.path or item.image, None
        if item.span is not None:
            key = f"{key}, {item.span[0]}"
        elif item.data is not None:
            key, bytes_at = hashlib.sha256(item.data).hexdigest(), self.store.add(item.data)
        plain = Item(len(self), item.id, item.image, item.path, root=item.root, span=item.span)
        text, prompt, truth = target
        self.append(TrainingRow(plain, text, key, bytes_at, prompt, truth))

    @property
    def digest(self) -> str:
        """A digest of the images' names and the targets, in order."""
        result = hashlib.sha256()
        for row in self:
            values = (row.image_key, row.target, row.prompt, row.truth)
            result.update(repr(values).encode("utf-8", "surrogateescape"))
        return result.hexdigest()[:16]

    def select(self, rows: Iterable[TrainingRow]) -> TrainingRows:
        """Some of the rows."""
        return TrainingRows(self.store, rows)

    def images(self) -> TrainingRows:
        """The first row of each image."""
        first: dict[str, TrainingRow] = {}
        for row in self:
            first.setdefault(row.image_key, row)
        return self.select(first.values())

    def count_lost(self, faults: Collection[RowKey]) -> int:
        """The number of rows whose image has one of the faults."""
        lost = {key[1] for key in faults if len(key) == IMAGE_ID}
        return sum(row.image_key in lost for row in self)


@dataclass
class RowErrors:
    """The rows of a pass that cannot be used: the reasons by their keys.

    A row that is read again in each epoch counts once. Shares are those of the `rows` of an epoch,
    of which `faults` were lost before their images were read; while rows are read it is not known.
    """

    budget: ErrorBudget = field(default_factory=ErrorBudget)
    rows: int | None = None
    faults: int = 0
    reasons: dict[RowKey, str] = field(default_factory=dict)
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.faults)
        self.tally.errors["unknown"] = self.faults

    def add(self, key: RowKey, item: Item, fault: Fault | None) -> None:
        """Count a row, which may have a fault. Raises TooManyErrors."""
        tally = self.tally
        if fault is None:
            tally.last_errors = 0
        elif key in self.reasons:
            return
        else:
            self.reasons[key] = fault.message
            tally.errors[fault.code] += 1
            tally.last_error = f"{item.id}: {fault.code}: {fault.message}"
            tally.last_errors += 1
        tally.rows = tally.rows + 1 if self.rows is None else min(tally.rows + 1, self.rows)
        self.budget.check(tally)
        if tally.rows == self.rows:
            self.budget.check_share(tally)
