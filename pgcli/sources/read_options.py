"""Options for reading sources: the columns of manifests, and what is allowed."""

from __future__ import annotations

from dataclasses import dataclass

from pgcli.remote import UrlReader


@dataclass(frozen=True)
class ReadOptions:
    """Which columns hold what, and what a source may contain.

    `fields` are the columns that fill prompts, `keep` those that the output repeats.
    `requires_prompts` raises an error for a row without a prompt, `refuses_prompts` for a row with
    one, `refuses_regions` for a row with a region. URLs are read with `url_reader` and refused
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
