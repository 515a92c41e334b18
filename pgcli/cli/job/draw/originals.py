"""The bytes of an image, read again from where they were when it was answered."""

from __future__ import annotations

from pgcli.images import ImageError, ImageLimits
from pgcli.images.files import checked_bytes, read_file
from pgcli.records import Item
from pgcli.remote import RemoteError, UrlReader
from pgcli.sources.paths import url_scheme


def read_original(item: Item, limits: ImageLimits, url_reader: UrlReader | None) -> bytes:
    """The item's bytes: its own, those of its file, or those at its URL. Raises `ImageError`."""
    if item.fault is not None:
        raise ImageError(item.fault)
    if item.path is None:
        return checked_bytes(item.data, limits)
    if url_reader is None or url_scheme(item.path) is None:
        return read_file(item.path, limits, root=item.root)
    try:
        return checked_bytes(url_reader.read(item.path), limits)
    except RemoteError as problem:
        raise ImageError(problem.fault) from problem
