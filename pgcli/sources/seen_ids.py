"""Finds repeated ids among millions, in eight bytes of memory for each id."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from hashlib import blake2b


def digest(text: str) -> int:
    """Eight bytes of the text, the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def repeated_digests(digests: array[int]) -> array[int]:
    """The digests that occur more than once, sorted."""
    import numpy as np

    ordered = np.sort(np.frombuffer(digests, np.uint64)) if digests else np.empty(0, np.uint64)
    return array("Q", np.unique(ordered[1:][ordered[1:] == ordered[:-1]]).tobytes())


class SeenIds:
    """The ids seen so far, of those whose digest is among `repeated`."""

    def __init__(self, repeated: array[int]):
        self._repeated = repeated
        self._is_seen = bytearray(len(repeated))

    def add(self, text: str) -> bool:
        """Add an id, and return whether it was there already."""
        if not self._repeated:
            return False
        key = digest(text)
        index = bisect_left(self._repeated, key)
        if index == len(self._repeated) or self._repeated[index] != key:
            return False
        was_seen, self._is_seen[index] = self._is_seen[index], 1
        return bool(was_seen)
