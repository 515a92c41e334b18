"""The state folder of an output: who may write it, which run it belongs to, what may be removed."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pgcli.errors import OutputExists, OutputInUse
from pgcli.inputs.paths import url_scheme
from pgcli.output import FOLDER, PART, PART_ENDING, load_format, part_format
from pgcli.pipeline.state.claims import CLAIMS
from pgcli.pipeline.state.form import Form, FormContext
from pgcli.pipeline.state.forms import open_form
from pgcli.pipeline.state.open_files import OPEN, OpenFiles
from pgcli.pipeline.state.processes import (
    PROCESSES,
    Process,
    boot_id,
    holds_lock,
    in_use,
    living,
    recorded_processes,
)
from pgcli.pipeline.state.record import (
    RUN,
    RunRecord,
    read_record,
    state_folder,
    why_no_record,
)
from pgcli.printable import printable
from pgcli.stores import Entry, Held, LocalStore, Store, open_folder
from pgcli.stores.urls import is_in_object_store, without_credentials
from pgcli.stores.writing import already_exists, check_target

if TYPE_CHECKING:
    from pgcli.output.lines import LineFormat
    from pgcli.output.tables import TableFormat
    from pgcli.pipeline.request import RunRequest

#: How a process takes part: it has the output for itself, or shares it with others.
Mode = Literal["run", "shared"]

LOCK, LOG, INPUTS = "lock", "log.txt", "inputs/"
#: All names that this program writes into a state folder; no other is ever removed.
OWN = re.compile(
    r"run\.json|lock|log\.txt|inputs/\d+\.arrow|inputs/images|claims/\d+|processes/[0-9a-f]+\.json"
    r"|open/\d{12}-[0-9a-f]+\.jsonl|open/retried\.jsonl"
)
FOLDERS = (INPUTS, CLAIMS, PROCESSES, OPEN)
#: Covers the moments in which another process looks whether the lock is held, and in which engines
#: of a command that was killed end.
LOCK_SECONDS = 1.0


class State:
    """The state of an output, on this machine or in a store: see `open_state`.

    `record` is that of the run that began the output, None for a new one; with `overwrite` it is
    kept as `replaced` until the first row is saved.
    """

    record: RunRecord | None = None
    replaced: RunRecord | None = None

    def __init__(self, output: str, *, overwrite: bool, store: Store | None = None):
        self.output, self.overwrite = output, overwrite
        self.name = without_credentials(output)
        self._store = store
        self._held: list[str] = []
        self._log: int | None = None
        if store is not None:
            self._find_record()

    @property
    def store(self) -> Store:
        """The folder, which is created when it is first needed."""
        if self._store is None:
            self._store = open_folder(state_folder(self.output), create=True)
        return self._store

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder of files."""
        return self.output.endswith(FOLDER)

    @property
    def format(self) -> LineFormat | TableFormat:
        """The format of the output's files."""
        return part_format() if self.is_folder else load_format(self.output)

    @property
    def is_stored(self) -> bool:
        """Whether the output is in an object store."""
        return is_in_object_store(self.output)

    def check(self) -> None:
        """Raise OutputExists for an output or a state folder that is not of this program.

        With `overwrite`, only an output of one file may be, and is replaced.
        """
        if self._find_record():
            return
        names = self._output_names()
        if self._find_record():  # of a run that began meanwhile: it is there before any row
            return
        if self._store is not None and self.replaced is None:
            self._check_state(self._store)
        if self.is_folder:
            self._check_names(names)
        elif names and not self.overwrite:
            why = f" and cannot be resumed: there is no {state_folder(self.output)}/{RUN}"
            raise already_exists(self.name, why)

    def _find_record(self) -> bool:
        """Whether there is a run to resume; its record is read."""
        with suppress(FileNotFoundError):
            self._store = self._store or open_folder(state_folder(self.output))
        record = None if self._store is None else read_record(self._store)
        self.record, self.replaced = (None, record) if self.overwrite else (record, None)
        return self.record is not None

    def _output_names(self) -> list[str]:
        """The files of the output: those in a folder, or the one that it is."""
        if not self.is_folder:
            return [self.output] if os.path.lexists(self.output) else []
        with suppress(FileNotFoundError):
            return [entry.name for entry in open_folder(self.output, follow=True).list()]
        return []

    def _check_state(self, store: Store) -> None:
        foreign = next(foreign_names(store), None)
        if foreign is None or read_record(store) is not None:
            return
        raise OutputExists(
            f"{self.name} cannot be resumed or replaced: {why_no_record(store)}"
            if store.read(RUN) is not None
            else f"{store.url}, the place of the state, has other files: {foreign}",
            hint="move it away, or choose another -o",
        )

    def _check_names(self, names: Sequence[str]) -> None:
        if self.replaced is None and names:
            raise OutputExists(
                f"{self.name} is not empty, and there is no record of a run that wrote it",
                hint="move its files away, or choose another -o",
            )
        foreign = [
            name for name in names if not PART.fullmatch(name) and name.endswith(PART_ENDING)
        ]
        if foreign:
            raise OutputExists(
                f"{self.name} has files that no run wrote: {foreign[0]}",
                hint="readers would take them for rows; move them away, or choose another -o",
            )
        if self.replaced is not None and names:
            self.form_of(self.replaced).segments()

    def form_of(self, record: RunRecord) -> Form:
        """The output as a run with this record wrote it."""
        return open_form(self.output, FormContext(lambda: record, OpenFiles(self.store, "")))

    @contextmanager
    def locked(self, mode: Mode, process: Process) -> Iterator[None]:
        """A block in which this process may write the output. Raises OutputInUse."""
        with ExitStack() as stack:
            if isinstance(self.store, LocalStore):
                shared = mode == "shared" and not self.overwrite
                lock = self.store.lock(LOCK, shared=shared, timeout_seconds=LOCK_SECONDS)
                try:
                    stack.enter_context(lock)
                except Held:
                    raise self._in_use() from None
                self._find_record()  # another run may have begun since this one looked
                self._remove_abandoned(self.store)
            stack.enter_context(process.registered())
            self._check_others(mode, process)
            yield

    def _remove_abandoned(self, store: LocalStore, *, is_alone: bool = False) -> None:
        """Remove what killed processes left of files; new ones of the state if `is_alone`."""
        for folder in ("", *FOLDERS):
            store.remove_abandoned(folder.rstrip("/"), is_alone=is_alone)
        output = Path(self.output)
        if not self.is_folder:
            LocalStore(output.parent, follow=True).remove_abandoned(start=f".{output.name}.")
        elif output.is_dir():
            LocalStore(output, follow=True).remove_abandoned(start=".part-")

    def begin(self, record: RunRecord) -> RunRecord:
        """Write the record of a new run, and return it, or that of a process that was first.

        An output that is replaced is removed first: a process that is killed in between leaves no
        rows that could be taken for those of other settings.
        """
        if self.overwrite:
            self._remove_state()
        if self.replaced is not None:
            self.store.replace(RUN, record.to_bytes())
        elif not self.store.create(RUN, record.to_bytes()):
            first = read_record(self.store)
            if first is None:
                raise OutputExists(
                    f"{self.name} cannot be resumed: {why_no_record(self.store)}",
                    hint="move it away, or choose another -o",
                )
            record = first
        self.record = record
        return record

    def update(self, record: RunRecord) -> None:
        """Write the record with what is known now."""
        self.record = record
        self.store.replace(RUN, record.to_bytes())

    def discard(self, *, has_failed: bool = False) -> None:
        """Remove the state of a run that saved nothing, unless another process has the output.

        That of a run that has failed is removed with the empty file that it may have created.
        Called after `locked`. Raises OutputFailed and OutputExists.
        """
        if not isinstance(self.store, LocalStore):
            if not living(self.store):
                self.store.delete(entry.name for entry in own_entries(self.store))
            return
        with suppress(Held), self.store.lock(LOCK, timeout_seconds=0):
            names = [entry.name for entry in own_entries(self.store)]
            if not any(name.startswith(OPEN) for name in names):
                self.store.delete(name for name in names if name not in (RUN, LOCK))
                self._remove_abandoned(self.store, is_alone=True)
                if has_failed and not self.is_folder and not self.overwrite:
                    remove_if_empty(Path(self.output))
                self.store.remove_folders()  # without the record they would count as foreign
                self.store.delete([RUN, LOCK])
                self.store.remove_folders()

    def start_log(self, arguments: Sequence[str]) -> None:
        """Write the command to the log of all runs, and what was logged before it began."""
        if self._log is None and isinstance(self.store, LocalStore):
            self._log = self.store.open_append(LOG)
            self._write(log_line(shlex.join(["pgcli", *arguments])))
            while self._held:
                self._write(self._held.pop(0))

    def log(self, text: str) -> None:
        """Append a line to the log; it is kept until `start_log`, as a run may save nothing.

        A failure to write it does not stop the run.
        """
        line = log_line(text)
        if self._log is None:
            self._held.append(line)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        with suppress(OSError):
            os.write(self._log or -1, line.encode())

    def _remove_state(self) -> None:
        keep = (RUN, LOCK, PROCESSES)  # the record is replaced: without one, no file is ours
        names = [entry.name for entry in own_entries(self.store)]
        self.store.delete(name for name in names if not name.startswith(keep))

    def _check_others(self, mode: Mode, process: Process) -> None:
        for peer in recorded_processes(self.store, process.id):
            is_here = not self.is_stored and peer.values.get("boot") == boot_id()
            if is_here and not holds_lock(peer.values.get("lock")):
                continue  # the output's lock says more of processes of this machine
            is_exclusive = mode != "shared" or peer.values.get("mode") != "shared"
            if peer.is_alive and peer.values.get("mode") != "engine" and is_exclusive:
                raise in_use(self.name, peer)

    def _in_use(self) -> OutputInUse:
        for process in recorded_processes(self.store):
            if process.is_alive:
                return in_use(self.name, process)
        return OutputInUse(
            f"{self.name} is in use by another run",
            hint=f"wait for it (pgcli status {shlex.quote(self.name)}), end it, or name another -o",
        )


def remove_if_empty(output: Path) -> None:
    """Remove a file without a row, which no run could resume without a record."""
    with suppress(OSError):
        if output.is_file() and not output.is_symlink() and not output.stat().st_size:
            output.unlink()


def log_line(text: str) -> str:
    """A line of the log: the time, the process and the text."""
    time = datetime.now().astimezone().isoformat(timespec="milliseconds")
    return f"{time} {os.getpid()} {printable(without_credentials(text))}\n"


def own_entries(store: Store) -> Iterator[Entry]:
    """The files of a state folder that this program writes."""
    for prefix in ("", *FOLDERS):
        for entry in store.list(prefix):
            if OWN.fullmatch(entry.name):
                yield entry


def foreign_names(store: Store) -> Iterator[str]:
    """What a folder has that this program does not write there before `run.json`."""
    if isinstance(store, LocalStore):
        yield from (name for name in store.names() if name not in (LOCK, PROCESSES.rstrip("/")))
        return
    for entry in store.list():
        if not entry.name.startswith(PROCESSES):
            yield entry.name


def open_state(request: RunRequest) -> State:
    """The state of the request's output, checked as far as nothing else is needed.

    Nothing is created. Raises UsageError, OutputExists and OutputFailed.
    """
    output = request.output.output
    state = State(output, overwrite=request.output.overwrite)
    if url_scheme(output) is None:
        check_target(Path(output), "-o", is_folder=state.is_folder, overwrite=True)
    state.check()
    return state


def recorded_inputs(store: Store) -> list[bytes]:
    """The inventory of the input that earlier processes recorded, a file for each generation."""
    files: list[bytes] = []
    while (data := store.read(inventory_name(len(files)))) is not None:
        files.append(data)
    return files


def inventory_name(generation: int) -> str:
    """The name of the file with a generation of the input."""
    return f"{INPUTS}{generation}.arrow"
