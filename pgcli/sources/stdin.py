"""Standard input: a path per line, NUL-separated paths, or a JSON object per line."""

from __future__ import annotations

import codecs
import os
import select
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pgcli.errors import ManifestError, UsageError
from pgcli.records import Item
from pgcli.sources.items import item
from pgcli.sources.paths import ImageLocation, locate_anywhere
from pgcli.sources.readers.lines import LONGEST_LINE, TOO_LONG, parsed
from pgcli.sources.readers.reader import ManifestRow
from pgcli.sources.source_options import ReadOptions

_CHUNK = 64 * 2**10


class StdinSource:
    """Standard input as a source: items flow as lines come, so they can be gone through once."""

    name = "standard input"
    total: int | None = None

    def __init__(self, reading: ReadOptions):
        self.ignored: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        # whether lines will bring prompts shows only as they come; their absence is an error then
        self.has_prompts = reading.requires_prompts
        self._reading = reading
        if sys.stdin is None:
            raise UsageError("standard input is closed", hint="name a folder, or pipe paths in")
        # below the buffer: a buffered read waits for more than one line, and holds a lock that a
        # thread still waiting for input would keep at exit
        self._file = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)

    def items(self, first: int) -> Iterator[Item]:
        """One item for each line or name that comes, numbered from `first`."""
        index = first
        for number, line in enumerate(self._lines(), 1):
            if line.strip():
                yield self._item(line, number, index)
                index += 1

    def _item(self, line: bytes, number: int, index: int) -> Item:
        reading = self._reading
        place = f"line {number}"
        values = (
            None
            if reading.null_separated or not line.startswith(b"{")
            else self._object(line, place)
        )
        if values is None:
            self._check_plain(place)
            placed = self._place(os.fsdecode(line))
            return Item(index, placed.image, placed.image, placed.path, fault=placed.fault)
        if reading.refuses_prompts and values.get(reading.prompt_column) is not None:
            message = f"{self.name}, {place}: the row brings a prompt, and one is given for all"
            raise UsageError(message, hint="leave one of them out, or rename with --prompt-column")
        choices = () if reading.choices_column is None else (reading.choices_column,)
        for name in (reading.image_column, *reading.keep, *reading.fields, *choices):
            if name not in values:
                raise ManifestError(f"{self.name}, {place}: there is no {name!r}")
        try:
            row = ManifestRow(place, values)
            return item(row, index, reading, place=self._place, holder="-")
        except ManifestError as problem:
            raise ManifestError(f"{self.name}, {problem}", hint=problem.hint) from problem

    def _place(self, path: str) -> ImageLocation:
        return locate_anywhere(path, allow_urls=self._reading.url_reader is not None)

    def _object(self, line: bytes, place: str) -> dict[str, Any] | None:
        """The line's JSON object; None for a path that begins with a brace."""
        try:
            return parsed(line)
        except ValueError as problem:
            if b"\0" not in line and os.path.lexists(line):
                return None
            raise ManifestError(f"{self.name}, {place}: {problem}") from problem

    def _check_plain(self, place: str) -> None:
        reading = self._reading
        if reading.requires_prompts:
            raise ManifestError(f"{self.name}, {place}: a path alone brings no prompt")
        if reading.keep or reading.fields or reading.choices_column is not None:
            message = f"{self.name}, {place}: a path alone has no columns"
            raise UsageError(message, hint="columns need a JSON object on each line")

    def _lines(self) -> Iterator[bytes]:
        """The lines or names as they come, without their ends and a byte order mark."""
        separator = b"\0" if self._reading.null_separated else b"\n"
        begun: list[bytes] = []
        first = True
        for chunk in self._chunks():
            *lines, rest = chunk.split(separator)
            for line in lines:
                yield self._line(b"".join([*begun, line]), first)
                begun, first = [], False
            begun.append(rest)
            if sum(map(len, begun)) > LONGEST_LINE:
                raise ManifestError(f"{self.name}: a line {TOO_LONG}")
        yield self._line(b"".join(begun), first)

    def _line(self, line: bytes, first: bool) -> bytes:
        line = line.removeprefix(codecs.BOM_UTF8) if first else line
        return line if self._reading.null_separated else line.removesuffix(b"\r")

    def _chunks(self) -> Iterator[bytes]:
        while (chunk := self._file.read(_CHUNK)) != b"":
            if chunk is None:  # someone made the pipe non-blocking and it is empty
                select.select([self._file], [], [])
            else:
                yield chunk
