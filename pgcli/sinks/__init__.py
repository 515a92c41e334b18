"""Where rows go: standard output, JSON lines, text or Parquet, as the output's name says."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import BinaryIO, Literal, Protocol, Self

from pgcli.errors import OutputExists, OutputFailed, UsageError
from pgcli.records import Answer
from pgcli.sinks.jsonl import json_line
from pgcli.sinks.lines import LineFile, LineSink, StandardOutput
from pgcli.sinks.rows import Layout
from pgcli.sinks.text import text_lines
from pgcli.sinks.writing import exists, writing
from pgcli.state.folder import state_folder

Format = Literal["auto", "jsonl", "text"]

FORMATS = {".jsonl": "jsonl", ".parquet": "parquet"}
NO_SETTINGS: Mapping[str, object] = MappingProxyType({})


class Sink(Protocol):
    """Takes rows one by one; leaving its `with` block without an exception completes the output."""

    def save(self, answer: Answer) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def open_sink(
    output: str,
    *,
    format: Format = "auto",
    overwrite: bool = False,
    timing: bool = True,
    extras: tuple[str, ...] = (),
    keep: tuple[str, ...] = (),
    settings: Mapping[str, object] = NO_SETTINGS,
    stdout: BinaryIO | None = None,
) -> Sink:
    """The sink for `-o output`, all that can be refused about it refused here.

    Nothing is made or emptied before the first row is saved. `settings` is read when a Parquet
    file is completed, so that what is learned on the way can still be put in. Raises UsageError,
    OutputExists and OutputFailed; saving raises OutputFailed.
    """
    layout = Layout(timing=timing, extras=extras, keep=keep)
    if output == "-":
        return standard_sink(stdout or sys.stdout.buffer, format, layout)
    path, written_as = Path(output), format_of(output, format)
    check_place(path, overwrite=overwrite)
    if written_as == "text":
        return LineSink(text_lines, LineFile(path, overwrite=overwrite))
    if written_as == "jsonl":
        render = partial(json_line, layout=layout)
        return LineSink(render, LineFile(path, overwrite=overwrite))

    from pgcli.sinks.parquet import ParquetSink  # pyarrow is slow to import

    return ParquetSink(path, layout, overwrite=overwrite, settings=settings)


def standard_sink(stream: BinaryIO, format: Format, layout: Layout) -> Sink:
    """Text for a terminal and JSON lines for a pipe, unless a format is named."""
    terminal = stream.isatty()
    if format == "text" or (format == "auto" and terminal):
        return LineSink(text_lines, StandardOutput(stream))
    render = partial(json_line, layout=layout, ascii_only=terminal)
    return LineSink(render, StandardOutput(stream))


def format_of(output: str, format: Format) -> str:
    """How the file is written: as its ending says, or as `format` does where that says nothing."""
    if output.endswith("/") or not output:
        raise UsageError(
            f"cannot write a folder of Parquet parts ({output!r})",
            hint="there is no writer for folders yet; name one file: -o results.parquet",
        )
    meant = FORMATS.get(Path(output).suffix.lower())
    if format == "auto" and meant is None:
        raise UsageError(
            f"no format goes with the name {output}",
            hint="end it in .jsonl or .parquet, or add --format jsonl or --format text",
        )
    if format != "auto" and meant not in (None, format):
        raise UsageError(
            f"{output} is the name of a {meant} file, and --format says {format}",
            hint="leave out one of the two",
        )
    return meant or format


def check_place(path: Path, *, overwrite: bool) -> None:
    """Raise where `path` cannot become the output, or is one already and may not be replaced."""
    with writing(path):
        if not path.parent.is_dir():
            raise UsageError(
                f"there is no folder {path.parent}",
                hint=f"make it first: mkdir -p {shlex.quote(str(path.parent))}",
            )
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is no regular file", hint="name a file, or -o - and a pipe")
        if (path.exists() or path.is_symlink()) and not overwrite:
            raise exists(path)
        if state_folder(path).exists() and not overwrite:
            raise OutputExists(
                f"{state_folder(path)} belongs to a run that goes on or was killed",
                hint="if none goes on, --overwrite starts again; another -o leaves it alone",
            )
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OutputFailed(
                f"{path} may not be written", hint="mend its permissions, or choose another -o"
            )
