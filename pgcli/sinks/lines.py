"""Rows written as lines: to standard output or to a file, each whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from pgcli.records import Answer
from pgcli.state.write_errors import sync, writing


class Target(Protocol):
    """Where lines go."""

    def write(self, line: bytes) -> None: ...

    def close(self, *, complete: bool) -> None: ...


class LineSink:
    """Each answer is rendered and written at once: the reader of a pipe is not kept waiting."""

    def __init__(self, render: Callable[[Answer], str], target: Target):
        self.render = render
        self.target = target

    def save(self, answer: Answer) -> None:
        self.target.write(self.render(answer).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.target.close(complete=kind is None)


class StandardOutput:
    """The stream that the process was given; it is flushed by line and never closed."""

    def __init__(self, stream: BinaryIO):
        self.stream = stream

    def write(self, line: bytes) -> None:
        with writing("standard output"):
            self.stream.write(line)
            self.stream.flush()

    def close(self, *, complete: bool) -> None:
        pass


class LineFile:
    """A file made, or emptied, only when its first line comes: until then an old one is intact."""

    def __init__(self, path: Path, *, overwrite: bool):
        self.path = path
        self.mode = "w" if overwrite else "x"
        self.file: FileIO | None = None
        self.size = 0

    def write(self, line: bytes) -> None:
        with writing(self.path):
            self.append(line, self.opened())

    def append(self, line: bytes, file: FileIO) -> None:
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[file.write(rest) :]
        except BaseException:
            file.truncate(self.size)  # a disk that is full takes half a line: leave whole ones
            raise
        self.size += len(line)

    def opened(self) -> FileIO:
        if self.file is None:
            self.file = FileIO(self.path, self.mode)
        return self.file

    def close(self, *, complete: bool) -> None:
        """Have the lines on disk. A complete run of no rows leaves an empty file, as it should."""
        if self.file is None and not complete:
            return
        with writing(self.path), suppress(InterruptedError), self.opened():
            sync(self.path)
            sync(self.path.parent)
