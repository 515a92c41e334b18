"""The lists of a run's input files, for an output in an object store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgcli.errors import OutputInUse
from pgcli.remote.stored_objects import StoredObjects
from pgcli.state.atomic_file import parse_values
from pgcli.state.input_lists import InputLists, scan_file
from pgcli.state.state_folder import FILES, RUN
from pgcli.state.stored_owners import StoredOwners

LISTS = "lists"  # the key of an owner's object that says that it uses the lists of input files


class StoredInputLists(InputLists):
    """Lists that are files of this process, and objects of the store."""

    def __init__(
        self,
        output: Path,
        prefix: str,
        objects: StoredObjects,
        owners: StoredOwners,
        *,
        is_shared: bool,
    ):
        super().__init__(output, prefix, is_shared=is_shared)
        self._objects, self._owners = objects, owners
        self._stored: dict[str, bytes] = {}  # the digests of the stored lists

    @contextmanager
    def locked(self) -> Iterator[Callable[[int], Path]]:
        with super().locked() as lists:
            yield lists
        self._store()

    def note_stored(self) -> None:
        """Note that the lists of this process are those of the store."""
        self._stored = {file.name: digest(file.read_bytes()) for file in self.files()}

    def _has_users(self) -> bool:
        others = self._owners.others().values()
        return any(other.is_running and other.process.get(LISTS) for other in others)

    def _has_record(self) -> bool:
        return self._objects.read(RUN) is not None

    def _start_use(self) -> None:
        self._owners.write({LISTS: True})

    def read(self) -> None:
        super()._remove(self.files())
        for name, one in self._objects.names(f"{self.prefix}-").items():
            read_object(self._objects, name, self.folder, one.modified)
        self.note_stored()

    def _store(self) -> None:
        """Store new lists, if no other process has stored others."""
        for file in self.files():
            data = file.read_bytes()
            if self._stored.get(file.name) == digest(data):
                continue
            if not self._objects.create(file.name, data) and self._objects.read(file.name) != data:
                raise OutputInUse(
                    f"another process began {self.name} at the same time, with other images",
                    hint="run the same command again",
                )

    def _remove(self, files: Sequence[Path]) -> None:
        super()._remove(files)
        self._objects.remove(file.name for file in files)
        self.note_stored()


def stored_scan_reader(url: str) -> Callable[[str], dict[str, Any] | None]:
    """What reads the scans that were stored beside an output; None for one that is not there."""
    objects = StoredObjects(f"{url.rstrip('/')}.pgcli/")
    return lambda name: parse_values(objects.read(scan_file(FILES, name)) or b"")


def digest(data: bytes) -> bytes:
    """A digest of a list."""
    return hashlib.sha256(data).digest()


def read_object(objects: StoredObjects, name: str, folder: Path, modified: float) -> None:
    """Get an object, if it exists, as a file of its name and time. Raises OutputFailed."""
    if (data := objects.read(name)) is not None:
        (folder / name).write_bytes(data)
        os.utime(folder / name, (modified, modified))
