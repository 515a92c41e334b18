"""The options of a page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pgcli.declare import opt

_output = partial(opt, panel="Where to", own=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryOptions:
    """Where a page and its images go, and its size.

    `option` is that of the command line which names the page, for hints.
    """

    option: str = "-o"
    output: str | None = _output(
        "The page.", metavar="FILE", short=("-o",), default_text="RESULTS.html"
    )
    assets: str | None = _output(
        "Put the images in a folder next to the page, if there are many.", metavar="DIR"
    )
    overwrite: bool = _output("Replace a file that is not a page of pgcli.", default=False)
    size: int | None = _output(
        "Longest side of the images.",
        min=16,
        max=4096,
        default_text="1024 to 320, by their number",
    )
    limit: int | None = opt(
        "Only the first N rows of each file.", panel="Which images", own=True, min=1
    )
