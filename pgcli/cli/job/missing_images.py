"""Stops a resumed run before it saves a row if most of its images are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice

from pgcli.errors import TooManyErrors
from pgcli.images import StampComparison
from pgcli.images.file_stamp import is_missing
from pgcli.records import Item

#: The images that are looked for before the first of them is decoded.
MAX_IMAGES = 20


def check_missing(items: Iterable[Item], saved: StampComparison, output: str) -> Iterator[Item]:
    """The same items. Raises TooManyErrors if most images of the `saved` rows and of the next are
    missing: a disk is not mounted, or a folder was moved.

    Where only images of saved rows are missing, or only the next ones, the run goes on.
    """
    items = iter(items)
    found = list(islice(items, 1))
    if saved.missing > saved.compared:
        found += islice(items, MAX_IMAGES - 1)
        missing = sum(map(is_missing, found))
        if saved.missing > saved.compared and 2 * missing > len(found):
            raise TooManyErrors(
                f"most images of {output} are missing: {missing} of the next {len(found)}, and "
                f"{saved.missing:,} of {saved.missing + saved.compared:,} with a saved row; "
                "no row was written",
                hint="mount or restore them, and the same command resumes; images that were moved "
                "need --moved and their new place; --max-errors 100% goes on without them",
            )
    yield from chain(found, items)
