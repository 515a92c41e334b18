"""Items that are in the pipeline, kept until their rows are saved."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import replace
from pathlib import Path

from pgcli.errors import OutputFailed
from pgcli.records import Item

IN_MEMORY = 64 * 2**20  # bytes of images; more are kept in temporary files


class PendingItems:
    """Items by index, put and taken by different threads.

    Bytes of images without a path go to temporary files beyond `in_memory`: thousands of images may
    be in the pipeline, and their files may be much larger than the decoded images.
    """

    def __init__(self, in_memory: int = IN_MEMORY):
        self._free = in_memory
        self._items: dict[int, Item] = {}
        self._rows: dict[int, int] = {}
        self._files: dict[int, Path] = {}
        self._lock = threading.Lock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def put(self, item: Item) -> None:
        """Keep the item for as many rows as it has prompts, at least one.

        Raises OutputFailed if its bytes cannot be written to a temporary file.
        """
        size = len(item.data or b"")
        with self._lock:
            fits = size <= self._free
            self._free -= size if fits else 0
        self._rows[item.index] = max(1, len(item.prompts))
        self._items[item.index] = item if fits else self._in_file(item)

    def take(self, index: int) -> Item:
        """The item with its bytes; it is removed with its last row."""
        item = self._items[index]
        self._rows[index] -= 1
        is_last = self._rows[index] == 0
        if is_last:
            del self._items[index], self._rows[index]
        if index in self._files:
            file = self._files[index]
            data = file.read_bytes()
            if is_last:
                file.unlink()
                del self._files[index]
            return replace(item, data=data)
        if is_last:
            with self._lock:
                self._free += len(item.data or b"")
        return item

    def clear(self) -> None:
        """Remove all items and files."""
        self._items.clear()
        self._rows.clear()
        self._files.clear()
        if self._folder is not None:
            self._folder.cleanup()

    def _in_file(self, item: Item) -> Item:
        """The item without its bytes, which are written to a temporary file."""
        try:
            if self._folder is None:
                self._folder = tempfile.TemporaryDirectory(prefix="pgcli-")
            file = Path(self._folder.name) / str(item.index)
            file.write_bytes(item.data or b"")
        except OSError as problem:
            raise OutputFailed(
                f"cannot keep images in {tempfile.gettempdir()} until they are drawn: "
                f"{problem.strerror or problem}",
                hint="free some space there, set TMPDIR to another folder, or leave --draw out",
            ) from problem
        self._files[item.index] = file
        return replace(item, data=b"")
