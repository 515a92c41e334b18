"""Seeds that follow from numbers and texts."""

from __future__ import annotations

import hashlib


def seed_of(*values: int | str) -> int:
    """A seed of 63 bits that follows from the values, for a generator of its own."""
    digest = hashlib.sha256(repr(values).encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> 1
