"""Claims of chunks: who is free takes the next chunk that no other process computes."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path

from pgcli.state.atomic_file import write_json
from pgcli.state.file_lock import file_lock
from pgcli.state.lock import current_process
from pgcli.state.owners import Owner, owners, remove_killed
from pgcli.state.state_folder import LOCK, OWNER
from pgcli.state.write_errors import wrap_write_errors

CLAIMS = "claims"
CHUNKS = "chunks"  # the key of the owner's record that lists its claims


class Claims:
    """The chunks of an output that this process computes, among all that share the output.

    A claim is in the owner's record of its process and ends with it: chunks of a process that was
    killed are free again, at once on the same host, and on another one when it has given no sign of
    life for `owners.SILENT_SECONDS`. Should two processes still compute one chunk, the first one
    that is complete stays. `is_stored` says whether a chunk is complete.
    """

    def __init__(
        self, folder: Path, part: str, numbers: Iterable[int], is_stored: Callable[[int], bool]
    ):
        self._folder, self._part, self._is_stored = folder, part, is_stored
        self._left = dict.fromkeys(numbers)
        self._own: dict[int, None] = {}
        self._owner = current_process()

    @property
    def left(self) -> int:
        """The number of chunks that are not known to be complete."""
        return len(self._left)

    @property
    def is_alone(self) -> bool:
        """Whether no other process writes the output."""
        return not any(owner.is_running for owner in self._others())

    def claim(self, count: int = 1, *, spare: int = 0) -> list[int]:
        """The next chunks that nobody has, `count` at most; none if there are no more than `spare`
        for each process. Raises OutputFailed."""
        with self._locked():
            others = [owner for owner in self._others() if owner.is_running]
            taken = {number for owner in others for number in owner.process.get(CHUNKS) or ()}
            taken.update(self._own)
            if spare and len(self._left) - len(taken) <= spare * (len(others) + 1):
                return []
            with closing(self._free(taken)) as free:
                found = list(islice(free, count))
            if found:
                self._own.update(dict.fromkeys(found))
                self._write()
            return found

    def done(self, number: int) -> None:
        """Note that a claimed chunk is complete."""
        self._left.pop(number, None)
        self._own.pop(number)

    def remove_killed(self) -> None:
        """Remove what processes that were killed left, once all chunks are complete."""
        remove_killed(self._folder)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """A block in which no other process claims chunks."""
        with wrap_write_errors(self._folder), file_lock(self._folder / f"{LOCK}-{CLAIMS}"):
            yield

    def _others(self) -> Iterator[Owner]:
        """The other processes, and those that were killed."""
        return (owner for owner in owners(self._folder) if owner.part != self._part)

    def _free(self, taken: set[int]) -> Generator[int, None, None]:
        """The chunks that are neither taken nor complete, in their order."""
        stored = []
        try:
            for number in self._left:
                # what is stored may still be claimed: it is in the record until the next claim
                if number not in self._own and self._is_stored(number):
                    stored.append(number)
                elif number not in taken:
                    yield number
        finally:
            for number in stored:
                del self._left[number]

    def _write(self) -> None:
        values = {**self._owner, CHUNKS: list(self._own)}
        write_json(self._folder / f"{OWNER}{self._part}.json", values, durable=False)
