"""Which rows are trained on and which are evaluated on; no image is on both sides."""

from __future__ import annotations

import math

import numpy as np

from pgcli.errors import UsageError
from pgcli.training.rows import TrainingRows
from pgcli.training.same_images import Track, image_numbers
from pgcli.training.seeds import seed_of

MAX_NAMED = 3  # images that are named in a message


def split_by_image(
    rows: TrainingRows, fraction: float, seed: int, *, track: Track = iter
) -> tuple[TrainingRows, TrainingRows]:
    """The rows to train on and those to evaluate on: a fraction of the images, at least one.

    Rows of the same image bytes are on the same side. Which images are held out follows from the
    seed and their names. Raises UsageError if no image is left to train on.
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
