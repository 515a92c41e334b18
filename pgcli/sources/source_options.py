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
class Reading:
    """Which columns mean what, which are wanted for prompts (`fields`) and output (`keep`).

    A row has to bring a prompt where one is wanted, and may not where prompts are refused; the
    same holds of choices, and of regions, which a row may also leave out. Addresses are read by way
    of `reach`, and refused without it. What is wrong with a row is refused, unless it `is_borne` by
    that row alone.
    """

    image_column: str = "image"
    id_column: str = "id"
    prompt_column: str = "prompt"
    keep: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    wants_prompts: bool = False
    refuses_prompts: bool = False
    choices_column: str | None = None
    region_column: str = "region"
    refuses_regions: bool = False
    nul: bool = False
    allow_outside_root: bool = False
    reach: UrlReader | None = None
    is_borne: bool = False


class Part(Protocol):
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
