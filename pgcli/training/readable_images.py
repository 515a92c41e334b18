"""Which images of rows can be read, found before a run begins."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import Any

from pgcli.errors import NoInputError
from pgcli.images import ImageDecoder
from pgcli.images.image_spec import ImageSpec
from pgcli.images.pool import decode_ahead
from pgcli.records import Fault
from pgcli.stores.urls import url_scheme
from pgcli.training.options import TrainOptions
from pgcli.training.rows import RowErrors, TrainingRow, TrainingRows

SIDE = 8  # of the copies that are made, in pixels

Track = Callable[[Iterable[Any]], Iterable[Any]]


def is_remote(row: TrainingRow) -> bool:
    """Whether the row's image is at an address."""
    return row.bytes_at is None and bool(url_scheme(row.item.path or ""))


def check_readable(rows: TrainingRows, name: str, options: TrainOptions) -> None:
    """Raise NoInputError if no image of the rows can be read; it names the first one.

    Images are read until one can be. Raises TooManyErrors for addresses.
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
            f"no image of {name} can be read, such as {first[0]}: {first[1].message}",
            hint="correct the images or their paths",
        )


def unreadable_images(
    rows: TrainingRows, options: TrainOptions, *, track: Track = iter
) -> dict[str, str]:
    """Why local images cannot be read: `ID: reason` by their `image_key`."""
    local = rows.select(row for row in rows.images() if not is_remote(row))
    with closing(image_faults(local, options)) as images:
        return {
            row.image_key: f"{row.item.id}: {fault.message}"
            for row, fault in track(images)
            if fault is not None
        }


def image_faults(
    rows: TrainingRows, options: TrainOptions
) -> Generator[tuple[TrainingRow, Fault | None]]:
    """The rows, each with what is wrong with its image; all pixels are decoded."""
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
