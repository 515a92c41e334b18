"""The rows that are trained on: an image each, and a text or a label, in memory without images."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from pgcli.errors import NoInputError, UsageError
from pgcli.records import Item
from pgcli.sources.open_sources import open_sources
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.source import Source
from pgcli.training.seeds import seed_of


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """An image and what is learned of it: its text, its label, or the answer to its `prompt`.

    `image_key` is equal for rows of the same file or of the same bytes. Bytes from a table or an
    archive are not held here: they are `bytes_at`, start and size, in the store.
    """

    item: Item
    target: str
    image_key: str
    bytes_at: tuple[int, int] | None = None
    prompt: str = ""


class ImageStore:
    """The bytes of images from tables and archives, copied once into a temporary file.

    Rows are read in random order in every epoch, which compressed tables and archives do not allow.
    """

    def __init__(self, folder: Path):
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed with the store
        self._size = 0

    def add(self, data: bytes) -> tuple[int, int]:
        """Where the bytes are stored."""
        self._file.write(data)
        self._size += len(data)
        return self._size - len(data), len(data)

    def item(self, row: TrainingRow) -> Item:
        """The row's item, with its bytes where they are stored here."""
        if row.bytes_at is None:
            return row.item
        self._file.flush()
        start, size = row.bytes_at
        return replace(row.item, data=os.pread(self._file.fileno(), size, start))

    def close(self) -> None:
        self._file.close()


@dataclass
class TrainingRows:
    """Rows with a target, and how many others there are: without one, or with an image's fault."""

    rows: list[TrainingRow]
    without_target: int = 0
    faults: int = 0

    @property
    def digest(self) -> str:
        """A digest of the images' names and the targets, in order."""
        found = hashlib.sha256()
        for row in self.rows:
            found.update(repr((row.image_key, row.target)).encode("utf-8", "surrogateescape"))
        return found.hexdigest()[:16]


def read_rows(
    sources: Sequence[str],
    options: ReadOptions,
    store: ImageStore,
    *,
    column: str,
    folders_are_labels: bool = False,
    track: Callable[[Iterable[Item]], Iterable[Item]] = iter,
) -> TrainingRows:
    """The rows of the sources; the target is in the `column` of manifests.

    With `folders_are_labels`, the target of an image in a folder is the name of the folder right
    below the source. Raises UsageError for images without columns, NoInputError if no row is left.
    """
    found = TrainingRows([])
    for source in sources:
        items, target_of = _open(source, options, column, folders_are_labels)
        for item in track(items):
            target = target_of(item)
            if item.fault is not None:
                found.faults += 1
            elif target is None or not target.strip():
                found.without_target += 1
            else:
                found.rows.append(_stored(item, target.strip(), store))
    if not found.rows:
        raise NoInputError(
            f"no row of {', '.join(sources)} has an image and a value in {column!r}",
            hint="correct the manifest, or name another column",
        )
    return found


def _open(
    name: str, options: ReadOptions, column: str, folders_are_labels: bool
) -> tuple[Source, Callable[[Item], str | None]]:
    """A source with the function that finds an item's target."""

    def value_of(item: Item) -> str | None:
        value = item.fields.get(column)
        return None if value is None or isinstance(value, list | dict) else str(value)

    def folder_of(item: Item) -> str:
        parts = PurePosixPath(item.id).parts
        if len(parts) < 2:
            raise UsageError(
                f"{item.id} is in {name} itself, and labels are the names of folders in it",
                hint="move it into a folder of its label, or name a manifest with a column "
                f"{column!r}",
            )
        return parts[0]

    if folders_are_labels:
        source = open_sources([name], options)
        if not source.has_columns:
            return source, folder_of
    return open_sources([name], replace(options, fields=(column,))), value_of


def _stored(item: Item, target: str, store: ImageStore) -> TrainingRow:
    if item.data is None:
        return TrainingRow(item, target, item.path or item.image)
    key = hashlib.sha256(item.data).hexdigest()
    return TrainingRow(replace(item, data=None), target, key, store.add(item.data))


def split_by_image(
    rows: Sequence[TrainingRow], fraction: float, seed: int
) -> tuple[list[TrainingRow], list[TrainingRow]]:
    """The rows to train on and those to evaluate on: a fraction of the images, at least one.

    An image is never on both sides. Raises UsageError if no image is left to train on.
    """

    def order(key: str) -> int:
        return seed_of(seed, key)

    images = sorted({row.image_key for row in rows}, key=order)
    held_out = set(images[: max(1, math.ceil(fraction * len(images)))])
    if len(held_out) == len(images):
        raise UsageError(
            f"--eval-fraction {fraction:g} leaves no image to train on",
            hint="give more images, or --eval SOURCE",
        )
    train = [row for row in rows if row.image_key not in held_out]
    return train, [row for row in rows if row.image_key in held_out]


def check_apart(train: Sequence[TrainingRow], evaluation: Sequence[TrainingRow]) -> None:
    """Raise UsageError for an image that is trained on and evaluated on."""
    trained = {row.image_key for row in train}
    for row in evaluation:
        if row.image_key in trained:
            raise UsageError(
                f"{row.item.id} is in the sources and in --eval",
                hint="remove it from one; or --eval-fraction 0.05 splits the sources by image",
            )
