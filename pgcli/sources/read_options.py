"""Options for reading sources: the columns of manifests, and what is allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pgcli.remote import UrlReader
from pgcli.sources.kept_columns import KeptColumn
from pgcli.sources.name_filter import ALL_NAMES, NameFilter

Track = Callable[[Iterable[Any]], Iterator[Any]]
#: The scan of a table that an earlier process stored, by its name; None if there is none.
ReadScan = Callable[[str], Mapping[str, Any] | None]


def no_scan(name: str) -> None:
    """No scans are stored."""


@dataclass(frozen=True)
class ReadOptions:
    """Which columns hold what, and what a source may contain.

    `names` selects images by their names. `fields` are the columns that fill prompts, `keep` those
    that the output repeats: `a`, `a:b` for one that the output calls b, `*` for all; `kept` are
    they, once the columns are known. `optional_fields` are read where they exist. With
    `repeats_ids` several rows may have the same id. `requires_prompts` raises an error for a row
    without a prompt, `refuses_prompts` for a row with one, `refuses_regions` for a row with a
    region. URLs are read with `url_reader` and refused without it. With `tolerates_bad_rows` a bad
    row becomes an error row instead of an exception. Messages and options call a prompt by
    `prompt_noun`. `track` passes on what is counted when a source is opened, and shows how far that
    is; `read_scan` returns what was counted before.
    """

    image_column: str = "image"
    id_column: str = "id"
    prompt_column: str = "prompt"
    prompt_noun: Literal["prompt", "text"] = "prompt"
    keep: tuple[str, ...] = ()
    kept: tuple[KeptColumn, ...] = ()
    fields: tuple[str, ...] = ()
    optional_fields: tuple[str, ...] = ()
    repeats_ids: bool = False
    requires_prompts: bool = False
    refuses_prompts: bool = False
    choices_column: str | None = None
    region_column: str = "region"
    refuses_regions: bool = False
    null_separated: bool = False
    names: NameFilter = ALL_NAMES
    allow_outside_root: bool = False
    url_reader: UrlReader | None = None
    tolerates_bad_rows: bool = False
    track: Track = field(default=iter, compare=False, repr=False)
    read_scan: ReadScan = field(default=no_scan, compare=False, repr=False)
