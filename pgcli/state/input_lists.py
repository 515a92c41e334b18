"""The lists of a run's input files, in the state folder of its output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from pgcli.errors import OutputInUse, PgcliError
from pgcli.state.atomic_file import read_json, write_json
from pgcli.state.file_lock import Held, file_lock, is_locked
from pgcli.state.run_record import read_record
from pgcli.state.state_folder import FILES, LOCK, file_list, state_folder
from pgcli.state.write_errors import wrap_write_errors

#: For how long a run that saved nothing waits until it may remove its lists.
TIMEOUT_SECONDS = 1.0


class InputLists:
    """Lists of input files and scans of tables, whose names begin with `prefix`.

    Processes that write parts of one output share its lists. Until there is a record of the run,
    each of them says that it uses the lists: those that nobody uses are of a run that saved nothing
    and has ended, and are made anew.
    """

    def __init__(self, output: Path, prefix: str, *, is_shared: bool):
        self.name: Path | str = output  # for messages
        self.folder, self.prefix = state_folder(output), prefix
        self._output, self._is_shared = output, is_shared
        self._is_begun = False
        self._new: list[Path] = []  # the lists that this process added
        self._use = ExitStack()  # held while this process uses the lists
        self.lock = self.folder / f"{LOCK}-{FILES}"
        # locked, shared, while a process uses the lists; it is looked at while these are locked
        self.users_lock = self.folder / f"{LOCK}-{FILES}-users"

    @contextmanager
    def locked(self) -> Iterator[Callable[[int], Path]]:
        """A block in which only this process writes the lists. Raises OutputFailed.

        Yields a function from a source's number to the path that the names of its lists begin with.
        """
        with wrap_write_errors(self.folder), file_lock(self.lock):
            earlier = set(self.files())
            yield partial(file_list, self.folder, self.prefix)
            self._new = [file for file in self.files() if file not in earlier]

    def begin(self, listed: Mapping[str, Any] | None) -> None:
        """Use the lists, which are locked, for a run that has no record.

        `listed` are the settings that decide which files are listed, None if any will do. Raises
        OutputInUse if other processes use lists of other settings.
        """
        self._is_begun = True
        if self._are_unused():
            self._remove(self.files())
        if self._is_shared:
            self.read()
            if listed is not None:
                self._check(listed)
            self._start_use()

    def read(self) -> None:
        """Get the lists as they are now, where they are not in the folder. Raises OutputFailed."""

    def leave(self) -> None:
        """Remove the lists that a run without a record has begun, unless others use them."""
        if not self._is_begun:
            return
        with (
            suppress(OSError, PgcliError, Held),
            file_lock(self.lock, timeout_seconds=TIMEOUT_SECONDS),
        ):
            self.close()
            if self._are_unused():
                self._remove(self.files())
                self.users_lock.unlink(missing_ok=True)

    def discard_new(self) -> None:
        """Remove the lists that this process added, unless others may have read them."""
        if not self._is_shared:
            with suppress(OSError, PgcliError):
                self._remove(self._new)

    def close(self) -> None:
        """Note that this process does not use the lists any more."""
        self._use.close()

    def store_scans(self, scans: Mapping[str, Mapping[str, Any]]) -> None:
        """Store beside the lists, which are locked, what was found of tables. Raises OutputFailed.

        The first scan of a table stays, as other processes may be reading it.
        """
        for name, values in scans.items():
            file = self.folder / scan_file(self.prefix, name)
            if not file.exists():
                write_json(file, values)

    def files(self) -> list[Path]:
        """The lists and scans, in the order of their names."""
        return sorted(self.folder.glob(f"{self.prefix}-*"))

    def _are_unused(self) -> bool:
        """Whether the lists, if there are any, are of a run that saved nothing and has ended."""
        # in this order: a process writes the record while it uses the lists
        return not self._is_shared or not (self._has_users() or self._has_record())

    def _has_users(self) -> bool:
        """Whether another process uses the lists, or that cannot be known."""
        return is_locked(self.users_lock, shared=False) is not False

    def _has_record(self) -> bool:
        """Whether a run has saved rows, maybe since this process looked for its record."""
        return read_record(self._output) is not None

    def _start_use(self) -> None:
        """Tell other processes that this one uses the lists."""
        self._use.enter_context(file_lock(self.users_lock, shared=True))

    def _check(self, listed: Mapping[str, Any]) -> None:
        file = self.folder / f"{self.prefix}-sources.json"
        if not file.exists():
            write_json(file, listed)
        elif read_json(file) != listed:
            raise OutputInUse(
                f"{self.name} was begun by another process at the same time, with other sources",
                hint="wait for it, end it, or choose another -o",
            )

    def _remove(self, files: Sequence[Path]) -> None:
        for file in files:
            file.unlink(missing_ok=True)


def scan_file(prefix: str, name: str) -> str:
    """The name of the file that holds the scan of a table."""
    return f"{prefix}-{name}.json"


def scan_reader(output: Path) -> Callable[[str], dict[str, Any] | None]:
    """What reads the scans that were stored beside an output; None for one that is not there."""
    record = read_record(output)
    prefix = FILES if record is None else record.files
    return lambda name: read_json(state_folder(output) / scan_file(prefix, name))
