"""The options of the command `search`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgcli.output import FormatOption


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of the command line."""

    vectors: Sequence[str]
    texts: Sequence[str] = ()
    images: Sequence[str] = ()
    duplicates: bool = False
    k: int | None = None
    min_similarity: float | None = None
    index: bool = False
    raw_text: bool = False
    model: str | None = None
    revision: str | None = None
    device: str = "auto"
    dtype: str = "auto"
    output: str = "-"
    format: FormatOption = "auto"
    view: str | None = None
    images_folder: str | None = None
    overwrite: bool = False
    allow_urls: bool = False
    allow_private_hosts: bool = False
