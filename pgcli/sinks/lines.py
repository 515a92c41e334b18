"""Rows written as lines to standard output or to a file that is not resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from pgcli.records import Answer
from pgcli.rows import RowSchema, json_text
from pgcli.state.record_file import RecordFile
from pgcli.state.write_errors import wrap_write_errors


def json_line(answer: Answer, schema: RowSchema, *, ascii_only: bool = False) -> str:
    """The row as compact JSON and a newline.

    `ascii_only` is for terminals: JSON itself does not escape DEL, C1 controls and direction marks.
    """
    return json_text(schema.row(answer), ascii_only=ascii_only) + "\n"


class LineWriter(Protocol):
    """Writes bytes that end in a newline."""

    def write(self, line: bytes) -> None: ...

    def close(self, *, complete: bool) -> None: ...


class LineSink:
    """Formats each answer and writes it immediately."""

    def __init__(self, format_answer: Callable[[Answer], str], writer: LineWriter):
        self._format, self._writer = format_answer, writer

    def save(self, answer: Answer) -> None:
        self._writer.write(self._format(answer).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._writer.close(complete=kind is None)


class StandardOutput:
    """The stream given to the process, flushed after each row and never closed."""

    def __init__(self, stream: BinaryIO):
        self._stream = stream

    def write(self, line: bytes) -> None:
        with wrap_write_errors("standard output"):
            self._stream.write(line)
            self._stream.flush()

    def close(self, *, complete: bool) -> None:
        pass


class TextFile:
    """A file created, or emptied, with its first line: until then an old file is intact."""

    def __init__(self, path: Path, *, overwrite: bool):
        self._path, self._overwrite = path, overwrite
        self._file: RecordFile | None = None

    def write(self, line: bytes) -> None:
        self._open().append(line)

    def close(self, *, complete: bool) -> None:
        """Flush the lines to disk. A complete run of no rows leaves an empty file."""
        if self._file is not None or complete:
            file = self._open()
            file.sync()
            file.close()

    def _open(self) -> RecordFile:
        if self._file is None:
            self._file = RecordFile(self._path, replace=self._overwrite)
        return self._file
