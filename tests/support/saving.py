"""Rows saved as a run saves them, without the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pgcli.records import Answer, Item
from pgcli.rows import RowSchema
from pgcli.sinks import check_place, format_of, open_record, open_sink
from pgcli.sinks.column_types import as_text_all
from pgcli.sinks.reader import placed_rows
from pgcli.state.run_state import State


class Saving:
    """Saves rows, each told of before as a run tells its ledger."""

    def __init__(self, sink: Any):
        self.sink, self.place = sink, sink.rows

    def save(self, answer: Answer) -> None:
        item = Item(answer.index, answer.id, answer.image, prompts=(answer.prompt,))
        assert self.sink.is_due(self.place, item, answer.prompt)
        self.place += 1
        self.sink.save(answer)


@contextmanager
def saving(
    path: Path | str,
    *,
    format: Any = "auto",
    overwrite: bool = False,
    settings: Mapping[str, object] | None = None,
    stdout: Any = None,
    **layout: Any,
) -> Iterator[Any]:
    """What saves rows in the output as a command has them saved; `layout` is that of the rows."""
    columns = RowSchema(**layout)
    written_as = "text" if str(path) == "-" else format_of(str(path), format)
    if written_as == "text":
        given = {"format": format, "overwrite": overwrite, "stdout": stdout}
        with open_sink(str(path), columns, **given) as sink:
            yield sink
        return
    output = Path(path)
    check_place(output, overwrite=overwrite, written_as=written_as)
    with State(output, overwrite=overwrite, stays=written_as == "parquet") as state:
        state.insist(settings or {})
        kinds = {"kinds": lambda: as_text_all(columns.keep)} if written_as == "folder" else {}
        with open_record(state, columns, written_as, settings=settings or {}, **kinds) as sink:
            for place, row in list(placed_rows(output)) if sink.rows else ():
                assert row is not None
                item = Item(row["index"], row["id"], row["image"])
                assert not sink.is_due(place, item, row["prompt"])
            yield Saving(sink)
