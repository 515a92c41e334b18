"""Which rows have the same image, by its bytes; no image is trained on and evaluated on."""

from __future__ import annotations

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable
from functools import partial
from typing import Any

from pgcli.errors import UsageError
from pgcli.stores.files import open_regular
from pgcli.stores.urls import url_scheme
from pgcli.training.rows import RowStore, TrainingRow, TrainingRows, seed_of
from pgcli.wording import listed

#: What is read first of images of equal size: compressed images differ in their last bytes.
END_BYTES = 4096
CHUNK_BYTES = 2**20

Track = Callable[[Iterable[Any]], Iterable[Any]]


def distinct_keys(
    rows: TrainingRows,
    is_compared: Callable[[Collection[str]], bool] = lambda keys: len(keys) > 1,
    *,
    track: Track = iter,
) -> dict[str, str]:
    """The `image_key` of each image, or of the first one with the same bytes.

    Of images of equal size the last 4,096 bytes are compared, and where these are equal, all of
    them; only images for which `is_compared` holds. Those at addresses are compared by these.
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
    """The size of the row's image in bytes; None at an address and of what cannot be read."""
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
    """A digest of the last bytes of the row's image, or of all; None if it cannot be read."""
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
    """The rows to train on and those to evaluate on: a fraction of the images, at least one.

    Rows of the same image bytes are on the same side. Which images are held out follows from the
    seed and their names. Raises UsageError if no image is remaining to train on.
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
    """Raise UsageError for images that are trained on and evaluated on, by their bytes."""
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
        f"{len(pairs):,} image{'s are' if len(pairs) != 1 else ' is'} both in <--eval=> and in the "
        f"sources, by the bytes: {listed(names, separator=';')}",
        hint="remove them from one of the two; or <--eval-fraction 0.05> splits the sources by "
        "image",
    )
