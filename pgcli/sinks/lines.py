"""Rows written as lines to standard output or to a file that is not resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Self

from pgcli.records import Answer
from pgcli.rows import RowSchema, json_text
from pgcli.sinks.text import text_lines
from pgcli.state.record_file import RecordFile
from pgcli.state.write_errors import wrap_write_errors


def json_line(answer: Answer, schema: RowSchema, *, ascii_only: bool = False) -> str:
    """The row as compact JSON and a newline.

    `ascii_only` is for terminals: JSON itself does not escape DEL, C1 controls and direction marks.
    """
    return json_text(schema.row(answer), ascii_only=ascii_only) + "\n"


class StreamSink:
    """Writes each row to a stream, such as standard output, and flushes it. Never closes it."""

    def __init__(self, stream: BinaryIO, format_answer: Callable[[Answer], str]):
        self._stream, self._format = stream, format_answer

    def save(self, answer: Answer) -> None:
        with wrap_write_errors("standard output"):
            self._stream.write(self._format(answer).encode())
            self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        pass


class TextSink:
    """Writes rows as text to a file, created or emptied with the first row."""

    def __init__(self, path: Path, *, overwrite: bool):
        self._path, self._overwrite = path, overwrite
        self._file: RecordFile | None = None

    def save(self, answer: Answer) -> None:
        self._open().append(text_lines(answer).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        """Flush the file to disk. A complete run of no rows leaves an empty file."""
        if self._file is not None or kind is None:
            file = self._open()
            file.sync()
            file.close()

    def _open(self) -> RecordFile:
        if self._file is None:
            if self._overwrite and self._path.is_symlink():
                with wrap_write_errors(self._path):
                    self._path.unlink()  # and not the file that it leads to
            self._file = RecordFile(self._path, replace=self._overwrite)
        return self._file
