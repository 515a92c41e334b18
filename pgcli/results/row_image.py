"""The image of a row during an export: its file, its bytes and its format."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from pgcli.images import ImageError, ImageLimits, Size, read_file_header, read_header
from pgcli.inputs.endings import IMAGE_ENDINGS
from pgcli.inputs.paths import url_scheme
from pgcli.records import Fault, Item
from pgcli.results.drawings.drawings import read_original
from pgcli.results.drawings.formats import SUFFIXES
from pgcli.stores import Reader

IMAGE_CHANGED = Fault("missing", "The image changed since it was answered.")


class RowImage:
    """The image of a row: a file, bytes, or an address.

    `size` is the width and height that it must have; None if any will do.
    """

    def __init__(self, item: Item, size: tuple[int, int] | None, url_reader: Reader | None):
        self._item, self._size, self._url_reader = item, size, url_reader

    @cached_property
    def path(self) -> str | None:
        """The image file, if there is one and it still has the row's size.

        Without a size, the ending of the name is enough. The file is checked because a row from
        elsewhere may name any file of the user.
        """
        path = self._item.path
        if path is None or not self._is_file or not os.path.isfile(path):  # noqa: PTH113
            return None
        has_ending = self._size is None and Path(path).suffix.lower() in IMAGE_ENDINGS
        return path if has_ending or self.ending else None

    @cached_property
    def ending(self) -> str:
        """The file ending of the image's format; empty if it cannot be read."""
        path, root = self._item.path, self._item.root
        try:
            if path is None or not self._is_file:
                return SUFFIXES[self._contents[1]][0]
            return SUFFIXES[self._checked(*read_file_header(path, ImageLimits(), root))][0]
        except ImageError:
            return ""

    def read(self) -> bytes:
        """The bytes of the image. Raises `ImageError` if it cannot be read or has changed."""
        return self._contents[0]

    @property
    def _is_file(self) -> bool:
        """Whether the image is a file of its own, not one at an address or in an archive."""
        path = self._item.path
        return path is not None and self._item.span is None and url_scheme(path) is None

    @cached_property
    def _contents(self) -> tuple[bytes, str]:
        """The bytes and their format."""
        data = read_original(self._item, ImageLimits(), self._url_reader)
        return data, self._checked(*read_header(data))

    def _checked(self, format: str, size: Size) -> str:
        """The format, if the size is the row's; EXIF may swap its sides. Raises `ImageError`."""
        if self._size is not None and sorted(size) != sorted(self._size):
            raise ImageError(IMAGE_CHANGED)
        return format
