"""The rows that are trained on, in a file: an image each, and a text, a label or an answer."""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np

from pgcli.records import Fault, Item
from pgcli.run.progress.tally import ErrorBudget, Tally

#: One token each; other text has about a token for four bytes.
SPECIAL_TOKEN = re.compile("<(?:loc[0-9]{4}|seg[0-9]{3})>")
BYTES_OF_TOKEN = 4
#: The id and the `image_key` of rows, and for a single row also its prompt and target.
RowKey = tuple[str, ...]
IMAGE_ID = 2  # values of a key that is of all rows of an image


class Target(NamedTuple):
    """What is learned of an image: a text, a label, or the answer to a prompt.

    `answers` are all true ones, of which the `text` is the one that is learned.
    """

    text: str
    prompt: str = ""
    answers: tuple[str, ...] = ()


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
    answers: tuple[str, ...] = ()

    @property
    def image_id(self) -> RowKey:
        """What the image's fault is known by: ids of several sources may be equal."""
        return self.item.id, self.image_key


class RowStore:
    """Data that is appended to a temporary file, and read at random: rows, and bytes of images.

    Rows are read in random order in every epoch, which tables and compressed archives do not allow.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the store
        self._size = 0
        self._is_flushed = True

    def add(self, data: bytes) -> tuple[int, int]:
        """Append the data; return where it begins, and its size."""
        self._file.write(data)
        self._is_flushed = False
        self._size += len(data)
        return self._size - len(data), len(data)

    def read(self, start: int, size: int) -> bytes:
        """The data that was appended."""
        if not self._is_flushed:
            self._file.flush()
            self._is_flushed = True
        return os.pread(self._file.fileno(), size, start)

    def item(self, row: TrainingRow) -> Item:
        """The row's item, with its bytes where they are stored here."""
        if row.bytes_at is None:
            return row.item
        return replace(row.item, data=self.read(*row.bytes_at))

    def close(self) -> None:
        self._file.close()


class TrainingRows(Sequence[TrainingRow]):
    """Rows in a store, of which 24 bytes each are held in memory.

    `left_out` counts rows by the reason: without a target, or with an error in a result file;
    `faults` name those that cannot be used. `lengths` are estimates of the tokens of prompt and
    target; `image_keys` are digests of the rows' `image_key`.
    """

    def __init__(self, store: RowStore):
        self.store = store
        self.left_out: Counter[str] = Counter()
        self.faults: list[str] = []
        self.lengths, self.image_keys = array("I"), array("Q")
        self._starts, self._sizes = array("Q"), array("I")
        self._digest = hashlib.sha256()

    def add(self, item: Item, target: Target) -> None:
        """Append a row; bytes of its image that are not in a file are stored."""
        key, bytes_at = item.path or item.image, None
        if item.span is not None:
            key = f"{key}, {item.span[0]}"
        elif item.data is not None:
            key, bytes_at = hashlib.sha256(item.data).hexdigest(), self.store.add(item.data)
        values = (item.id, item.image, item.path, item.root, item.span, *target, key, bytes_at)
        start, size = self.store.add(json.dumps(values).encode())
        self._starts.append(start)
        self._sizes.append(size)
        self.lengths.append(text_length(target.prompt) + text_length(target.text))
        self.image_keys.append(digest_of(key))
        self._digest.update(repr((key, *target)).encode("utf-8", "surrogateescape"))

    @property
    def digest(self) -> str:
        """A digest of the images' names and the targets, in order."""
        return self._digest.hexdigest()[:16]

    def select(self, numbers: Iterable[int]) -> TrainingRows:
        """Some of the rows."""
        selected, chosen = TrainingRows(self.store), array("Q", numbers)
        for own, column in zip(self._columns, selected._columns, strict=True):
            column.extend(own[number] for number in chosen)
        return selected

    def images(self) -> TrainingRows:
        """The first row of each image."""
        _, first = np.unique(np.array(self.image_keys), return_index=True)
        return self.select(np.sort(first).tolist())

    def count_lost(self, faults: Collection[RowKey]) -> int:
        """The number of rows whose image has one of the faults."""
        digests = [digest_of(key[1]) for key in faults if len(key) == IMAGE_ID]
        return int(np.isin(np.array(self.image_keys), np.array(digests, dtype=np.uint64)).sum())

    def joined(self, rows: TrainingRows) -> TrainingRows:
        """These rows and then the others, of the same store."""
        both = self.select(range(len(self)))
        for own, column in zip(both._columns, rows._columns, strict=True):
            own.extend(column)
        return both

    @property
    def _columns(self) -> tuple[array[int], ...]:
        return self.lengths, self.image_keys, self._starts, self._sizes

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, number: int) -> TrainingRow: ...
    @overload
    def __getitem__(self, number: slice) -> list[TrainingRow]: ...
    def __getitem__(self, number: int | slice) -> TrainingRow | list[TrainingRow]:
        if isinstance(number, slice):
            return [self[index] for index in range(*number.indices(len(self)))]
        values = json.loads(self.store.read(self._starts[number], self._sizes[number]))
        id_, image, path, root, span, text, prompt, answers, key, bytes_at = values
        item = Item(number % len(self), id_, image, path, root=root, span=span and tuple(span))
        bytes_at = bytes_at and tuple(bytes_at)
        return TrainingRow(item, text, key, bytes_at, prompt, tuple(answers) or (text,))

    def __iter__(self) -> Iterator[TrainingRow]:
        return (self[number] for number in range(len(self)))


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
            tally.most_errors = max(tally.most_errors, tally.last_errors)
        tally.rows = tally.rows + 1 if self.rows is None else min(tally.rows + 1, self.rows)
        self.budget.check(tally)
        if tally.rows == self.rows:
            self.budget.check_share(tally)


def digest_of(image_key: str) -> int:
    """The digest of a row's `image_key`."""
    digest = hashlib.sha256(image_key.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big")


def text_length(text: str) -> int:
    """About how many tokens a text has. Equal texts have equal lengths with every model."""
    rest, special = SPECIAL_TOKEN.subn("", text)
    return special + -(-len(rest.encode("utf-8", "surrogatepass")) // BYTES_OF_TOKEN)
