"""The answers of a call, as an iterator."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Self

from pgcli.errors import naming_keywords
from pgcli.records import Answer, Task

#: Answers that were not read to their end. They are closed before the interpreter ends: after that,
#: what closes them is gone, and Python would print tracebacks.
UNFINISHED: weakref.WeakSet[AnswerIterator] = weakref.WeakSet()


class AnswerIterator(Iterator[Answer]):
    """The answers of a call, each computed when it is taken."""

    def __init__(self, answers: Generator[Answer, None, None], task: Task):
        self._answers, self._task = answers, task
        UNFINISHED.add(self)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Answer:
        with naming_keywords():
            return next(self._answers)

    def close(self) -> None:
        """Stop the computation of further answers."""
        self._answers.close()

    def __repr__(self) -> str:
        return (
            f"<generator of {self._task} answers: loop over it, or collect them with "
            "pgcli.Results(...)>"
        )


@atexit.register
def close_unfinished() -> None:
    """Close the unfinished iterators of answers, except those that another thread is reading."""
    for answers in [*UNFINISHED]:
        with suppress(ValueError):
            answers.close()
