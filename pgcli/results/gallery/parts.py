"""A large page: columns of its rows in the page, boxes and images in a folder beside it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

MAX_ROWS_IN_PAGE = 4_000  # more rows are kept in a folder beside the page
ROWS_PER_PART = 200
IMAGES_PER_PART = 24  # a screen needs a few parts


def write_parts(
    folder: Path, key: str, details: Sequence[str | None], entries: Iterable[str]
) -> int:
    """Write the details of the rows, and the images; returns the size in bytes."""
    parts = chain(detail_parts(details), image_parts(entries))
    return sum(write_script(folder, key, name, text) for name, text in parts)


def image_parts(entries: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The parts with the entries of the images, by name, as JSON."""
    remaining = iter(entries)
    texts = iter(lambda: ",".join(islice(remaining, IMAGES_PER_PART)), "")
    return ((f"images-{number}", f"[{text}]") for number, text in enumerate(texts))


def detail_parts(details: Sequence[str | None]) -> Iterator[tuple[str, str]]:
    """The parts with the details of rows, by name, as JSON; rows without boxes have none."""
    for first in range(0, len(details), ROWS_PER_PART):
        part = details[first : first + ROWS_PER_PART]
        if any(part):
            yield f"rows-{first // ROWS_PER_PART}", f"[{','.join(row or 'null' for row in part)}]"


def write_script(folder: Path, key: str, name: str, text: str) -> int:
    """Write a part as a script that passes a JSON text to the page; nothing in it is code."""
    literal = text.replace("\\", "\\\\").replace("'", "\\'")  # ASCII without line breaks
    script = f"pgcliPart('{key}', '{name}', '{literal}');\n"
    return (folder / f"{name}.js").write_bytes(script.encode("ascii"))
