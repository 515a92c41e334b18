"""Training rows: an image with a text, a label or an answer; and the checks of their images."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pgcli.errors import NoInputError, UsageError
from pgcli.images import ImageDecoder
from pgcli.images.decode import ImageSpec
from pgcli.images.pool import decode_ahead
from pgcli.labels.labelled_image import LabelledImage
from pgcli.records import Fault, Item
from pgcli.run.options import ErrorBudget
from pgcli.run.progress import Tally, check_error_share, check_errors
from pgcli.stores.files import open_regular
from pgcli.stores.urls import url_scheme
from pgcli.text import count, listed
from pgcli.training.options import TrainOptions

#: The id and `image_key` of all rows of an image; for a single row also its prompt and target.
RowKey = tuple[str, ...]
IMAGE_ID = 2  # values in the key of an image
SIDE = 8  # of the decoded copies that a check makes, in pixels

#: Shows the progress of an iteration.
Track = Callable[[Iterable[Any]], Iterable[Any]]


def seed_of(*values: int | str) -> int:
    """A seed of 63 bits, derived from the values."""
    digest = hashlib.sha256(repr(values).encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """An image and its target: a text, a label, or the answer to `prompt`.

    Rows with the same file or the same bytes have the same `image_key`. The store holds bytes from
    tables and compressed archives, at `bytes_at` (start and size).
    """

    item: Item
    target: str
    image_key: str
    bytes_at: tuple[int, int] | None = None
    prompt: str = ""
    truth: LabelledImage | None = None

    @property
    def image_id(self) -> RowKey:
        """The key of the image's fault; the id alone may repeat across sources."""
        return self.item.id, self.image_key


class RowStore:
    """A temporary file with the image bytes of tables and compressed archives.

    Epochs read images in random order, which tables and archives do not allow.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the store
        self._size = 0

    def add(self, data: bytes) -> tuple[int, int]:
        """Append the data; return its start and size."""
        self._file.write(data)
        self._size += len(data)
        return self._size - len(data), len(data)

    def read(self, start: int, size: int) -> bytes:
        """The data at a position that `add` returned."""
        self._file.flush()
        return os.pread(self._file.fileno(), size, start)

    def item(self, row: TrainingRow) -> Item:
        """The row's item, with its bytes if they are in the store."""
        if row.bytes_at is None:
            return row.item
        return replace(row.item, data=self.read(*row.bytes_at))

    def close(self) -> None:
        self._file.close()


class TrainingRows(list[TrainingRow]):
    """The rows of sources; the store has the bytes of images outside of files.

    `skipped` counts rows by reason: `without_target`, or `with_error` in a result file. `faults`
    describes the unusable rows, `columns` are the columns of the sources.
    """

    def __init__(self, store: RowStore, rows: Iterable[TrainingRow] = ()):
        super().__init__(rows)
        self.store = store
        self.skipped: Counter[str] = Counter()
        self.faults: list[str] = []
        self.columns: dict[str, None] = {}

    def add(self, item: Item, labels: LabelledImage, *, keeps_truth: bool = False) -> None:
        """Append a row whose target is the most frequent of its answers, a text or a label.

        `keeps_truth` keeps the labels for the metrics of generated answers. The store keeps the
        bytes of an image outside of files.
        """
        key, bytes_at = item.path or item.image, None
        if item.span is not None:
            key = f"{key}, {item.span[0]}"
        elif item.data is not None:
            key, bytes_at = hashlib.sha256(item.data).hexdigest(), self.store.add(item.data)
        plain = Item(len(self), item.id, item.image, item.path, root=item.root, span=item.span)
        target = Counter(map(str.strip, labels.answers)).most_common(1)[0][0]
        truth = labels if keeps_truth else None
        self.append(TrainingRow(plain, target, key, bytes_at, labels.prompt or "", truth))

    @property
    def digest(self) -> str:
        """A digest of the image names and targets, in order."""
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


@dataclass
class RowErrors:
    """The unusable rows of a run: `reasons` by key; each row counts once, not in every epoch.

    Shares refer to the `rows` of an epoch, which is None while rows are read; `faults` of them were
    unusable before their images were read.
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
        """Count a row and its fault, if any. Raises TooManyErrors."""
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
        check_errors(tally, self.budget)
        if tally.rows == self.rows:
            check_error_share(tally, self.budget)


def is_remote(row: TrainingRow) -> bool:
    """Whether the row's image is at a URL."""
    return row.bytes_at is None and bool(url_scheme(row.item.path or ""))


def check_readable(rows: TrainingRows, name: str, options: TrainOptions) -> None:
    """Raise NoInputError, with the first image, if all images of the rows are unreadable.

    Decodes images until one succeeds, local ones first. Raises TooManyErrors for URLs.
    """
    first, errors = "", RowErrors(options.error_budget)
    images = rows.select(sorted(rows.images(), key=is_remote))
    decoded = decode_ahead(
        map(rows.store.item, images),
        ImageDecoder(ImageSpec(SIDE, fast_decode=options.fast_decode), options.image_limits),
        workers=options.workers,
        total=len(images),
        reader=options.make_reader(),
    )
    with closing(decoded):
        for row, image in zip(images, filter(None, decoded), strict=True):
            if image.fault is None:
                return
            first = first or f"{row.item.id}: {image.fault.message}"
            if is_remote(row):
                errors.add(row.image_id, row.item, image.fault)
    if first:
        raise NoInputError(
            f"none of the images of {name} can be read (first: {first})",
            hint="correct the images or their paths",
        )


def distinct_keys(rows: TrainingRows, *, track: Track = iter) -> dict[str, str]:
    """For each `image_key`, the key of the first image with the same bytes.

    Images at URLs are compared by URL.
    """
    first: dict[bytes, str] = {}
    distinct: dict[str, str] = {}
    for row in track(rows.images()):
        key, digest = row.image_key, image_digest(row, rows.store)
        distinct[key] = key if digest is None else first.setdefault(digest, key)
    return distinct


def image_digest(row: TrainingRow, store: RowStore) -> bytes | None:
    """A digest of the bytes of the row's image; None for a URL or an unreadable file."""
    if is_remote(row):
        return None
    if row.bytes_at is not None:
        return hashlib.sha256(store.read(*row.bytes_at)).digest()
    try:
        with open_regular(row.item.path or "", row.item.root) as file:
            if row.item.span is None:
                return hashlib.file_digest(file, "sha256").digest()
            start, size = row.item.span
            if not size:  # a page of a PDF
                return None
            file.seek(start)
            return hashlib.sha256(file.read(size)).digest()
    except (OSError, ValueError):
        return None


def split_by_image(
    rows: TrainingRows, fraction: float, seed: int, *, track: Track = iter
) -> tuple[TrainingRows, TrainingRows]:
    """The rows to train on, and the rows of a fraction of the images, at least one, to evaluate on.

    Rows with the same image bytes are on the same side. The seed and the names of the images
    determine which images are held out. Raises UsageError if no image remains to train on.
    """
    distinct, place = distinct_keys(rows, track=track), dict[str, int]()
    for key, first in distinct.items():
        name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
        number = int.from_bytes(name[:8], "big") ^ seed_of(seed, "split")
        place[first] = min(number, place.get(first, number))
    images = sorted(place, key=place.__getitem__)
    held_out = {*images[: max(1, math.ceil(fraction * len(images)))]}
    if len(held_out) == len(images):
        raise UsageError(
            f"<--eval-fraction {fraction:g}> leaves no image to train on",
            hint="give more images, or <--eval SOURCE>",
        )
    return (
        rows.select(row for row in rows if distinct[row.image_key] not in held_out),
        rows.select(row for row in rows if distinct[row.image_key] in held_out),
    )


def check_apart(train: TrainingRows, evaluation: TrainingRows, *, track: Track = iter) -> None:
    """Raise UsageError if the same image bytes are on both sides."""
    distinct = distinct_keys(train.select([*train, *evaluation]), track=track)
    trained = {distinct[row.image_key]: row.item.id for row in reversed(train)}
    shared = {distinct[row.image_key]: row.item.id for row in reversed(evaluation)}
    names = [
        held_out if held_out == trained[key] else f"{held_out} ({trained[key]} in the sources)"
        for key, held_out in reversed(shared.items())
        if key in trained
    ]
    if names:
        raise UsageError(
            f"{count(len(names), 'image')} in both <--eval=> and the sources (same bytes): "
            f"{listed(names, separator=';')}",
            hint="remove them from one side, or let <--eval-fraction 0.05> split the sources by "
            "image",
        )
