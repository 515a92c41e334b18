"""Stamps of images, with which a later run detects that an image has changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from pgcli.images.errors import ImageError
from pgcli.images.files import read_file
from pgcli.images.image_spec import ImageLimits
from pgcli.records import NOT_READ, STAMP_BYTES, FileStamp, Item
from pgcli.regular_file import file_status


def content_digest(data: bytes) -> bytes:
    """A digest of an image's bytes."""
    return sha256(data).digest()[:STAMP_BYTES]


@dataclass
class StampComparison:
    """Compares images with the stamps of saved rows.

    A file of another size or modification time is read, as a copy has another one too; with
    `reads_all` every file is. An image in a table that was not read is that of a table of the same
    size and time. Of the images that were `compared`, `in_tables` counts those that a
    table holds, and `read` the files that were read; `missing` ones are gone, `remote` ones are not
    fetched again.
    """

    limits: ImageLimits = field(default_factory=ImageLimits)
    reads_all: bool = False
    read: int = 0
    missing: int = 0
    remote: int = 0
    compared: int = 0
    in_tables: int = 0
    _last: tuple[int, FileStamp] | None = None
    _last_differs: bool = False

    def differs(self, item: Item, stamp: FileStamp) -> bool:
        """Whether the item's image is known to be another one than that of the stamp.

        A file that is gone or may not be read is not.
        """
        if not stamp.content or item.fault is not None:
            return False
        if self._last != (item.index, stamp):  # several prompts share an image
            self._last, self._last_differs = (item.index, stamp), self._differs(item, stamp)
        return self._last_differs

    def _differs(self, item: Item, stamp: FileStamp) -> bool:
        if item.data is NOT_READ:
            self.compared += 1
            return item.table_status != stamp.status
        if item.data is not None:
            self.compared += 1
            self.in_tables += 1
            return content_digest(item.data) != stamp.content
        status = file_status(item.path)
        if not status:
            is_remote = is_address(item.path)
            self.remote += is_remote
            self.missing += not is_remote
            return False
        self.compared += 1
        if status == stamp.status and not self.reads_all:
            return False
        self.read += 1
        try:
            data = read_file(item.path or "", self.limits, root=item.root)
        except ImageError:
            return status != stamp.status
        return content_digest(data) != stamp.content


def is_missing(item: Item) -> bool:
    """Whether the item's image is a file that does not exist."""
    is_file = item.data is None and item.fault is None and not is_address(item.path)
    return is_file and not file_status(item.path)


def is_address(path: str | None) -> bool:
    """Whether the path is the URL of an image that is fetched."""
    return path is not None and "://" in path
