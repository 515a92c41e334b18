"""The rows of a search as rows that a page shows: hits by query, or near-duplicates by group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.output.reader import Row, indexed_rows, read_results
from pgcli.results.gallery.cards import SEARCH


def page_rows(output: Path) -> Iterator[Row]:
    """The rows of an output. Raises UsageError for what is neither rows of a run nor of a search.

    A file has rows of a search if its first row is one.
    """
    kind = first_kind(output)
    if kind is None:
        yield from read_results(output)
        return
    for number, row in indexed_rows(output):
        if row is None or search_kind(row) != kind:
            raise UsageError(
                f"{output}: row {number + 1:,} is not a row of a search, as the first one is",
                hint="name a file that pgcli search wrote",
            )
        yield hit_row(row)


def first_kind(output: Path) -> str | None:
    """The kind of search whose rows are in a file; None for anything else."""
    try:
        first = next(indexed_rows(output), (0, None))[1] if output.is_file() else None
    except (OSError, ValueError, RecursionError):
        return None  # which reading its rows says
    return None if first is None else search_kind(first)


def search_kind(row: Row) -> str | None:
    """`query` or `group` for a row of a search, None for any other."""
    is_hit = {"id", "image"} <= row.keys() and type(row.get("similarity")) in (float, int)
    return next((name for name in ("query", "group") if is_hit and row.get(name) is not None), None)


def hit_row(row: Row) -> Mapping[str, Any]:
    """A row of a search with the columns of a row of `score`: its query is the prompt."""
    query = row["query"] if row.get("query") is not None else f"group {row['group']}"
    return {
        **{name: row[name] for name in row if name not in ("query", "group", "similarity")},
        "image": row["image"] or "",
        "task": SEARCH,
        "prompt": str(query),
        "scores": [{"text": row.get("text") or "similarity", "cosine": row["similarity"]}],
        "error": None,
    }
