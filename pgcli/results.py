"""Answers kept together: a sequence that tables are made of and that a notebook shows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from pgcli.records import COLUMNS, EXTRA_COLUMNS, Answer
from pgcli.rows import RowSchema, fill_columns

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from pgcli.sinks.reader import Row


def read(path: str | os.PathLike[str]) -> Results:
    """The answers of any result file: JSON lines, Parquet, a folder of it, finished or not.

    Raises UsageError for what holds anything else.
    """
    from pgcli.sinks.reader import read_results

    return Results(answer_of(row) for row in read_results(Path(path)))


def answer_of(row: Row) -> Answer:
    """The answer that a row was made of, its columns beyond the contract's as kept ones.

    What another tool left out of the contract's is None.

    Raises UsageError for a row that is none.
    """
    from pgcli.errors import UsageError

    extras = tuple(name for name in EXTRA_COLUMNS if name in row)
    keep = tuple(name for name in row if name not in (*COLUMNS, *EXTRA_COLUMNS))
    try:
        return RowSchema(extras=extras, keep=keep).answer(fill_columns(row))
    except ValueError as problem:
        raise UsageError(
            f"the row of {row.get('id')!r} is no answer: {problem}",
            hint="name a file as caption, ask, detect, segment or ocr wrote it",
        ) from problem


class Results(Sequence[Answer]):
    """Answers in their order, of any iterable: `Results(engine.caption("photos"))`.

    A slice is Results too. Tables have the columns that files have. All answers are in memory.
    """

    def __init__(self, answers: Iterable[Answer]):
        self._answers = list(answers)

    @property
    def errors(self) -> Results:
        """Those of pictures that could not be answered."""
        return Results(answer for answer in self if answer.error is not None)

    def to_arrow(self) -> pyarrow.Table:
        """A table of pyarrow's, of the types that Parquet files have."""
        from pgcli.sinks.schema import make_table

        layout = self._layout()
        return make_table([layout.row(answer) for answer in self], layout)

    def to_pandas(self) -> pandas.DataFrame:
        """A frame of pandas'. Raises ImportError, naming the remedy, where pandas is not there."""
        library("pandas")
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """A frame of polars'. Raises ImportError, naming the remedy, where polars is not there."""
        frame: polars.DataFrame = library("polars").from_arrow(self.to_arrow())
        return frame

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, place: int) -> Answer: ...
    @overload
    def __getitem__(self, place: slice) -> Results: ...
    def __getitem__(self, place: int | slice) -> Answer | Results:
        if isinstance(place, slice):
            return Results(self._answers[place])
        return self._answers[place]

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._answers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Results) and self._answers == other._answers

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        errors = len(self.errors)
        return f"<Results: {len(self):,} answers{f', {errors:,} of them errors' if errors else ''}>"

    def _repr_html_(self) -> str:
        from pgcli.sources.paths import parse_path
        from pgcli.views.notebook import page

        return page(self, parse_path)

    def _layout(self) -> RowSchema:
        """The columns that any of the answers has."""
        extras = [name for name in EXTRA_COLUMNS if any(getattr(a, name) is not None for a in self)]
        return RowSchema(
            extras=tuple(extras),
            keep=tuple(dict.fromkeys(name for answer in self for name in answer.kept)),
        )


def library(name: str) -> Any:
    """The library, which pgcli does not bring. Raises ImportError with the command that does."""
    try:
        return import_module(name)
    except ImportError as problem:
        message = f"{name} is not installed: pip install {name}"
        raise ImportError(message, name=name) from problem
