"""The input as it goes by: whether it is still what it was when its rows were saved."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pgcli.errors import OutputExists
from pgcli.printable import encodable
from pgcli.records import Item


class InputCheck:
    """Rows of the input in order: those saved before are compared, those to come remembered.

    `rows` were saved; of the first `safe` of them `digest` is the digest, and the others are read
    from `tail`. Nothing is compared where none was saved.
    """

    def __init__(
        self,
        output: Path,
        rows: int = 0,
        safe: int = 0,
        digest: str = "",
        tail: Iterator[Mapping[str, Any]] | None = None,
    ):
        self.rows = rows
        self._output, self._safe, self._expected = output, safe, digest
        self._tail = tail or iter(())
        self._digest = blake2b(digest_size=16)
        self._compared = 0
        self._coming: deque[bytes] = deque()
        self._last: tuple[int | None, bytes] = (None, b"")

    def is_new(self, place: int, item: Item, prompt: str) -> bool:
        """Whether the row is not among those saved. To be asked of each row, in order.

        Raises OutputExists where a saved row is not the one that the input has there.
        """
        known = self._key(item, prompt)
        if place >= self.rows:
            self._coming.append(known)
            return True
        self._digest.update(known)
        self._compared += 1
        if place >= self._safe:
            row = next(self._tail, {})
            if not is_row_of(row, item, prompt):
                raise changed(self._output, place, f"{row.get('id')!r}, now {item.id!r}")
        elif place == self._safe - 1 and self._digest.hexdigest() != self._expected:
            raise changed(self._output, place)
        return False

    def saved(self) -> None:
        """The next of the rows to come is saved."""
        self._digest.update(self._coming.popleft())
        self.rows += 1
        self._compared += 1

    @property
    def digest(self) -> str | None:
        """The digest of all rows saved; None while some of them were not compared."""
        return self._digest.hexdigest() if self._compared == self.rows else None

    def _key(self, item: Item, prompt: str) -> bytes:
        """What a row of the input is known by: its names, and the bytes of a picture in a table.

        Those may have no name but the row's number, so that another order would not show.
        """
        if self._last[0] != item.index:  # several prompts are about one picture
            held = b"" if item.data is None else blake2b(item.data, digest_size=16).digest()
            self._last = (item.index, held)
        names = f"{item.index}\0{item.id}\0{item.image}\0{prompt}\n"
        return names.encode("utf-8", "surrogatepass") + self._last[1]


def is_row_of(row: Mapping[str, Any], item: Item, prompt: str) -> bool:
    """Whether a saved row is that of the item and its prompt, to which a region may be added."""
    return (
        row.get("index") == item.index
        and row.get("id") == encodable(item.id)
        and str(row.get("prompt")).startswith(prompt)
    )


def changed(output: Path, place: int, how: str = "") -> OutputExists:
    """The refusal to go on where the input has changed under its rows."""
    where = f"row {place + 1:,} was of {how}" if how else f"somewhere in the first {place + 1:,}"
    return OutputExists(
        f"the input is not what {output} was made of: {where}",
        hint="the input may only grow at its end; another -o begins anew, --overwrite replaces it",
    )
