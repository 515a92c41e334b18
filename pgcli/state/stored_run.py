"""The state of a run whose output is in an object store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from time import monotonic

from pgcli.errors import OutputExists, OutputInUse, UsageError
from pgcli.remote.stored_objects import StoredObjects
from pgcli.state.progress import progress_file
from pgcli.state.run_record import ResumeRules, RunRecord
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import FILES, PROGRESS, RUN, common_part
from pgcli.state.stored_owners import PART, StoredOwners

PROGRESS_SECONDS = 5.0  # between two writes of how far the run has come
PARTS = "part-"
LISTS = "lists"  # the key of an owner's object that says that it uses the lists of input files


class StoredRunState(RunState):
    """The state of a run that stores its chunks as objects below `url`.

    The files of the state are in `folder`, which is this process's own, and those that the next run
    needs in the store, at `url` with `.pgcli` in place of the last slash. `owners` are the
    processes that write the output.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        overwrite: bool = False,
        part: str = "",
        rules: ResumeRules | None = None,
    ):
        super().__init__(folder / "rows", overwrite=overwrite, part=part, rules=rules)
        self.parts = StoredObjects(url)
        self.objects = StoredObjects(f"{url.rstrip('/')}.pgcli/")
        self.owners = StoredOwners(self.objects, part, replaces=overwrite)
        self._stored: dict[str, bytes] = {}  # the digests of the stored lists of input files
        self._writes_progress_at = 0.0
        self.folder.mkdir()

    def __enter__(self) -> StoredRunState:
        self.objects.probe(f"probe-{token_hex(8)}")
        self.parts.is_conditional = self.objects.is_conditional
        if self.part and not self.objects.is_conditional:
            raise UsageError(
                f"the store of {self.name} replaces objects that are only to be created, and "
                "several processes could replace each other's rows",
                hint="a store with conditional puts (If-None-Match) takes --join, --ray and "
                "--shard; this one takes one run at a time, without them",
            )
        self._stack.enter_context(self.owners.registered())
        try:
            if not self.overwrite:
                self.pull()
            super().__enter__()
        except BaseException:
            self._stack.close()
            raise
        return self

    @property
    def name(self) -> str:
        return self.parts.url

    def pull(self) -> None:
        """Get the files that earlier processes stored. Raises OutputFailed."""
        found = self.objects.names()
        for name, one in found.items():
            if name.startswith((RUN, PROGRESS, f"{FILES}-")):
                self._pull_file(name, one.modified)
        self._note_stored_lists()

    def pull_lists(self, files: str) -> None:
        """Get the lists of input files of a run, whose names begin so. Raises OutputFailed."""
        for name, one in self.objects.names(f"{files}-").items():
            self._pull_file(name, one.modified)

    def _pull_file(self, name: str, modified: float) -> None:
        if (data := self.objects.read(name)) is not None:
            (self.folder / name).write_bytes(data)
            os.utime(self.folder / name, (modified, modified))

    def _resume(self) -> None:
        super()._resume()
        if self.record is None and self.parts.names(PARTS):
            raise OutputExists(
                f"{self.name} exists and cannot be resumed: {self.objects.url}{RUN} is not a "
                "record of a run",
                hint="--overwrite replaces it; another -o leaves it alone",
            )

    @contextmanager
    def file_lists(self) -> Iterator[Callable[[int], Path]]:
        with super().file_lists() as lists:
            yield lists
        self._store_lists()

    def _note_stored_lists(self) -> None:
        files = self.folder.glob(f"{self._files}-*")
        self._stored = {file.name: digest(file.read_bytes()) for file in files}

    def _has_list_users(self) -> bool:
        others = self.owners.others().values()
        return any(other.is_running and other.process.get(LISTS) for other in others)

    def _has_record(self) -> bool:
        return self.objects.read(RUN) is not None

    def _use_lists(self) -> None:
        self.owners.write({LISTS: True})

    def _check_lists(self) -> None:
        """Get the lists as they are now, which others may have stored since, and check them."""
        super()._remove_file_lists()
        self.pull_lists(self._files)
        self._note_stored_lists()
        super()._check_lists()

    def _store_lists(self) -> None:
        """Store new lists of input files, if no other process has stored others."""
        for file in sorted(self.folder.glob(f"{self._files}-*")):
            data = file.read_bytes()
            if self._stored.get(file.name) == digest(data):
                continue
            if not self.objects.create(file.name, data) and self.objects.read(file.name) != data:
                raise OutputInUse(
                    f"another process began {self.name} at the same time, with other images",
                    hint="run the same command again",
                )

    def _share(self) -> None:
        super()._share()
        self.owners.write({PART: self.part})

    def _remove_killed(self) -> None:
        self.owners.remove_killed()

    def _write_record(self, record: RunRecord, *, replace: bool) -> bool:
        super()._write_record(record, replace=True)
        data = (self.folder / RUN).read_bytes()
        if replace:
            self.objects.put(RUN, data)
        elif not self.objects.create(RUN, data):
            self._pull_file(RUN, 0.0)
            return False
        return True

    def _write_progress(self, *, durable: bool = False) -> None:
        super()._write_progress()
        if durable or monotonic() >= self._writes_progress_at:
            self._writes_progress_at = monotonic() + PROGRESS_SECONDS
            file = progress_file(self.folder, common_part(self.part))
            self.objects.put(file.name, file.read_bytes())

    def _remove_old_run(self) -> None:
        super()._remove_old_run()
        self.parts.remove(self.parts.names(PARTS))
        names = self.objects.names()
        self.objects.remove(
            name
            for name in names
            if name.startswith((RUN, PROGRESS, f"{FILES}-"))
            and not name.startswith(f"{self._files}-")
        )

    def _remove_file_lists(self) -> None:
        names = [file.name for file in self.folder.glob(f"{self._files}-*")]
        super()._remove_file_lists()
        self._stored = {}
        self.objects.remove(names)


def digest(data: bytes) -> bytes:
    """A digest of a list."""
    return hashlib.sha256(data).digest()


@contextmanager
def open_stored_run(
    url: str, *, overwrite: bool = False, part: str = "", rules: ResumeRules | None = None
) -> Iterator[StoredRunState]:
    """The state of the run that writes a stored output, in a temporary folder within the block.

    Raises what entering RunState raises, and UsageError for a store without conditional puts where
    several processes may write the output.
    """
    with (
        TemporaryDirectory(prefix="pgcli-") as folder,
        StoredRunState(url, Path(folder), overwrite=overwrite, part=part, rules=rules) as state,
    ):
        yield state


@contextmanager
def stored_state(url: str) -> Iterator[StoredRunState]:
    """The state of a stored output as it is now, for reading within the block."""
    with TemporaryDirectory(prefix="pgcli-") as folder:
        state = StoredRunState(url, Path(folder))
        state.pull()
        yield state
