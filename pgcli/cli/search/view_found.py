"""The page of a search from the file of its rows, for `pgcli view`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcli.cli.search.output import Rows
from pgcli.cli.search.page import write_page
from pgcli.cli.search.search_options import SearchOptions
from pgcli.cli.ui.console import Screen
from pgcli.errors import UsageError
from pgcli.output.reader import indexed_rows
from pgcli.results.gallery.gallery_page import GalleryOptions, check_page, default_page
from pgcli.search.search_files import Hit
from pgcli.search.vector_files import VectorName


def view_found(path: Path, options: GalleryOptions, screen: Screen, *, draws: bool) -> bool:
    """Write the page of a file of a search; False, and nothing is written, for other rows.

    Raises UsageError, OutputExists and OutputFailed.
    """
    rows = read_found(path)
    if rows is None:
        return False
    for option, given in (
        ("--draw", draws),
        ("--assets", options.assets is not None),
        ("--limit", options.limit is not None),
        ("--size", options.size is not None),
    ):
        if given:
            raise UsageError(f"{option} has no effect on the rows of a search", hint="leave it out")
    target = Path(options.output) if options.output is not None else default_page(path)
    check_page(target, [path], options)
    names = ("images", "overwrite", "allow_urls", "allow_private_hosts")
    search = SearchOptions(
        vectors=[str(path)],
        text=tuple(rows.names),
        view=str(target),
        **{name: getattr(options, name) for name in names},
    )
    count = sum(map(len, rows.hits))
    write_page(search, rows, f"{count:,} row{'s' * (count != 1)}", screen)
    return True


def read_found(path: Path) -> Rows | None:
    """The rows of a search in the order of the file; None for a file of other rows.

    Raises UsageError for a file whose first row is of a search and another is not.
    """
    rows = found_rows(path)
    first = next(rows, None)
    by = search_kind(first)
    if first is None or by is None:
        return None
    groups: dict[str, list[Hit]] = {}
    for number, row in enumerate((first, *rows), start=1):
        if search_kind(row) != by:
            raise UsageError(
                f"{path}: row {number:,} is not a row of a search, as the first one is",
                hint="name a file that pgcli search wrote",
            )
        assert row is not None
        groups.setdefault(str(row[by]), []).append(hit_of(row))
    has_texts = "text" in first
    return Rows("group" if by == "group" else "query", [*groups], [*groups.values()], {}, has_texts)


def found_rows(path: Path) -> Iterator[Mapping[str, Any] | None]:
    """The rows of a file; none for what cannot be read, which other readers report."""
    try:
        if path.is_file():
            yield from (row for _, row in indexed_rows(path))
    except (OSError, ValueError, RecursionError):
        return


def search_kind(row: Mapping[str, Any] | None) -> str | None:
    """`query` or `group` for a row of a search, None for any other."""
    if row is None or not {"id", "image", "similarity"} <= row.keys():
        return None
    if type(row["similarity"]) not in (float, int):
        return None
    return next((name for name in ("query", "group") if row.get(name) is not None), None)


def hit_of(row: Mapping[str, Any]) -> Hit:
    """The hit of a row."""
    image, text = (None if row.get(name) is None else str(row[name]) for name in ("image", "text"))
    return Hit(VectorName(str(row["id"]), image, text, -1, 0), float(row["similarity"]))
