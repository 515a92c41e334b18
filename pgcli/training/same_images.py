"""Which rows have the same image, by its bytes; rows are split so that no image is on both sides.

N rows · U images of different paths
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pgcli.errors import UsageError
from pgcli.inputs.paths import url_scheme
from pgcli.stores.files import open_regular
from pgcli.training.rows import RowStore, TrainingRow, TrainingRows
from pgcli.training.seeds import seed_of

#: What is read first of images of equal size: compressed images differ in their last bytes.
END_BYTES = 4096
CHUNK_BYTES = 2**20
MAX_NAMED = 3  # images that are named in a message
UNKNOWN = -1  # the size of images at addresses, and of files that cannot be read

Track = Callable[[Iterable[Any]], Iterable[Any]]


def image_numbers(rows: TrainingRows, first_part: int = 0, *, track: Track = iter) -> np.ndarray:
    """A number for each row (N,), equal for rows whose images have the same bytes.

    Of images of equal size the last 4,096 bytes are compared, and where these are equal, all of
    them. Images at addresses are compared by their addresses. If the first rows are a part of
    their own, images are only compared with those of the other part.
    """
    keys_N = np.array(rows.image_keys, dtype=np.uint64)
    _, first_U, image_N = np.unique(keys_N, return_index=True, return_inverse=True)
    in_first_U, in_second_U = (np.zeros(len(first_U), dtype=bool) for _ in range(2))
    in_first_U[image_N[:first_part] if first_part else image_N] = True
    in_second_U[image_N[first_part:]] = True
    size_U = np.array([image_size(rows[int(number)]) for number in track(first_U)])
    number_U = np.where(size_U == UNKNOWN, UNKNOWN - np.arange(len(size_U)), size_U)
    for read_bytes in (END_BYTES, None):
        _, group_U, count_G = np.unique(number_U, return_inverse=True, return_counts=True)
        has_first_G, has_second_G = (
            np.bincount(group_U, weights=one_U) > 0 for one_U in (in_first_U, in_second_U)
        )
        is_compared_U = ((count_G > 1) & has_first_G & has_second_G)[group_U]
        digest_U = np.arange(len(first_U), dtype=np.int64)
        for image in track(np.flatnonzero(is_compared_U)):
            digest_U[image] = digest(rows[int(first_U[image])], rows.store, read_bytes)
        pairs_U2 = np.stack([group_U, digest_U], axis=1)
        number_U = np.unique(pairs_U2, axis=0, return_inverse=True)[1].reshape(-1)
    return number_U[image_N]


def image_size(row: TrainingRow) -> int:
    """The size of the row's image in bytes."""
    if row.bytes_at is not None:
        return row.bytes_at[1]
    path = row.item.path
    if row.item.span is not None:
        return row.item.span[1]
    if path is None or url_scheme(path):
        return UNKNOWN
    try:
        return os.stat(path).st_size  # noqa: PTH116 - Path is slow
    except (OSError, ValueError):
        return UNKNOWN


def digest(row: TrainingRow, store: RowStore, read_bytes: int | None) -> int:
    """A digest of the last bytes of the row's image; None reads all of them."""
    result = hashlib.sha256()
    if row.bytes_at is not None:
        data = store.read(*row.bytes_at)
        result.update(data[-read_bytes:] if read_bytes else data)
    else:
        try:
            with open_regular(row.item.path or "", row.item.root) as file:
                offset, size = row.item.span or (0, file.seek(0, os.SEEK_END))
                remaining = min(read_bytes or size, size)
                file.seek(offset + size - remaining)
                while chunk := file.read(min(remaining, CHUNK_BYTES)):
                    result.update(chunk)
                    remaining -= len(chunk)
        except (OSError, ValueError):  # it is told apart by its path
            result.update(row.image_key.encode("utf-8", "surrogateescape"))
    return int.from_bytes(result.digest()[:8], "big", signed=True)


def split_by_image(
    rows: TrainingRows, fraction: float, seed: int, *, track: Track = iter
) -> tuple[TrainingRows, TrainingRows]:
    """The rows to train on and those to evaluate on: a fraction of the images, at least one.

    Rows of the same image bytes are on the same side. Which images are held out follows from the
    seed and their names. Raises UsageError if no image is remaining to train on.
    """
    numbers_N = image_numbers(rows, track=track)
    keys_N = np.array(rows.image_keys, dtype=np.uint64) ^ np.uint64(seed_of(seed, "split"))
    key_G = np.full(numbers_N.max() + 1, np.iinfo(np.uint64).max)
    np.minimum.at(key_G, numbers_N, keys_N)
    images = np.unique(numbers_N)
    images = images[np.argsort(key_G[images], kind="stable")]
    held_out = images[: max(1, math.ceil(fraction * len(images)))]
    if len(held_out) == len(images):
        raise UsageError(
            f"--eval-fraction {fraction:g} leaves no image to train on",
            hint="give more images, or --eval SOURCE",
        )
    is_held_out_N = np.isin(numbers_N, held_out)
    return rows.select(np.flatnonzero(~is_held_out_N)), rows.select(np.flatnonzero(is_held_out_N))


def check_apart(train: TrainingRows, evaluation: TrainingRows, *, track: Track = iter) -> None:
    """Raise UsageError for images that are trained on and evaluated on, by their bytes."""
    numbers_N = image_numbers(train.joined(evaluation), len(train), track=track)
    shared, train_numbers, evaluation_numbers = np.intersect1d(
        numbers_N[: len(train)], numbers_N[len(train) :], return_indices=True
    )
    if not len(shared):
        return
    pairs = sorted(zip(evaluation_numbers.tolist(), train_numbers.tolist(), strict=True))
    named = "; ".join(
        same_image(evaluation[first].item.id, train[second].item.id)
        for first, second in pairs[:MAX_NAMED]
    )
    more = f"; and {len(pairs) - MAX_NAMED:,} more" * (len(pairs) > MAX_NAMED)
    raise UsageError(
        f"{len(pairs):,} image{'s are' if len(pairs) != 1 else ' is'} both in --eval and in the "
        f"sources, by the bytes: {named}{more}",
        hint="remove them from one of the two; or --eval-fraction 0.05 splits the sources by image",
    )


def same_image(held_out: str, trained: str) -> str:
    """`a.png`, or `a.png (b.png in the sources)`."""
    return held_out if held_out == trained else f"{held_out} ({trained} in the sources)"
