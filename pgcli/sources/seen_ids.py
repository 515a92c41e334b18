"""Finds repeated ids among millions, in eight bytes of memory for each id."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from hashlib import blake2b
from typing import NamedTuple


def digest(text: str) -> int:
    """Eight bytes of the text, the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def repeated_digests(digests: array[int]) -> RepeatedIds:
    """The digests that occur more than once, sorted, each with where it occurs first."""
    import numpy as np

    if not digests:
        return RepeatedIds(array("Q"), array("Q"))
    found = np.frombuffer(digests, np.uint64)
    ordered = np.sort(found)
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    del ordered
    first = np.full(len(repeated), len(found), np.uint64)
    if len(repeated):
        places = np.flatnonzero(np.isin(found, repeated))
        np.minimum.at(first, np.searchsorted(repeated, found[places]), places.astype(np.uint64))
    return RepeatedIds(array("Q", repeated.tobytes()), array("Q", first.tobytes()))


class RepeatedIds(NamedTuple):
    """The digests of ids that are given more than once, sorted, and the first rows that do so."""

    digests: array[int]
    first_rows: array[int]

    def is_repeat(self, text: str, row: int) -> bool:
        """Whether an earlier row than this one gives the id."""
        if not self.digests:
            return False
        key = digest(text)
        index = bisect_left(self.digests, key)
        is_known = index < len(self.digests) and self.digests[index] == key
        return is_known and row > self.first_rows[index]
