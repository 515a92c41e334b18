"""Rows on standard output, or as text in a file: outputs that no later run resumes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pgcli.output.lines import json_line
from pgcli.output.text import text_lines
from pgcli.pipeline.output import RunOutput
from pgcli.pipeline.progress import events
from pgcli.pipeline.rows import row_schema
from pgcli.pipeline.state.folder import open_state
from pgcli.pipeline.state.open_files import RowFile, Segment
from pgcli.pipeline.state.processes import Process
from pgcli.pipeline.workers.engines import run_engines
from pgcli.pipeline.workers.slots import EngineSlot
from pgcli.records import Answer
from pgcli.rows import RowSchema
from pgcli.stores.writing import make_folder, wrap_write_errors

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest
    from pgcli.pipeline.run import Run

Save = Callable[[Answer], None]


def answer_to_stream(run: Run) -> None:
    """Answer all images, and write their rows to standard output or as text."""
    request, rows = run.request, run.rows
    schema = row_schema(request, rows.inventory.kept, exact=False)
    run.find_model()
    slots = run.model.slots(rows.total)
    with open_row_stream(request, schema, run.progress.show) as save:
        has_engines = len(slots) > 1 or request.model.engines
        if has_engines and rows.is_addressable:
            stream_from_engines(run, slots, save)
            return
        asked = (
            (first, item)
            for first, item in run.arriving()
            if not any(hook.skips(item) for hook in run.hooks)
        )
        run.answer(asked, nullcontext(lambda number, row: save(row)), images=rows.images)
    run.check_end_of_input()


def stream_from_engines(run: Run, slots: Sequence[EngineSlot], save: Save) -> None:
    """Answer on several engines, and write the rows in their order as chunks are complete.

    The engines share an output in a temporary folder.
    """
    with TemporaryDirectory(prefix="pgcli-") as folder:
        options = replace(
            run.request.output, output=f"{folder}/rows.jsonl", format="auto", overwrite=False
        )
        request = replace(run.request, output=options)
        state = open_state(request)
        process = Process(state.store, "run")
        with process.registered():
            output = run.output = RunOutput(state, request, run.rows, process)
            output.begin()
            written = 0

            def write(segment: Segment) -> None:
                """Write the rows of an open file, which follow on those before."""
                nonlocal written
                for row in output.files.rows(segment, written):
                    save(output.schema.answer(row))
                written = max(written, segment.end)
                output.files.remove([segment.name])

            with run.progress.answering():
                run_engines(run, slots, request, process, write, in_order=True)


@contextmanager
def open_row_stream(
    request: RunRequest, schema: RowSchema, on_event: events.OnEvent
) -> Iterator[Save]:
    """A block in which rows are written by what is yielded. Raises OutputFailed.

    Rows are text on a terminal and in a file, with their prompts where these differ, or else JSON
    lines.
    """
    output, templates = request.output, request.question.templates
    as_text = partial(text_lines, with_prompt=templates is None or len(templates) > 1)
    if output.output != "-":
        with text_file(Path(output.output), overwrite=output.overwrite) as write:
            yield lambda row: write(as_text(row).encode())
        return
    # above the progress display, where the program has one there
    above = getattr(on_event, "output", lambda: None)()
    stream = above or sys.stdout.buffer
    is_terminal = stream.isatty()
    is_text = output.format == "text" or (output.format == "auto" and is_terminal)

    def save(row: Answer) -> None:
        text = as_text(row) if is_text else json_line(row, schema, ascii_only=is_terminal)
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
                make_folder(path.parent)
                if overwrite and path.is_symlink():
                    path.unlink()  # and not the file that it leads to
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
