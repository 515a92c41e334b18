"""Refuses ids that are given twice, which is checked in eight bytes for each id."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from pgcli.errors import ManifestError
from pgcli.inputs.rows import repeated_id
from pgcli.records import Item

INDEX = re.compile("0|[1-9][0-9]{0,17}")
MAX_SUSPECTS = 1000  # equal hashes of ids that are compared for one error message


def check_unique(hashes: array[int], ids: Callable[[], Iterator[tuple[str, str]]]) -> None:
    """Raise ManifestError for an id that is given twice, with both places.

    The `hashes` are those of the ids. Those with equal hashes are compared: `ids` reads all of
    them, each with its position.
    """
    ordered = np.sort(np.frombuffer(hashes, np.int64))
    suspects = set(ordered[1:][ordered[1:] == ordered[:-1]][:MAX_SUSPECTS].tolist())
    positions: dict[str, str] = {}
    for name, position in ids() if suspects else ():
        if hash(name) in suspects:
            if name in positions:
                raise repeated_id(name, positions[name], position)
            positions[name] = position


def check_indices(items: Iterable[Item], total: int) -> None:
    """Raise ManifestError for a row whose id is its index, which another row has as its id."""
    ids = np.full(total, -1)  # those that are an index
    for item in items:
        if INDEX.fullmatch(item.id) and int(item.id) < total:
            ids[item.index] = int(item.id)
    is_index = ids == np.arange(total)
    for index in np.flatnonzero((ids >= 0) & ~is_index & is_index[ids]).tolist():
        places = f"row {index + 1:,} of the input and row {ids[index] + 1:,}"
        raise ManifestError(
            f"the id {str(ids[index])!r} is given twice: {places}, which has none and is named by "
            "its index",
            hint="give every row an id, or name another column with <--id-column=>",
        )
