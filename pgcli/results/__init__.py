"""Saved rows and everything that is made from them; `Results` is a sequence of answers.

`check` compares rows with their input, `merge` and `edits` make new result files, `exports` writes
them for other tools, and `gallery` as a page. While a run goes on, its `hooks` write drawings and
texts. `image_locator` finds the images of rows, `overlay` draws on them, and `pages` has the shell
of all pages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from pgcli.records import Answer
from pgcli.rows import RowSchema, base_of, schema_of_answers
from pgcli.text import count, printable

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

    from pgcli.output.reader import Row

MAX_SHOWN = 20  # answers that a notebook shows
MAX_CHARACTERS = 400  # of each text there


def read(path: str | os.PathLike[str]) -> Results:
    """The answers of a result file: JSON lines, Parquet, or a folder of Parquet files.

    The run that writes it may still be in progress. Raises UsageError for any other file.
    """
    from pgcli.output.reader import read_results

    return Results(answer_of(row) for row in read_results(Path(path)))


def answer_of(row: Row) -> Answer:
    """The answer of a row; columns that another tool dropped are None, and its own in `kept`.

    Raises UsageError for an invalid row.
    """
    from pgcli.errors import UsageError

    try:
        return RowSchema.of(row).answer({**dict.fromkeys(base_of(row)), **row})
    except ValueError as problem:
        raise UsageError(
            f"the row of {row.get('id')!r} is not an answer: {problem}",
            hint="name a file that an answering command wrote",
        ) from problem


class Results(Sequence[Answer]):
    """A sequence of answers, made of any iterable: `Results(engine.caption("photos"))`.

    A slice is Results too. Tables have the columns of result files. All answers are in memory.
    """

    def __init__(self, answers: Iterable[Answer]):
        self._answers = list(answers)

    @property
    def errors(self) -> Results:
        """The answers that have an error."""
        return self.filter(lambda answer: answer.error is not None)

    def filter(self, condition: Callable[[Answer], bool]) -> Results:
        """The answers for which the condition holds."""
        return Results(filter(condition, self))

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write a result file, .jsonl or .parquet, which every command on results reads.

        The file appears as a whole. Raises UsageError, OutputExists and OutputFailed.
        """
        from pgcli.output import result_target, write_result_file

        target = result_target(os.fspath(path), overwrite=overwrite)
        write_result_file(target, self.to_dicts(), schema_of_answers(self))

    def to_dicts(self) -> list[dict[str, Any]]:
        """The rows as in a result file: a dict of every column for each answer."""
        schema = schema_of_answers(self)
        return [schema.row(answer) for answer in self]

    def to_arrow(self) -> pyarrow.Table:
        """A pyarrow table with the types of Parquet files."""
        from pgcli.output.schema import rows_table

        return rows_table(self.to_dicts(), schema_of_answers(self))

    def to_pandas(self) -> pandas.DataFrame:
        """A pandas DataFrame. Raises ImportError with the command that installs pandas."""
        library("pandas")
        frame: pandas.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_polars(self) -> polars.DataFrame:
        """A polars DataFrame. Raises ImportError with the command that installs polars."""
        frame: polars.DataFrame = library("polars").from_arrow(self.to_arrow())
        return frame

    def __len__(self) -> int:
        return len(self._answers)

    @overload
    def __getitem__(self, index: int) -> Answer: ...
    @overload
    def __getitem__(self, index: slice) -> Results: ...
    def __getitem__(self, index: int | slice) -> Answer | Results:
        if isinstance(index, slice):
            return Results(self._answers[index])
        return self._answers[index]

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._answers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Results) and self._answers == other._answers

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        errors = len(self.errors)
        return f"<Results: {count(len(self), 'answer')}{f', {errors:,} failed' if errors else ''}>"

    def _repr_html_(self) -> str:
        def cells(answer: Answer) -> Iterator[str]:
            text = ", ".join(box.label for box in answer.boxes) or answer.answer or ""
            for value in (answer.id, answer.prompt, answer.error or text):
                yield f"<td>{escape(printable(value[:MAX_CHARACTERS]))}</td>"

        rows = "".join(f"<tr>{''.join(cells(answer))}</tr>" for answer in self[:MAX_SHOWN])
        more = f"<p>and {len(self) - MAX_SHOWN:,} more</p>" if len(self) > MAX_SHOWN else ""
        return f"<p>{count(len(self), 'answer')}</p><table><tbody>{rows}</tbody></table>{more}"


def library(name: str) -> Any:
    """The library, which pgcli does not install. Raises ImportError with the command that does."""
    try:
        return import_module(name)
    except ImportError as problem:
        message = f"{name} is not installed: pip install {name}"
        raise ImportError(message, name=name) from problem
