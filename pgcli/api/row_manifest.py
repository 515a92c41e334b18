"""Rows in memory as a manifest on disk, which `train` reads several times."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pgcli.api.sources import check_row_image, source_list
from pgcli.errors import UsageError
from pgcli.images import ImageError
from pgcli.images.decode import file_bytes
from pgcli.stores.urls import url_scheme

BATCH = 256  # rows whose images are encoded at once


@contextmanager
def as_sources(rows: Any) -> Iterator[list[str]]:
    """The sources as paths; rows that are dicts become a temporary manifest.

    Raises UsageError for anything else.
    """
    listed = source_list(rows)
    if all(isinstance(source, str | os.PathLike) for source in listed):
        yield [os.fspath(source) for source in listed]
        return
    for number, row in enumerate(listed):
        if not isinstance(row, Mapping) or "image" not in row:
            raise UsageError(
                f"row {number} is not a dict with an image",
                hint='rows are paths, or dicts such as {"image": image, "prefix": "caption en", '
                '"suffix": "a star"}',
            )
        check_row_image(number, row["image"])
    with TemporaryDirectory() as folder:
        file = Path(folder, "rows.parquet")
        write_manifest(file, listed)
        yield [str(file)]


def write_manifest(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows; images in memory as bytes. Raises UsageError for columns of mixed types."""
    import pyarrow
    import pyarrow.parquet

    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row if name != "image"):
        try:
            columns[name] = pyarrow.array([row.get(name) for row in rows])
        except (pyarrow.ArrowException, TypeError) as problem:
            raise UsageError(
                f"the values of {name!r} have different types: {problem}",
                hint="make all of them texts, or all numbers",
            ) from problem
    image = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    schema = pyarrow.schema({name: column.type for name, column in columns.items()})
    with pyarrow.parquet.ParquetWriter(
        file, schema.append(pyarrow.field("image", image)), compression="none"
    ) as writer:
        for start in range(0, len(rows), BATCH):
            part = rows[start : start + BATCH]
            images = pyarrow.array([image_cell(row["image"]) for row in part], image)
            values = [column.slice(start, BATCH) for column in columns.values()]
            writer.write_batch(pyarrow.record_batch([*values, images], writer.schema))


def image_cell(image: Any) -> dict[str, Any]:
    """The bytes of an image in memory, or the whole path of a file; a URL stays."""
    if isinstance(image, str | os.PathLike):
        path = os.fspath(image)
        return {"bytes": None, "path": path if url_scheme(path) else str(Path(path).absolute())}
    if isinstance(image, Mapping):
        return {"bytes": image.get("bytes"), "path": image.get("path")}
    try:
        return {"bytes": file_bytes(image), "path": None}
    except ImageError:  # the row has no image, and is counted as one that cannot be read
        return {"bytes": None, "path": None}
