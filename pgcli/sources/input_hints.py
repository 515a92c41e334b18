"""Hints for input without images: what is searched for, and what was found instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pgcli.sources.endings import IMAGE_ENDINGS, NO_ENDING, OTHER_ENDING
from pgcli.sources.readers import READERS

UNNAMED = {NO_ENDING: "without an ending", OTHER_ENDING: "with other endings"}
MAX_LISTED_ENDINGS = 5
HEIC = {".heic", ".heif"}


def supported_files_hint() -> str:
    """Which endings are read."""
    return f"{_image_endings()}; manifests and archives in {_listed(READERS)}"


def no_input_hint(ignored: Mapping[str, int]) -> str:
    """What is searched for, and the files that were found instead, most frequent first."""
    hint = f"{_image_endings()}; folders are searched recursively"
    if ignored:
        hint += f"; skipped: {', '.join(describe_endings(ignored))}"
    if HEIC & ignored.keys():
        hint += "; HEIC has to be converted to JPEG first: magick mogrify -format jpg *.heic"
    if READERS.keys() & ignored.keys():
        hint += "; to read a manifest, name the file itself"
    return hint


def describe_endings(counts: Mapping[str, int]) -> list[str]:
    """File counts by ending, largest first; past MAX_LISTED_ENDINGS the rest are one entry."""
    by_count = sorted(counts.items(), key=lambda kind: (-kind[1], kind[0]))
    texts = [f"{count:,} {UNNAMED.get(kind, kind)}" for kind, count in by_count]
    rest = len(texts) - MAX_LISTED_ENDINGS
    if rest > 0:
        texts[MAX_LISTED_ENDINGS:] = [f"{rest} more ending{'s' * (rest > 1)}"]
    return texts


def _image_endings() -> str:
    return f"images end in {_listed(IMAGE_ENDINGS)}"


def _listed(endings: Iterable[str]) -> str:
    return ", ".join(sorted(endings))
