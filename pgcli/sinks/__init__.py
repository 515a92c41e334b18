"""Where rows are written: standard output, JSON Lines, text or Parquet."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Protocol, Self

from pgcli.errors import UsageError
from pgcli.records import Answer
from pgcli.rows import RowSchema
from pgcli.sinks.chunk_store import ChunkStore
from pgcli.sinks.jsonl import JsonlFile
from pgcli.sinks.lines import StreamSink, TextSink, json_line
from pgcli.sinks.resumable import ResumableSink
from pgcli.sinks.text import text_lines
from pgcli.state.run_state import RunState
from pgcli.state.shard import Shard
from pgcli.state.stored_run import StoredRunState

if TYPE_CHECKING:
    from pgcli.sinks.column_types import ColumnTypes
    from pgcli.sinks.parquet_folder import ParquetFolder

FormatOption = Literal["auto", "jsonl", "text"]
OutputFormat = Literal["jsonl", "parquet", "folder", "text"]

#: The commands that make files of these endings from rows.
EXPORTED = {
    ".csv": ("export", "rows.jsonl", "--to", "csv"),
    ".json": ("export", "rows.jsonl", "--to", "coco"),
    ".html": ("view", "rows.jsonl"),
}
ENDINGS: Mapping[str, OutputFormat] = {".jsonl": "jsonl", ".parquet": "parquet"}


class Sink(Protocol):
    """Takes rows one by one; leaving its `with` block without an exception completes the output."""

    def save(self, answer: Answer) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: object, problem: object, trace: object) -> None: ...


def output_format(output: str, option: FormatOption) -> OutputFormat:
    """The format that the output's name or the `--format` option chooses. Raises UsageError."""
    by_name = "folder" if output.endswith("/") else ENDINGS.get(Path(output).suffix.lower())
    if not output or (option == "auto" and by_name is None):
        to = EXPORTED.get(Path(output).suffix.lower())
        raise UsageError(
            f"the name {output!r} does not choose a format",
            hint="end it in .jsonl or .parquet, or in / for a folder of Parquet files"
            + (
                f"; of rows in rows.jsonl, `pgcli {shlex.join([*to, '-o', output])}` makes it"
                if to
                else "; or add --format jsonl or --format text"
            ),
        )
    if option != "auto" and by_name not in (None, option):
        kind = "folder" if by_name == "folder" else f"{by_name} file"
        raise UsageError(
            f"{output} is the name of a {kind}, and --format says {option}",
            hint="leave out one of the two",
        )
    return by_name or ("text" if option == "text" else "jsonl")


def open_stream(
    output: str,
    schema: RowSchema,
    *,
    format: FormatOption = "auto",
    overwrite: bool = False,
    stdout: BinaryIO | None = None,
    header: Callable[[Answer], str] | None = None,
) -> Sink:
    """The sink of an output that is not resumed: standard output, or text in a file.

    Standard output is text on a terminal and JSON Lines on a pipe, unless `format` says otherwise;
    on a terminal `header` is written before the text of each row. A file is created or emptied
    with the first row. Saving raises OutputFailed.
    """
    if output != "-":
        return TextSink(Path(output), overwrite=overwrite)
    stream = stdout or sys.stdout.buffer
    is_terminal = stream.isatty()
    if format != "text" and not (format == "auto" and is_terminal):
        return StreamSink(stream, partial(json_line, schema=schema, ascii_only=is_terminal))
    if header is None:
        return StreamSink(stream, text_lines)
    return StreamSink(stream, lambda answer: header(answer) + text_lines(answer))


def open_folder(
    state: RunState,
    schema: RowSchema,
    settings: Mapping[str, object],
    types: ColumnTypes,
    **options: Any,
) -> ParquetFolder:
    """The chunks of a folder of Parquet files, on a file system or in an object store."""
    from pgcli.sinks.parquet_folder import ParquetFolder  # pyarrow is slow to import
    from pgcli.sinks.stored_folder import StoredFolder

    if isinstance(state, StoredRunState):
        options.pop("retry", None)
        return StoredFolder(state, schema, settings, types, **options)
    return ParquetFolder(state, schema, settings, types, **options)


def open_resumable(
    state: RunState,
    schema: RowSchema,
    format: OutputFormat,
    *,
    settings: Mapping[str, object],
    shard: Shard | None = None,
    types: Callable[[], ColumnTypes] = dict,
    retry: bool = False,
    retries_earlier: bool = False,
) -> ResumableSink:
    """The sink of an output that is resumed if it exists; it is the `ResumeLog` of its run.

    `settings` are stored in Parquet files and read when one is complete. `types` returns the types
    of kept columns in Parquet; a single file infers those that are not known. With `retry` error
    rows are made again; with `retries_earlier`, those of an output to which prompts are added.
    """
    store: ChunkStore
    known = {} if format == "jsonl" else types()
    schema = replace(schema, exact=format != "jsonl")
    if format == "jsonl":
        store = JsonlFile(state, retry=retry)
    elif format == "parquet":
        from pgcli.sinks.single_parquet import SingleParquet  # pyarrow is slow to import

        store = SingleParquet(state, schema, settings, known, retry=retry)
    else:
        owns = {"owns_chunk": shard.has} if shard else {}
        store = open_folder(state, schema, settings, known, retry=retry, **owns)
    return ResumableSink(state, schema, store, retry=retry, retries_earlier=retries_earlier)
