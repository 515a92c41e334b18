"""`inputs/images`: size, time and a digest of the files that were answered, by their item."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from contextlib import suppress

import numpy as np

from pgcli.inputs.stamps import Stamp, no_stamps
from pgcli.stores import LocalStore, Store

NAME = "inputs/images"
STAMP = struct.Struct("=3q")
STAMP_BYTES = STAMP.size


class ImageStamps:
    """The stamps of images on this machine, in the state of an output that is here as well.

    A shard has a file of its own.
    """

    def __init__(self, store: Store, name: str = NAME):
        self._store, self._name = store, name
        self._descriptor: int | None = None

    @staticmethod
    def merged(stores: Iterable[Store]) -> np.ndarray:
        """The stamps in several folders, which are of different items."""
        parts = [ImageStamps(store).read() for store in stores]
        merged = no_stamps(max(map(len, parts)))
        for stamps in parts:
            np.copyto(merged[: len(stamps)], stamps, where=stamps[:, :1] != 0)
        return merged

    def read(self) -> np.ndarray:
        """A stamp for each item, zeros where there is none, up to the last one that has one.

        A stamp of which a power loss left a part, without its size or digest, counts as none.
        """
        data = self._store.read(self._name) if isinstance(self._store, LocalStore) else None
        count = len(data or b"") // STAMP_BYTES
        stamps = np.frombuffer(data or b"", np.int64, count * 3).reshape(count, 3)
        return np.where(stamps[:, [0, 2]].all(axis=1, keepdims=True), stamps, 0)

    def note(self, index: int, stamp: Stamp | None) -> None:
        """Write the stamp of an item, before its rows are saved.

        Where it cannot be written, nothing is known of the image.
        """
        if stamp is None or not isinstance(self._store, LocalStore):
            return
        if self._descriptor is None:
            self._descriptor = self._store.open_append(self._name)
        with suppress(OSError):
            os.pwrite(self._descriptor, STAMP.pack(*stamp), index * STAMP_BYTES)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
