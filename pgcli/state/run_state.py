"""What a run knows of itself, beside its output: made, gone on with, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from secrets import token_hex
from shutil import rmtree
from time import monotonic
from types import TracebackType
from typing import Any, Self

from filelock import FileLock

from pgcli.errors import OutputExists
from pgcli.state.atomic_file import got, put, put_new
from pgcli.state.lock import LOCK, OWNER, only_run
from pgcli.state.progress import Progress, progress_of
from pgcli.state.run_log import RunLog
from pgcli.state.settings import Settings, differences, fingerprint, others, plain
from pgcli.state.state_folder import state_folder
from pgcli.state.write_errors import sync, writing

RUN, PROGRESS, JOURNAL, TORN, LOG = "run.json", "progress", "waiting", "torn", "log"
RETRIED, FILES = "retried.jsonl", "files"
VERSION = 1


class State:
    """The folder beside an output while this process alone writes that, or its `part` of it.

    A context: within it no other run has the output. An output that is replaced is removed with the
    first row, or stays till it is replaced as a whole (`stays`). Raises OutputInUse, OutputExists
    where the output is not one that can be gone on with, and OutputFailed.
    """

    def __init__(
        self, output: Path, *, overwrite: bool = False, stays: bool = False, part: str = ""
    ):
        self.output = output
        self.folder = state_folder(output)
        self.overwrite = overwrite
        self.part = part
        self.progress = Progress()
        self.run = token_hex(8)
        self.diary = RunLog(self.folder / f"{LOG}{part}.txt")
        # the lists of what is replaced stay till it is
        self._files = f"{FILES}-{self.run}" if overwrite else FILES
        self.record: Mapping[str, Any] | None = None
        self._stays = stays
        self._settings: Settings = {}
        self._told: Mapping[str, Any] = {}
        self._is_begun = False
        self._since: tuple[float, int] | None = None
        self._paused: Callable[[], float] = lambda: 0.0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with writing(self.folder):
            self.folder.mkdir(exist_ok=True)
        try:
            self._stack.enter_context(only_run(self.folder, part=self.part))
        except BaseException:
            self._leave_if_empty()  # what is in it is the other run's
            raise
        try:
            if not self.overwrite:
                self._find()
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.diary.note("ended" if kind is None else f"ended by {kind.__name__}: {problem}")
        self._leave()

    def _leave(self) -> None:
        """Let others have the output; of a run that began nothing no trace stays."""
        if not self._is_begun:
            with suppress(OSError):
                if not self.part:
                    self._forget_lists()
                    (self.folder / f"{LOCK}-{FILES}").unlink(missing_ok=True)
                (self.folder / f"{LOCK}{self.part}").unlink(missing_ok=True)
        self._stack.close()
        self._leave_if_empty()

    def _leave_if_empty(self) -> None:
        with suppress(OSError):
            self.folder.rmdir()  # which it does only where nothing is in it

    @property
    def is_old(self) -> bool:
        """Whether the run goes on with what one before it began."""
        return self.record is not None

    @property
    def replaces(self) -> bool:
        """Whether what is there under the output's name, if it is not this run's, may go."""
        return self.overwrite or bool(self.record and self.record.get("replaces"))

    def insist(self, settings: Settings, told: Mapping[str, Any] | None = None) -> None:
        """Have the run be one of these settings; `told` is what rows do not depend on.

        May be called again as more becomes known. Raises OutputExists where the output was begun
        with others.
        """
        self._settings, self._told = settings, told or {}
        if self.record is not None:
            known = self.record.get("settings", {})
            if differing := differences(known, settings):
                raise others(self.output, differing)

    @contextmanager
    def lists(self) -> Iterator[Callable[[int], Path]]:
        """A block in which this process alone writes the lists of the input's files, by number."""
        lock = FileLock(self.folder / f"{LOCK}-{FILES}", is_singleton=False)
        with writing(self.folder), lock:
            if self.record is None and not self.part:
                self._forget_lists()
            yield partial(files_listed, self.folder, {"files": self._files})

    def start(self, total: int | None, paused: Callable[[], float] = lambda: 0.0) -> None:
        """Count the time from now, and the rows to so many; None where nobody knows how many.

        `paused` tells the seconds since then in which the process was stopped.
        """
        self._paused = paused
        self._since = (monotonic(), self.progress.rows)
        self.progress.total = total
        if self._is_begun:
            self.diary.begin()
        if self.record is not None:
            self.record = {**self.record, "told": plain(self._told)}
            put(self.folder / RUN, self.record)

    def begin(self) -> None:
        """Write down what this run is, if none was begun: its first row is about to be saved.

        What is replaced goes first: were the process killed amid it, no rows would be taken for
        those of other settings.
        """
        if self._is_begun:
            return
        if self.overwrite:
            self._clear()
        record = {
            "version": VERSION,
            "run": self.run,
            "fingerprint": fingerprint(self._settings),
            "settings": plain(self._settings),
            "told": plain(self._told),
            "replaces": self.overwrite,
            "files": self._files,
            "begun": datetime.now().astimezone().isoformat(timespec="seconds"),
        }
        self._is_begun = True
        if not put_new(self.folder / RUN, record):  # another part of the output was sooner
            self.record = record_in(self.folder) or record
            self.run = str(self.record["run"])
            self.insist(self._settings, self._told)
        with writing(self.folder):
            sync(self.folder.parent)  # an output without what it is made of is not gone on with
        self.diary.begin()
        self.tell()

    def tell(self, *, lasting: bool = False) -> None:
        """Write down how far the run came."""
        if self._since is None:
            self._since = (monotonic(), self.progress.rows)
        began, rows = self._since
        self.progress.seconds = round(monotonic() - began - self._paused(), 3)
        self.progress.added = self.progress.rows - rows
        file = self.folder / f"{PROGRESS}{self.part}.json"
        put(file, asdict(self.progress), lasting=lasting)

    def _find(self) -> None:
        """Find what a run before this one began."""
        self.record = record_in(self.folder)
        if self.record is not None:
            told = got(self.folder / f"{PROGRESS}{self.part}.json")
            self.progress = progress_of(told or {})
            self.run, self._files = str(self.record["run"]), str(self.record["files"])
            self._is_begun = True
        elif self.output.exists() and not is_empty_folder(self.output):
            raise OutputExists(
                f"{self.output} exists, and nothing beside it says how to go on with it: "
                f"{why_unknown(self.folder)}",
                hint="--overwrite replaces it; another -o leaves it alone",
            )

    def _clear(self) -> None:
        """Remove what is replaced, and all that was known of it."""
        with writing(self.output):
            if self.output.is_dir():
                for file in self.output.glob("part-*.parquet"):
                    file.unlink()
            elif not self._stays:
                self.output.unlink(missing_ok=True)
            for file in self.folder.iterdir():
                if file.is_dir():
                    rmtree(file)
                elif not file.name.startswith((LOCK, OWNER, f"{self._files}-")):
                    file.unlink()

    def _forget_lists(self) -> None:
        for file in self.folder.glob(f"{self._files}-*"):
            file.unlink(missing_ok=True)


def files_listed(folder: Path, record: Mapping[str, Any], number: int) -> Path:
    """What the names of the lists of an input's part begin with, by the run's record."""
    return folder / f"{record['files']}-{number}"


def is_empty_folder(path: Path) -> bool:
    return path.is_dir() and next(path.iterdir(), None) is None


def is_begun(output: Path) -> bool:
    """Whether a run beside the output can be gone on with."""
    return record_in(state_folder(output)) is not None


def record_in(folder: Path) -> dict[str, Any] | None:
    """What a run wrote down of itself; None where there is none, or what is no such record."""
    record = got(folder / RUN) or {}
    kinds = {"run": str, "files": str, "begun": str, "settings": dict, "told": dict}
    given = {"begun": "", "told": {}} | record
    is_whole = all(isinstance(given.get(name), kind) for name, kind in kinds.items())
    return record if is_whole and not {"/", "\0"} & set(record["files"]) else None


def why_unknown(folder: Path) -> str:
    """What stands in the way where `record_in` finds none."""
    file = folder / RUN
    return f"{file} is no record of a run" if file.exists() else f"there is no {file}"
