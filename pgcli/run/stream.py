"""Rows on standard output or as text in a file: outputs that cannot be resumed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pgcli.output.lines import parse_row
from pgcli.output.text import text_lines
from pgcli.rows import RowSchema, json_text
from pgcli.run.output import SaveLine
from pgcli.run.progress import events
from pgcli.run.state.lines import RowFile
from pgcli.stores.writing import make_folder, wrap_write_errors

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest


@contextmanager
def open_row_stream(
    request: RunRequest, schema: RowSchema, on_event: events.OnEvent
) -> Iterator[SaveLine]:
    """Yield what writes rows. Raises OutputFailed.

    Rows are text on a terminal and in a file, with their prompts if these differ; otherwise they
    are JSON lines.
    """
    output, templates = request.output, request.question.templates
    with_prompt = templates is None or len(templates) > 1

    def as_text(line: bytes) -> bytes:
        return text_lines(schema.answer(parse_row(line) or {}), with_prompt=with_prompt).encode()

    if output.output != "-":
        with text_file(Path(output.output), overwrite=output.overwrite) as write:
            yield lambda number, line: write(as_text(line))
        return
    # above the progress display, if there is one
    above = getattr(on_event, "output", lambda: None)()
    stream = above or sys.stdout.buffer
    is_terminal = stream.isatty()
    is_text = output.format == "text" or (output.format == "auto" and is_terminal)

    def save(number: int, line: bytes) -> None:
        if is_text:
            line = as_text(line)
        elif is_terminal:
            line = f"{json_text(parse_row(line), ascii_only=True)}\n".encode()
        with wrap_write_errors("standard output"):
            stream.write(line)
            stream.flush()

    yield save


@contextmanager
def text_file(path: Path, *, overwrite: bool) -> Iterator[Callable[[bytes], None]]:
    """Yield what appends text to a file; the first text creates or truncates the file.

    Without any text the file is empty, unless the block raises.
    """
    file: RowFile | None = None

    def write(data: bytes) -> None:
        nonlocal file
        if file is None:
            with wrap_write_errors(path):
                make_folder(path.parent)
                if overwrite and path.is_symlink():
                    path.unlink()  # keep the file that the link points to
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                flags |= os.O_TRUNC if overwrite else os.O_EXCL
                file = RowFile(os.open(path, flags, 0o666), path)
        file.append(data)

    try:
        yield write
        write(b"")
    finally:
        if file is not None:
            file.close()
