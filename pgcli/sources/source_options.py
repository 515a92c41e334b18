"""What every source is told: the columns' names, and the endings that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol

from pgcli.records import Item
from pgcli.remote import UrlReader

IMAGE_ENDINGS = frozenset(
    "." + ending
    for ending in "jpg jpeg jpe jfif png webp gif bmp tif tiff avif ppm pgm pbm pnm".split()
)


@dataclass(frozen=True)
class ReadOptions:
    """Which columns mean what, which are wanted for prompts (`fields`) and output (`keep`).

    `requires_prompts` raises an error for a row without a prompt, `refuses_prompts` for a row with
    one; `refuses_regions` for a row with a region. URLs are read with `url_reader` and refused
    without it. With `tolerates_bad_rows` a bad row becomes an error row instead of an exception.
    """

    image_column: str = "image"
    id_column: str = "id"
    prompt_column: str = "prompt"
    keep: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    requires_prompts: bool = False
    refuses_prompts: bool = False
    choices_column: str | None = None
    region_column: str = "region"
    refuses_regions: bool = False
    null_separated: bool = False
    allow_outside_root: bool = False
    url_reader: UrlReader | None = None
    tolerates_bad_rows: bool = False


class SourcePart(Protocol):
    """One source that the user named, looked at once: its items can be counted and gone through."""

    name: str
    ignored: Counter[str]

    @property
    def kinds(self) -> Counter[str]:
        """How many pictures there are of each ending, or rows of a manifest's."""

    @property
    def total(self) -> int | None:
        """How many items; None where only the end tells."""

    @property
    def has_prompts(self) -> bool:
        """Whether the items bring prompts of their own."""

    def items(self, first: int) -> Iterator[Item]:
        """The part's items, numbered from `first`."""


def ending(name: str) -> str:
    """The lower-case ending with its dot; `(none)` and `(other)` keep counts by ending few."""
    suffix = PurePosixPath(name).suffix.lower()
    if not suffix:
        return "(none)"
    return suffix if len(suffix) <= 12 and suffix.isascii() else "(other)"
