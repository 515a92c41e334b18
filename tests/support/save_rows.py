"""Rows saved as a run saves them, without the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgcli.records import Answer, Item
from pgcli.rows import RowSchema
from pgcli.sinks import open_resumable, open_stream, output_format
from pgcli.sinks.column_types import string_types
from pgcli.sinks.reader import indexed_rows
from pgcli.state.destination import check_destination, check_resumable
from pgcli.state.run_state import RunState


class RowSaver:
    """Saves rows, each announced to the resume log first, as a run does."""

    def __init__(self, sink: Any):
        self.sink, self.next_row = sink, sink.rows

    def save(self, answer: Answer) -> None:
        item = Item(answer.index, answer.id, answer.image, prompts=(answer.prompt,))
        assert self.sink.is_missing(self.next_row, item, answer.prompt)
        self.next_row += 1
        self.sink.save(answer)


@contextmanager
def saving(
    path: Path | str,
    *,
    format: Any = "auto",
    overwrite: bool = False,
    settings: Mapping[str, object] | None = None,
    stdout: Any = None,
    **schema: Any,
) -> Iterator[Any]:
    """Saves rows in the output as a command does; `schema` holds arguments of the RowSchema."""
    columns = RowSchema(**schema)
    output_kind = "text" if str(path) == "-" else output_format(str(path), format)
    if output_kind == "text":
        given = {"format": format, "overwrite": overwrite, "stdout": stdout}
        if str(path) != "-":
            check_destination(Path(path), overwrite=overwrite)
        with open_stream(str(path), columns, **given) as sink:
            yield sink
        return
    output = Path(path)
    check_resumable(
        output,
        settings or {},
        kind="folder" if output_kind == "folder" else "file",
        overwrite=overwrite,
    )
    with RunState(output, overwrite=overwrite, keep_old=output_kind == "parquet") as state:
        state.check_settings(settings or {})
        kinds = {"types": lambda: string_types(columns.keep)} if output_kind == "folder" else {}
        with open_resumable(state, columns, output_kind, settings=settings or {}, **kinds) as sink:
            for row_index, row in list(indexed_rows(output)) if sink.rows else ():
                assert row is not None
                item = Item(row["index"], row["id"], row["image"])
                assert not sink.is_missing(row_index, item, row["prompt"])
            yield RowSaver(sink)
