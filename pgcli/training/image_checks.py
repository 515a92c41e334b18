"""Checks the images of rows before a run: whether they are readable, and which are identical."""

from __future__ import annotations

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Hashable, Iterable
from contextlib import closing
from functools import partial
from typing import Any

from pgcli.errors import NoInputError, UsageError
from pgcli.images import ImageDecoder
from pgcli.images.decode import ImageSpec
from pgcli.images.pool import decode_ahead
from pgcli.records import Fault
from pgcli.stores.files import open_regular
from pgcli.stores.urls import url_scheme
from pgcli.text import count, listed
from pgcli.training.options import TrainOptions
from pgcli.training.rows import RowErrors, RowStore, TrainingRow, TrainingRows, seed_of

SIDE = 8  # of the decoded copies that a check makes, in pixels
#: Compared first for images of equal size: compressed images differ in their last bytes.
END_BYTES = 4096
CHUNK_BYTES = 2**20

#: Shows the progress of an iteration.
Track = Callable[[Iterable[Any]], Iterable[Any]]


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
