"""File name endings: which are images, and how counts of files by ending are described."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pgcli.inputs.readers import READERS

IMAGE_ENDINGS = frozenset(
    "." + ending
    for ending in "jpg jpeg jpe jfif png webp gif bmp tif tiff avif ppm pgm pbm pnm".split()
)
#: What files without an ending, and those with an unusual one, are counted as.
NO_ENDING, OTHER_ENDING = "(none)", "(other)"
#: Longer endings are counted together, so that odd file names do not fill the summary.
MAX_ENDING_LENGTH = 12
UNNAMED = {NO_ENDING: "without an ending", OTHER_ENDING: "with other endings"}
MAX_LISTED_ENDINGS = 5
HEIC = {".heic", ".heif"}


def ending(name: str) -> str:
    """The lower-case ending with its dot, NO_ENDING, or OTHER_ENDING for an unusual one."""
    last = name.rstrip("/").rpartition("/")[2]
    dot = last.rfind(".")
    if not 0 < dot < len(last) - 1:
        return NO_ENDING
    suffix = last[dot:].lower()
    return suffix if len(suffix) <= MAX_ENDING_LENGTH and suffix.isascii() else OTHER_ENDING


def supported_files_hint() -> str:
    """Which endings are read."""
    return f"{images_hint()}; manifests and archives in {_listed(READERS)}"


def no_input_hint(ignored: Mapping[str, int]) -> str:
    """What is searched for, and the files that were found instead, most frequent first."""
    hint = f"{images_hint()}; folders are searched recursively"
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


def images_hint() -> str:
    """Which endings images have."""
    return f"images end in {_listed(IMAGE_ENDINGS)}"


def _listed(endings: Iterable[str]) -> str:
    return ", ".join(sorted(endings))
