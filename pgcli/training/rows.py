"""Training rows: an image with a text, a label or an answer; and the checks of their images."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Generator, Hashable, Iterable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.errors import NoInputError, UsageError
from pgcli.images import ImageDecoder
from pgcli.images.decode import ImageSpec
from pgcli.images.pool import decode_ahead
from pgcli.labels.labelled_image import LabelledImage
from pgcli.records import Fault, Item
from pgcli.run.progress.tally import Tally
from pgcli.run.request.error_budget import ErrorBudget
from pgcli.stores.files import open_regular
from pgcli.stores.urls import url_scheme
from pgcli.text import count, listed
from pgcli.training.options import TrainOptions

#: The id and `image_key` of all rows of an image; for a single row also its prompt and target.
RowKey = tuple[str, ...]
IMAGE_ID = 2  # values in the key of an image
SIDE = 8  # of the decoded copies that a check makes, in pixels
#: Compared first for images of equal size: compressed images differ in their last bytes.
END_BYTES = 4096
CHUNK_BYTES = 2**20

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

    def count_lost(self, faults: Collection[RowKey]) -> int:
        """The number of rows whose image is among the faults."""
        lost = {key[1] for key in faults if len(key) == IMAGE_ID}
        return sum(row.image_key in lost for row in self)


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
            self.budget.check_share(tally)


def is_remote(row: TrainingRow) -> bool:
    """Whether the row's image is at a URL."""
    return row.bytes_at is None and bool(url_scheme(row.item.path or ""))


def check_readable(rows: TrainingRows, name: str, options: TrainOptions) -> None:
    """Raise NoInputError, with the first image, if all images of the rows are unreadable.

    Reads images until one succeeds, local ones first. Raises TooManyErrors for URLs.
    """
    first: tuple[str, Fault] | None = None
    errors = RowErrors(options.error_budget)
    ordered = sorted(rows.images(), key=is_remote)
    with closing(image_faults(rows.select(ordered), options)) as images:
        for row, fault in images:
            if fault is None:
                return
            first = first or (row.item.id, fault)
            if is_remote(row):
                errors.add(row.image_id, row.item, fault)
    if first is not None:
        raise NoInputError(
            f"none of the images of {name} can be read (first: {first[0]}: {first[1].message})",
            hint="correct the images or their paths",
        )


def image_faults(
    rows: TrainingRows, options: TrainOptions
) -> Generator[tuple[TrainingRow, Fault | None]]:
    """The rows, each with the fault of its image or None; decodes all pixels."""
    decoder = ImageDecoder(ImageSpec(SIDE, fast_decode=options.fast_decode), options.image_limits)
    decoded = decode_ahead(
        map(rows.store.item, rows),
        decoder,
        workers=options.workers,
        total=len(rows),
        reader=options.make_reader(),
    )
    with closing(decoded):
        for row, image in zip(rows, filter(None, decoded), strict=True):
            yield row, image.fault


def distinct_keys(
    rows: TrainingRows,
    is_compared: Callable[[Collection[str]], bool] = lambda keys: len(keys) > 1,
    *,
    track: Track = iter,
) -> dict[str, str]:
    """For each `image_key`, the key of the first image with the same bytes.

    Compares sizes, then the last 4,096 bytes, then all bytes, within groups of keys for which
    `is_compared` holds. Images at URLs are compared by URL.
    """
    images = {row.image_key: row for row in rows}
    groups = [[*images]]
    for measure in (bytes_of_image, partial(image_digest, read_bytes=END_BYTES), image_digest):
        finer: dict[Hashable, list[str]] = defaultdict(list)
        numbered = enumerate(filter(is_compared, groups))
        for number, key in track([(number, key) for number, keys in numbered for key in keys]):
            value = measure(images[key], rows.store)
            finer[number, key if value is None else value].append(key)
        groups = [*finer.values()]
    distinct = {key: key for key in images}
    for keys in groups:
        distinct |= dict.fromkeys(keys, keys[0])
    return distinct


def bytes_of_image(row: TrainingRow, store: RowStore | None = None) -> int | None:
    """The size of the row's image in bytes; None for a URL or an unreadable file."""
    if row.bytes_at is not None:
        return row.bytes_at[1]
    path = row.item.path
    if row.item.span is not None:
        return row.item.span[1]
    if path is None or url_scheme(path):
        return None
    try:
        return os.stat(path).st_size  # noqa: PTH116 - Path is slow
    except (OSError, ValueError):
        return None


def image_digest(row: TrainingRow, store: RowStore, read_bytes: int | None = None) -> bytes | None:
    """A digest of the row's image, or of its last `read_bytes`; None if it is unreadable."""
    if row.bytes_at is not None:
        data = store.read(*row.bytes_at)
        return hashlib.sha256(data[-read_bytes:] if read_bytes else data).digest()
    result = hashlib.sha256()
    try:
        with open_regular(row.item.path or "", row.item.root) as file:
            offset, size = row.item.span or (0, file.seek(0, os.SEEK_END))
            remaining = min(read_bytes or size, size)
            file.seek(offset + size - remaining)
            while chunk := file.read(min(remaining, CHUNK_BYTES)):
                result.update(chunk)
                remaining -= len(chunk)
    except (OSError, ValueError):
        return None
    return result.digest()


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
    sides = [{row.image_key for row in rows} for rows in (train, evaluation)]
    both = train.select([*train, *evaluation])
    distinct = distinct_keys(
        both, lambda keys: not any(side.isdisjoint(keys) for side in sides), track=track
    )
    trained, shared = dict[str, TrainingRow](), dict[str, TrainingRow]()
    for row in train:
        trained.setdefault(distinct[row.image_key], row)
    for row in evaluation:
        if (key := distinct[row.image_key]) in trained:
            shared.setdefault(key, row)
    if not shared:
        return
    pairs = [(row.item.id, trained[key].item.id) for key, row in shared.items()]
    names = [
        held_out if held_out == id_ else f"{held_out} ({id_} in the sources)"
        for held_out, id_ in pairs
    ]
    raise UsageError(
        f"{count(len(pairs), 'image')} in both <--eval=> and the sources (same bytes): "
        f"{listed(names, separator=';')}",
        hint="remove them from one side, or let <--eval-fraction 0.05> split the sources by image",
    )
