"""Connected components of rows, joined by pairs that arrive in any number."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class Components:
    """Sets of rows (union-find); the root of a set is its smallest row."""

    def __init__(self, count: int):
        self._parents: Rows = np.arange(count, dtype=np.int64)

    def join(self, rows: Rows, others: Rows) -> None:
        """Put each of the rows into the same set as the other row at its place."""
        while True:
            roots, other_roots = self._parents[rows], self._parents[others]
            differs = roots != other_roots
            if not differs.any():
                return
            rows, others = rows[differs], others[differs]
            low = np.minimum(roots[differs], other_roots[differs])
            high = np.maximum(roots[differs], other_roots[differs])
            # a root that has several smaller ones takes the smallest; the loop joins the others
            np.minimum.at(self._parents, high, low)
            self._flatten()

    def apart(self, pairs: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
        """The pairs whose rows are in different sets."""
        is_apart = self._parents[pairs[0]] != self._parents[pairs[1]]
        return pairs[0][is_apart], pairs[1][is_apart]

    def groups(self) -> list[Rows]:
        """The sets of two rows or more by their smallest row, each in ascending order."""
        order = np.argsort(self._parents, kind="stable")
        starts = np.flatnonzero(np.diff(self._parents[order], prepend=-1))
        return [group for group in np.split(order, starts[1:]) if len(group) > 1]

    def _flatten(self) -> None:
        """Make every row a child of its root: each pass halves the longest path."""
        while True:
            above = self._parents[self._parents]
            if np.array_equal(above, self._parents):
                return
            self._parents = above
