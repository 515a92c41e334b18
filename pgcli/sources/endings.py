"""File name endings, and which of them are images."""

from __future__ import annotations

from pathlib import PurePosixPath

IMAGE_ENDINGS = frozenset(
    "." + ending
    for ending in "jpg jpeg jpe jfif png webp gif bmp tif tiff avif ppm pgm pbm pnm".split()
)
#: What files without an ending, and those with an unusual one, are counted as.
NO_ENDING, OTHER_ENDING = "(none)", "(other)"
#: Longer endings are counted together, so that odd file names do not fill the summary.
MAX_ENDING_LENGTH = 12


def ending(name: str) -> str:
    """The lower-case ending with its dot, NO_ENDING, or OTHER_ENDING for an unusual one."""
    suffix = PurePosixPath(name).suffix.lower()
    if not suffix:
        return NO_ENDING
    return suffix if len(suffix) <= MAX_ENDING_LENGTH and suffix.isascii() else OTHER_ENDING
