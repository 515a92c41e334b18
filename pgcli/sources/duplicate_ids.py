"""Texts that come more than once among many, in memory of eight bytes for each text."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from hashlib import blake2b


def digest(text: str) -> int:
    """Eight bytes of the text, the same in every process."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def repeated_digests(seen: array[int]) -> array[int]:
    """The digests that are there more than once, sorted."""
    import numpy as np

    all_ = np.sort(np.frombuffer(seen, dtype=np.uint64)) if seen else np.empty(0, np.uint64)
    return array("Q", np.unique(all_[1:][all_[1:] == all_[:-1]]).tobytes())


class SeenIds:
    """Whether a text came before, asked of each in order; `twice` are those that come again."""

    def __init__(self, twice: array[int]):
        self._twice = twice
        self._is_met = bytearray(len(twice))

    def before(self, text: str) -> bool:
        """Whether the text was asked about before; from now on it was."""
        if not self._twice:
            return False
        known = digest(text)
        place = bisect_left(self._twice, known)
        if place == len(self._twice) or self._twice[place] != known:
            return False
        was, self._is_met[place] = self._is_met[place], 1
        return bool(was)
