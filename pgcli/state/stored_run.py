"""The state of a run whose output is in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from time import monotonic

from pgcli.errors import OutputExists, UsageError
from pgcli.remote.stored_objects import StoredObjects
from pgcli.state.progress import progress_file
from pgcli.state.run_record import ResumeRules, RunRecord
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import FILES, PROGRESS, RUN, common_part
from pgcli.state.stored_input_lists import StoredInputLists, read_object
from pgcli.state.stored_owners import PART, StoredOwners

PROGRESS_SECONDS = 5.0  # between two writes of how far the run has come
PARTS = "part-"


class StoredRunState(RunState):
    """The state of a run that stores its chunks as objects below `url`.

    The files of the state are in `folder`, which is this process's own, and those that the next run
    needs in the store, at `url` with `.pgcli` in place of the last slash. `owners` are the
    processes that write the output.
    """

    lists: StoredInputLists

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
        self.lists = StoredInputLists(
            self.output, self.lists.prefix, self.objects, self.owners, is_shared=bool(part)
        )
        self.lists.name = self.name
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
        for name, one in self.objects.names().items():
            if name.startswith((RUN, PROGRESS, f"{FILES}-")):
                read_object(self.objects, name, self.folder, one.modified)
        self.lists.note_stored()

    def _resume(self) -> None:
        super()._resume()
        if self.record is None and self.parts.names(PARTS):
            raise OutputExists(
                f"{self.name} exists and cannot be resumed: {self.objects.url}{RUN} is not a "
                "record of a run",
                hint="--overwrite replaces it; another -o leaves it alone",
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
            read_object(self.objects, RUN, self.folder, 0.0)
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
            and not name.startswith(f"{self.lists.prefix}-")
        )


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
