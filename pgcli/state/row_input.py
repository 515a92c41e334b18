"""What a row is made from, as digests that later runs compare with their own input."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from pgcli.records import NO_STAMP, STAMP_BYTES, FileStamp, Item
from pgcli.rows import json_safe, json_text

DIGEST_BYTES = STAMP_BYTES
RECORD_BYTES = 4 * DIGEST_BYTES
UNKNOWN = bytes(DIGEST_BYTES)


@dataclass(frozen=True, slots=True)
class RowInput:
    """Digests of all that a row depends on.

    `names` is of the item's index, id, region, choices and kept columns, and of the prompt;
    `image` of the name that the row shows. The `stamp` is of the image of an answered row.
    """

    names: bytes
    image: bytes
    stamp: FileStamp = NO_STAMP

    @classmethod
    def of(cls, item: Item, prompt: str, stamp: FileStamp = NO_STAMP) -> Self:
        """The input of a row. Its image is stamped once it is decoded."""
        names = f"{item.index}\0{item.id}\0{prompt}"
        if item.region is not None or item.choices or item.kept:
            others = [item.region, item.choices, dict(item.kept)]
            names += f"\0{json_text(json_safe(others))}"
        return cls(digest(names), digest(item.image), stamp)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """The input that was stored; None where nothing was."""
        parts = [data[at : at + DIGEST_BYTES] for at in range(0, RECORD_BYTES, DIGEST_BYTES)]
        if len(data) != RECORD_BYTES or parts[0] == UNKNOWN:
            return None
        names, image, *stamp = parts
        return cls(names, image, FileStamp(*(b"" if part == UNKNOWN else part for part in stamp)))

    def to_bytes(self) -> bytes:
        """The input as RECORD_BYTES bytes, zeros for what is unknown."""
        parts = (self.names, self.image, self.stamp.status, self.stamp.content)
        return b"".join(part or UNKNOWN for part in parts)

    def is_same(self, other: RowInput, *, is_moved: bool) -> bool:
        """Whether the names are the same; the image has another one if it `is_moved`."""
        return self.names == other.names and (is_moved or self.image == other.image)


def digest(text: str) -> bytes:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_BYTES).digest()


class InputDigest:
    """The digest of the input of consecutive rows.

    `expected` is one that an earlier run stored. Those of version 1 are of other values: of the
    names, and of the bytes of images in tables.
    """

    FORM = "2:"

    def __init__(self, expected: str = ""):
        self._expected = expected
        self._digest = blake2b(digest_size=16)
        self._version_1 = None if expected.startswith(self.FORM) else blake2b(digest_size=16)
        self._data_digest: tuple[int | None, bytes] = (None, b"")

    def update(self, row_input: RowInput) -> None:
        """Add a row."""
        self._digest.update(row_input.names + row_input.image)

    def update_version_1(self, item: Item, prompt: str) -> None:
        """Add a row to the digest of version 1, if that is expected."""
        if self._version_1 is None:
            return
        if self._data_digest[0] != item.index:  # several prompts share an image
            data = b"" if item.data is None else blake2b(item.data, digest_size=16).digest()
            self._data_digest = (item.index, data)
        names = f"{item.index}\0{item.id}\0{item.image}\0{prompt}\n"
        self._version_1.update(names.encode("utf-8", "surrogatepass") + self._data_digest[1])

    def is_as_expected(self) -> bool:
        """Whether the rows so far have the expected digest."""
        current = self.value if self._version_1 is None else self._version_1.hexdigest()
        return current == self._expected

    @property
    def value(self) -> str:
        """The digest of the rows so far."""
        return f"{self.FORM}{self._digest.hexdigest()}"
