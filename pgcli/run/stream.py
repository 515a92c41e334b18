"""Rows on standard output, or as text in a file: outputs that no later run resumes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli.output.lines import json_line
from pgcli.output.text import text_lines
from pgcli.records import Answer
from pgcli.rows import RowSchema
from pgcli.run.progress import events
from pgcli.run.state.open_files import OpenFiles, RowFile, Segment
from pgcli.stores.writing import wrap_write_errors

if TYPE_CHECKING:
    from pgcli.run.request.options import OutputOptions

Save = Callable[[Answer], None]


@contextmanager
def open_row_stream(
    output: OutputOptions, schema: RowSchema, on_event: events.OnEvent
) -> Iterator[Save]:
    """A block in which rows are written by what is yielded. Raises OutputFailed.

    Rows are text on a terminal and in a file, or else JSON lines.
    """
    if output.output != "-":
        with text_file(Path(output.output), overwrite=output.overwrite) as write:
            yield lambda row: write(text_lines(row).encode())
        return
    # above the progress display, where the program has one there
    above = getattr(on_event, "output", lambda: None)()
    stream = above or sys.stdout.buffer
    is_terminal = stream.isatty()
    is_text = output.format == "text" or (output.format == "auto" and is_terminal)

    def save(row: Answer) -> None:
        text = text_lines(row) if is_text else json_line(row, schema, ascii_only=is_terminal)
        with wrap_write_errors("standard output"):
            stream.write(text.encode())
            stream.flush()

    yield save


@contextmanager
def text_file(path: Path, *, overwrite: bool) -> Iterator[Callable[[bytes], None]]:
    """A block in which texts are appended to a file, which is created or emptied by the first.

    Without any the file is empty, unless the block raises.
    """
    file: RowFile | None = None

    def write(data: bytes) -> None:
        nonlocal file
        if file is None:
            with wrap_write_errors(path):
                if overwrite and path.is_symlink():
                    path.unlink()  # and not the file that it leads to
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                flags |= os.O_TRUNC if overwrite else os.O_EXCL
                file = RowFile(os.open(path, flags, 0o666), str(path))
        file.append(data)

    try:
        yield write
        write(b"")
    finally:
        if file is not None:
            file.close()


class StreamedRows:
    """Rows that several engines have computed, written to a stream."""

    def __init__(self, save: Save, files: OpenFiles, schema: RowSchema):
        self._save, self._files, self._schema = save, files, schema
        self._rows = 0

    def take(self, segment: Segment) -> None:
        """Write the rows of an open file, which follow on those before. Raises OutputFailed."""
        for row in self._files.rows(segment, self._rows):
            self._save(self._schema.answer(row))
        self._rows = max(self._rows, segment.end)
        self._files.remove([segment.name])
