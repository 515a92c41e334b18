"""The rows that are trained on: an image each, and a text, a label or an answer."""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import overload

import numpy as np

from pgcli.errors import NoInputError
from pgcli.inputs import ReadOptions
from pgcli.records import Item
from pgcli.run.progress.tally import ErrorBudget
from pgcli.training.row_errors import RowErrors
from pgcli.training.row_store import RowStore
from pgcli.training.targets import Targets, TrainingTarget, is_error_row
from pgcli.training.training_row import IMAGE_ID, RowKey, TrainingRow

#: One token each; other text has about a token for four bytes.
SPECIAL_TOKEN = re.compile("<(?:loc[0-9]{4}|seg[0-9]{3})>")
BYTES_OF_TOKEN = 4


class TrainingRows(Sequence[TrainingRow]):
    """Rows in a store, of which 24 bytes each are held in memory.

    `left_out` counts rows by the reason: without a target, with an error in a result file, or with
    an image's fault, of which the `first_fault` is named. `lengths` are estimates of the tokens of
    prompt and target; `image_keys` are digests of the rows' `image_key`.
    """

    def __init__(self, store: RowStore):
        self.store = store
        self.left_out: Counter[str] = Counter()
        self.first_fault = ""
        self.lengths, self.image_keys = array("I"), array("Q")
        self._starts, self._sizes = array("Q"), array("I")
        self._digest = hashlib.sha256()

    def add(self, item: Item, target: TrainingTarget) -> None:
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
        for own, other in zip(self._columns, selected._columns, strict=True):
            other.extend(own[number] for number in chosen)
        return selected

    def images(self) -> TrainingRows:
        """The first row of each image."""
        _, first = np.unique(np.array(self.image_keys), return_index=True)
        return self.select(np.sort(first).tolist())

    def count_lost(self, faults: Collection[RowKey]) -> int:
        """The number of rows whose image has one of the faults."""
        digests = [digest_of(key[1]) for key in faults if len(key) == IMAGE_ID]
        return int(np.isin(np.array(self.image_keys), np.array(digests, dtype=np.uint64)).sum())

    def extend(self, others: TrainingRows) -> None:
        """Append the rows of the same store."""
        for own, other in zip(self._columns, others._columns, strict=True):
            own.extend(other)

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
            return [self[one] for one in range(*number.indices(len(self)))]
        stored = self.store.read(self._starts[number], self._sizes[number])
        id_, image, path, root, span, text, prompt, key, bytes_at = json.loads(stored)
        item = Item(number % len(self), id_, image, path, root=root, span=span and tuple(span))
        return TrainingRow(item, text, key, bytes_at and tuple(bytes_at), prompt)

    def __iter__(self) -> Iterator[TrainingRow]:
        return (self[number] for number in range(len(self)))


def digest_of(image_key: str) -> int:
    """The digest of a row's `image_key`."""
    digest = hashlib.sha256(image_key.encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big")


def text_length(text: str) -> int:
    """About how many tokens a text has. Equal texts have equal lengths with every model."""
    rest, special = SPECIAL_TOKEN.subn("", text)
    return special + -(-len(rest.encode("utf-8", "surrogatepass")) // BYTES_OF_TOKEN)


def read_rows(
    sources: Sequence[str],
    options: ReadOptions,
    store: RowStore,
    targets: Targets,
    *,
    track: Callable[[Iterable[Item]], Iterable[Item]] = iter,
    errors: RowErrors | None = None,
) -> TrainingRows:
    """The rows of the sources, which are stored; `errors` counts those with an image's fault.

    Raises UsageError for images without columns, NoInputError if no row is left, and TooManyErrors.
    """
    errors = errors or RowErrors(ErrorBudget(max_share=1.0))
    found = TrainingRows(store)
    for name in sources:
        items, find = targets.open(name, options)
        for item in track(items):
            if is_error_row(item):
                found.left_out["with_error"] += 1
            elif item.fault is not None:
                errors.add((item.id, item.image), item, item.fault)
                found.left_out["with_fault"] += 1
                found.first_fault = found.first_fault or f"{item.id}: {item.fault.message}"
            elif (target := find(item)) is None:
                found.left_out["without_target"] += 1
            else:
                errors.add((item.id, item.image), item, None)
                found.add(item, target)
    errors.budget.check_share(errors.tally)
    if not found:
        raise NoInputError(
            f"no row of {', '.join(sources)} has an image with {targets.name}"
            + (f"; {found.first_fault}" if found.first_fault else ""),
            hint=targets.hint,
        )
    return found
