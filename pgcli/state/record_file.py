"""A file of lines that recovers to whole lines wherever its process was killed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcli.errors import OutputFailed
from pgcli.printable import MAX_DEPTH, is_deep
from pgcli.regular_file import open_regular
from pgcli.state.write_errors import close, fsync, is_named, wrap_write_errors

READ_BYTES = 4 * 2**20
#: Levels of nesting in a line: those of a manifest's values, and the row and journal entry around.
MAX_LEVELS = 2 * MAX_DEPTH


@dataclass(frozen=True, slots=True)
class Position:
    """The end of a whole line in a file, in bytes and in rows."""

    bytes: int = 0
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """The whole lines of a file that may end anywhere: those up to `end`.

    Lines before `parsed_from` were counted, the others parsed, and `errors` counts the error rows
    among them. `torn` bytes after `end` were moved to another file.
    """

    end: Position
    parsed_from: Position
    torn: int
    errors: Counter[str]


def recover(file: Path, known: Position, torn_file: Path) -> Recovered:
    """Truncate the file after its last whole row and append the bytes cut off to `torn_file`.

    Lines up to the `known` position are only counted; if the count differs, all lines are parsed.
    Raises OutputFailed.
    """
    with wrap_write_errors(file), file.open("r+b") as stream:
        size = os.fstat(stream.fileno()).st_size
        if not has_lines(stream.fileno(), known, size):
            known = Position()
        end, errors = known, Counter[str]()
        for line in read_lines(file, known.bytes):
            row = parse_row(line)
            if row is None:
                break
            if row.get("error") is not None:
                errors[str(row["error"])] += 1
            end = Position(end.bytes + len(line), end.rows + 1)
        if torn := size - end.bytes:
            append_bytes(stream.fileno(), end.bytes, size, torn_file)
            os.ftruncate(stream.fileno(), end.bytes)
            os.fsync(stream.fileno())
    return Recovered(end, known, torn, errors)


def has_lines(descriptor: int, position: Position, size: int) -> bool:
    """Whether the file has as many whole lines before the position as the position says."""
    if position.bytes > size:
        return False
    count, at, last = 0, 0, b"\n"
    while at < position.bytes:
        data = os.pread(descriptor, min(READ_BYTES, position.bytes - at), at)
        if not data:
            return False
        count, at, last = count + data.count(b"\n"), at + len(data), data[-1:]
    return count == position.rows and last == b"\n"


def has_whole_lines(file: Path, position: Position) -> bool:
    """Whether the file has as many whole lines before the position as the position says."""
    try:
        with open_regular(file) as stream:
            return has_lines(stream.fileno(), position, os.fstat(stream.fileno()).st_size)
    except FileNotFoundError:
        return False


def append_bytes(descriptor: int, start: int, end: int, target: Path) -> None:
    """Append a range of bytes of an open file to another file."""
    with wrap_write_errors(target), target.open("ab") as stream:
        while start < end and (data := os.pread(descriptor, min(READ_BYTES, end - start), start)):
            stream.write(data)
            start += len(data)


def read_lines(file: Path, start: int = 0) -> Iterator[bytes]:
    """The file's lines from a byte on, with their newlines, which the last line may lack."""
    with open_regular(file) as stream:
        if start <= os.fstat(stream.fileno()).st_size:
            stream.seek(start)
            yield from stream


def parse_row(line: bytes) -> dict[str, Any] | None:
    """The row in a whole line; None for anything else."""
    if not line.endswith(b"\n"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and not is_too_deep(line, row) else None


def is_too_deep(line: bytes, value: object = None) -> bool:
    """Whether a line nests deeper than any row; `value` is what it parses to, if known."""
    if line.count(b"[") + line.count(b"{") <= MAX_LEVELS:
        return False
    try:
        return is_deep(json.loads(line) if value is None else value, MAX_LEVELS)
    except (ValueError, RecursionError) as problem:
        return isinstance(problem, RecursionError)


def read_rows(file: Path, start: int = 0) -> Iterator[dict[str, Any]]:
    """The file's rows from a byte on, up to the first line that is not a row."""
    for line in read_lines(file, start):
        row = parse_row(line)
        if row is None:
            return
        yield row


class RecordFile:
    """Lines appended to a file, each completely or not at all."""

    def __init__(self, file: Path, end: Position | None = None, *, replace: bool = False):
        """Appends after `end`. Without it the file must not exist, or `replace` empties it."""
        self.file = file
        self.end = end or Position()
        creation = 0
        if end is None:
            creation = os.O_CREAT | (os.O_TRUNC if replace else os.O_EXCL)
        with wrap_write_errors(file):
            self._descriptor = os.open(file, os.O_RDWR | os.O_CLOEXEC | creation, 0o666)
        self._has_durable_name = False

    def append(self, line: bytes) -> None:
        """Write the line; on a full disk nothing of it remains. Raises OutputFailed."""
        with wrap_write_errors(self.file):
            self._write(line)
        self.end = Position(self.end.bytes + len(line), self.end.rows + 1)

    def _write(self, line: bytes) -> None:
        rest, at = memoryview(line), self.end.bytes
        try:
            while rest:
                written = os.pwrite(self._descriptor, rest, at)
                rest, at = rest[written:], at + written
        except BaseException:
            os.ftruncate(self._descriptor, self.end.bytes)
            raise

    def rename(self, file: Path) -> None:
        """Give the file another name, replacing the file that has it."""
        with wrap_write_errors(file):
            self.file.replace(file)
        self.file, self._has_durable_name = file, False

    def sync(self) -> Position:
        """Flush all lines to disk and return their end.

        A failed fsync is final: what is on disk is unknown. Raises OutputFailed, also if the file
        has been removed or replaced.
        """
        with wrap_write_errors(self.file):
            os.fsync(self._descriptor)
            if not self._has_durable_name:
                fsync(self.file.parent)
                self._has_durable_name = True
            is_moved = not is_named(self._descriptor, self.file)
        if is_moved:
            raise OutputFailed(
                f"{self.file} was removed or replaced during the run",
                hint="run the same command again, and leave the output alone while it runs",
            )
        return self.end

    def close(self) -> None:
        with wrap_write_errors(self.file):
            close(self._descriptor)
