"""The state of the run that writes an output: started, resumed, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from time import monotonic
from typing import Any, Self

from pgcli.errors import OutputExists, OutputFailed, PgcliError
from pgcli.state.atomic_file import write_json
from pgcli.state.destination import is_occupied, unknown_output
from pgcli.state.input_check import RowComparer
from pgcli.state.input_lists import InputLists
from pgcli.state.lock import output_lock, remove_locks
from pgcli.state.owners import remove_killed
from pgcli.state.progress import RunProgress, progress_file, read_progress
from pgcli.state.run_log import RunLog
from pgcli.state.run_record import (
    SOURCES,
    ResumeRules,
    RunRecord,
    Settings,
    check_version,
    now,
    plain,
    read_record,
)
from pgcli.state.state_folder import (
    FILES,
    LOCK,
    LOG,
    OWNER,
    common_part,
    state_folder,
)
from pgcli.state.write_errors import fsync, wrap_write_errors

#: The settings that decide which files are listed.
LISTED = (SOURCES, "include", "exclude")


class RunState:
    """The state folder of an output, or of one `part` of it, locked within the `with` block.

    With `overwrite` the old output is removed before the first row is saved, or kept until it is
    replaced as a whole (`keep_old`). Entering raises OutputInUse, OutputExists for an output that
    cannot be resumed, and OutputFailed.
    """

    def __init__(
        self,
        output: Path,
        *,
        overwrite: bool = False,
        keep_old: bool = False,
        part: str = "",
        rules: ResumeRules | None = None,
    ):
        self.output, self.overwrite, self.part = output, overwrite, part
        self.rules = rules or ResumeRules()
        self.folder = state_folder(output)
        self.progress = RunProgress()
        self.run_id = token_hex(8)
        self.log = RunLog(self.folder / f"{LOG}{common_part(part)}.txt")
        self.record: RunRecord | None = None  # of the run that this one resumes
        #: The output to which this run adds prompts, and the record of that output's run.
        self.extends: tuple[Path, RunRecord] | None = None
        # the lists of an output that is replaced remain until it is
        prefix = f"{FILES}-{self.run_id}" if overwrite else FILES
        self.lists = InputLists(output, prefix, is_shared=bool(part))
        self._keep_old = keep_old
        self._settings: Settings = {}
        self._metadata: Mapping[str, Any] = {}
        self._is_begun = False
        self._is_recorded = False  # whether the record is that of this run
        self.exit_code = 0  # of a run that ends without an exception
        self._started: tuple[float, int] | None = None
        self._paused_seconds: Callable[[], float] = lambda: 0.0
        self._stack = ExitStack()
        self._share_lock: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        with wrap_write_errors(self.folder):
            self.folder.mkdir(exist_ok=True)
        try:
            lock = output_lock(self.folder, part=self.part, replaces=self.overwrite)
            self._share_lock = self._stack.enter_context(lock)
        except BaseException:
            self._remove_empty_folder()  # files in it belong to the other run
            raise
        try:
            if not self.overwrite:
                self._resume()
        except BaseException:
            self._release()
            raise
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        self.log.write("ended" if kind is None else f"ended by {type(problem).__name__}: {problem}")
        is_refused = isinstance(problem, OutputExists) and not self._is_recorded
        if is_refused and self.resumes:
            self.lists.discard_new()
        if self._is_begun and not (is_refused and self._started is None):
            if problem is not None:
                self.exit_code = exit_code(problem)
            self.progress.exit_code = self.exit_code
            with suppress(OutputFailed):
                self._write_progress(durable=True)
                if problem is None and not self.part:
                    self._remove_killed()
        self._release()

    @property
    def resumes(self) -> bool:
        """Whether the run continues an earlier one."""
        return self.record is not None

    @property
    def name(self) -> Path | str:
        """The output as the user named it."""
        return self.output if self.extends is None else self.extends[0]

    @property
    def may_replace(self) -> bool:
        """Whether an existing output that is not this run's may be replaced."""
        return self.overwrite or (self.record is not None and self.record.replaces)

    def check_settings(self, settings: Settings, metadata: Mapping[str, Any] | None = None) -> None:
        """Set the run's settings, and the metadata that its rows do not depend on.

        Called again when more settings are known. Raises OutputExists if the output belongs to a
        run of other settings.
        """
        self._settings, self._metadata = settings, metadata or {}
        if self.record is not None:
            self.record.check_settings(settings, self.name, self.rules)

    @property
    def changed_versions(self) -> list[str]:
        """`name: old -> new` for each version that differs from those of the resumed run."""
        return [] if self.record is None else self.record.changed_versions(self._metadata)

    @property
    def comparer(self) -> RowComparer:
        """Compares saved rows with the input."""
        sources = self._settings.get(SOURCES)
        is_moved = self.record is not None and self.record.is_moved(sources)
        return RowComparer(self.name, self.rules.images, is_moved=is_moved)

    @contextmanager
    def file_lists(self) -> Iterator[Callable[[int], Path]]:
        """A block in which only this process writes the lists of input files.

        Yields a function from a source's number to the path that the names of its lists begin with.
        """
        with self.lists.locked() as lists:
            if self.record is None:
                listed = plain({name: self._settings.get(name) for name in LISTED})
                self.lists.begin(None if self.rules.is_moved else listed)
            yield lists

    def expect(self, rows: int, total: int | None, whole: int | None) -> None:
        """Note how many rows there are to be, of this part and of the `whole` output.

        None is unknown. Fewer than the `rows` that are saved, as with a smaller limit, are not
        stored.
        """
        if total is None or total >= rows:
            self.progress.total, self.progress.whole = total, whole

    def start(self, rows: int, paused_seconds: Callable[[], float] = lambda: 0.0) -> None:
        """Start measuring time, with `rows` saved before.

        `paused_seconds` returns for how long the process has been stopped since.
        """
        self._paused_seconds = paused_seconds
        self._started = (monotonic(), rows)
        self.progress.exit_code = None
        if self._is_begun:
            self.log.begin()
        if self.record is not None:
            self._write_progress()

    def update_record(self) -> None:
        """Store the settings and metadata of this run, if it resumes another.

        Not before its input has been compared: a run that is refused, or killed before, leaves the
        output to the command that made it.
        """
        if self.record is not None and not self._is_recorded:
            self._is_recorded = True
            self.record = self.record.resumed_by(self._settings, self._metadata)
            self._write_record(self.record, replace=True)
            self._write_progress()

    def begin(self) -> None:
        """Write or update the run's record; called before the first row is saved.

        An output that is replaced is removed first: a process killed in between leaves no rows
        that could be taken for those of other settings.
        """
        if self._is_begun:
            self.update_record()
            return
        if self.overwrite:
            self._remove_old_run()
        record = RunRecord(
            self.run_id, self._settings, self._metadata, self.lists.prefix, now(), self.overwrite
        )
        self._is_begun = self._is_recorded = True
        if not self._write_record(record, replace=False):  # another part of the output was first
            self.record = read_record(self.output) or record
            self.run_id = self.record.run_id
            self.check_settings(self._settings, self._metadata)
        if self.overwrite and self.part:
            self._share()  # others may join from now on
        with wrap_write_errors(self.folder):
            fsync(self.folder.parent)  # an output without its state folder cannot be resumed
        self.log.begin()
        self.save_progress()

    def save_progress(self, *, durable: bool = False) -> None:
        """Write how far the run has come."""
        if self._started is None:
            self._started = (monotonic(), self.progress.rows)
        started, rows = self._started
        if self.progress.rows > rows:
            self.progress.seconds = round(monotonic() - started - self._paused_seconds(), 3)
            self.progress.added = self.progress.rows - rows
        self._write_progress(durable=durable)

    def _share(self) -> None:
        """Let other processes write their parts of the output. Raises OutputInUse."""
        self._share_lock()

    def _remove_killed(self) -> None:
        """Remove what killed processes left that wrote parts of the output."""
        remove_killed(self.folder)

    def _write_record(self, record: RunRecord, *, replace: bool) -> bool:
        return record.write(self.folder, replace=replace)

    def _write_progress(self, *, durable: bool = False) -> None:
        file = progress_file(self.folder, common_part(self.part))
        write_json(file, asdict(self.progress), durable=durable)

    def _resume(self) -> None:
        """Read the record and the progress of an earlier run, if there was one."""
        check_version(self.output)
        self.record = read_record(self.output)
        if self.record is not None:
            self.record = self.record.with_defaults(self.rules)
            self.progress = read_progress(self.folder, common_part(self.part))
            self.run_id, self.lists.prefix = self.record.run_id, self.record.files
            self._is_begun = True
        elif is_occupied(self.output):
            raise unknown_output(self.output)

    def _remove_old_run(self) -> None:
        """Remove the output that is replaced, and its state."""
        with wrap_write_errors(self.output):
            if self.output.is_symlink() and not self._keep_old:
                self.output.unlink()  # and not the files of the folder that it leads to
            elif self.output.is_dir():
                for file in self.output.glob("part-*.parquet"):
                    file.unlink()
            elif not self._keep_old:
                self.output.unlink(missing_ok=True)
            for file in self.folder.iterdir():
                if file.is_dir():
                    rmtree(file)
                elif not file.name.startswith((LOCK, OWNER, f"{self.lists.prefix}-")):
                    file.unlink()

    def _release(self) -> None:
        """Release the lock; a run that saved nothing removes the files that it created."""
        if not self._is_begun:
            self.lists.leave()
        self.lists.close()
        self._stack.close()
        if not self._is_begun:
            remove_locks(self.folder, self.lists.lock.name, part=self.part)
        elif common_part(self.part) != self.part:  # the next process has another name
            remove_locks(self.folder, self.lists.users_lock.name, part=self.part)
        self._remove_empty_folder()

    def _remove_empty_folder(self) -> None:
        with suppress(OSError):
            self.folder.rmdir()  # fails if it is not empty


def exit_code(problem: object) -> int:
    """The exit code of a command that the exception ends."""
    if isinstance(problem, PgcliError):
        return problem.exit_code
    signum = getattr(problem, "signum", None)  # of `Interrupted`
    return 1 if signum is None else 128 + int(signum)
