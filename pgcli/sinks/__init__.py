"""Where rows go: standard output, JSON lines, text or Parquet, as the output's name says."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol, Self

from pgcli.errors import OutputFailed, UsageError
from pgcli.records import Answer, Item
from pgcli.rows import RowSchema
from pgcli.sinks.jsonl import JsonLines, json_line
from pgcli.sinks.lines import LineFile, LineSink, StandardOutput
from pgcli.sinks.text import text_lines
from pgcli.state.run_state import RUN, State, is_begun, is_empty_folder, record_in, why_unknown
from pgcli.state.shard import Shard
from pgcli.state.state_folder import state_folder
from pgcli.state.write_errors import exists, writing

if TYPE_CHECKING:
    from pgcli.sinks.column_types import Kinds

Format = Literal["auto", "jsonl", "text"]
Written = Literal["jsonl", "parquet", "folder", "text"]

FORMATS: Mapping[str, Written] = {".jsonl": "jsonl", ".parquet": "parquet"}


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


class Record(Sink, Protocol):
    """A sink that is the record of what is done, and thus the ledger of its run.

    `torn` bytes were cut off where a run before this one was killed, and put aside.
    """

    @property
    def torn(self) -> int: ...

    @property
    def rows(self) -> int:
        """How many rows are saved."""

    @property
    def errors(self) -> Counter[str]:
        """The error rows among those saved, by their codes."""

    def is_due(self, place: int, item: Item, prompt: str) -> bool: ...

    def is_known(self, place: int) -> bool: ...

    def row(self, place: int) -> Answer: ...

    def wait(self, place: int, answer: Answer) -> None: ...


def open_sink(
    output: str,
    layout: RowSchema,
    *,
    format: Format = "auto",
    overwrite: bool = False,
    stdout: BinaryIO | None = None,
    above: Callable[[Answer], str] | None = None,
) -> Sink:
    """The sink for an output that no run goes on with, all that can be refused refused here.

    On a terminal `above` is what stands before a row's text.

    Nothing is made or emptied before the first row is saved. Raises UsageError, OutputExists and
    OutputFailed; saving raises OutputFailed.
    """
    if output == "-":
        return standard_sink(stdout or sys.stdout.buffer, format, layout, above)
    check_place(Path(output), overwrite=overwrite)
    return LineSink(text_lines, LineFile(Path(output), overwrite=overwrite))


def open_record(
    state: State,
    layout: RowSchema,
    written_as: Written,
    *,
    settings: Mapping[str, object],
    shard: Shard | None = None,
    kinds: Callable[[], Kinds] = dict,
    retry: bool = False,
) -> Record:
    """The sink for an output that is the record of what is done, gone on with where it is there.

    `settings` go into Parquet files, and are read when one is complete. `kinds` are the types of
    the kept columns in a folder of them. With `retry` rows with errors are made again.
    """
    if written_as == "jsonl":
        return JsonLines(state, layout, retry=retry)

    from pgcli.sinks.chunked_sink import ChunkedSink  # pyarrow is slow to import
    from pgcli.sinks.parquet_folder import Folder
    from pgcli.sinks.single_parquet import SingleParquet

    if written_as == "parquet":
        return ChunkedSink(state, layout, SingleParquet(state, layout, settings), retry=retry)
    shelf = Folder(state, layout, settings, kinds())
    is_ours = shard.has if shard else always
    return ChunkedSink(state, layout, shelf, is_ours=is_ours, retry=retry)


def always(chunk: int) -> bool:
    return True


def standard_sink(
    stream: BinaryIO,
    format: Format,
    layout: RowSchema,
    above: Callable[[Answer], str] | None = None,
) -> Sink:
    """Text for a terminal and JSON lines for a pipe, unless a format is named."""
    terminal = stream.isatty()
    if format == "text" or (format == "auto" and terminal):
        target = StandardOutput(stream)
        if above is None:
            return LineSink(text_lines, target)
        return LineSink(lambda answer: above(answer) + text_lines(answer), target)
    render = partial(json_line, layout=layout, ascii_only=terminal)
    return LineSink(render, StandardOutput(stream))


def format_of(output: str, format: Format) -> Written:
    """How the output is written: as its name ends, or as `format` does where that says nothing."""
    meant = "folder" if output.endswith("/") else FORMATS.get(Path(output).suffix.lower())
    if not output or (format == "auto" and meant is None):
        raise UsageError(
            f"no format goes with the name {output!r}",
            hint="end it in .jsonl or .parquet, or in / for a folder of Parquet files; or add "
            "--format jsonl or --format text",
        )
    if format != "auto" and meant not in (None, format):
        raise UsageError(
            f"{output} is the name of a {meant}{' file' * (meant != 'folder')}, and --format says "
            f"{format}",
            hint="leave out one of the two",
        )
    return meant or ("text" if format == "text" else "jsonl")


def check_place(path: Path, *, overwrite: bool, written_as: Written = "text") -> None:
    """Raise where `path` cannot become the output, or is one already and may not be replaced.

    What a run can go on with may be there.
    """
    may_exist = overwrite or (written_as != "text" and is_begun(path))
    with writing(path):
        if not path.parent.is_dir():
            raise UsageError(
                f"there is no folder {path.parent}",
                hint=f"make it first: mkdir -p {shlex.quote(str(path.parent))}",
            )
        if path.exists() and not (path.is_dir() if written_as == "folder" else path.is_file()):
            wanted = "folder" if written_as == "folder" else "regular file"
            raise UsageError(f"{path} is no {wanted}", hint="name another, or -o - and a pipe")
        is_there = path.is_symlink() or (path.exists() and not is_empty_folder(path))
        if is_there and not may_exist:
            raise exists(path, odd_record(path))
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise OutputFailed(
                f"{path} may not be written", hint="mend its permissions, or choose another -o"
            )


def odd_record(output: Path) -> str:
    """A clause about a record beside the output that is none; empty without one."""
    folder = state_folder(output)
    is_odd = (folder / RUN).exists() and record_in(folder) is None
    return f", and {why_unknown(folder)}" if is_odd else ""
