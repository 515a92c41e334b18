"""Standard input as a source: a path per line, NUL-separated paths, or a JSON object per line."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pgcli.errors import ManifestError, UsageError
from pgcli.records import Item
from pgcli.sources.image_location import ImageLocation, locate_anywhere
from pgcli.sources.kept_columns import ALL, KeptTypes, named_columns
from pgcli.sources.read_options import ReadOptions
from pgcli.sources.readers.lines import parse_object
from pgcli.sources.readers.reader import ManifestRow
from pgcli.sources.row_item import row_to_item
from pgcli.sources.source_part import RowSlice
from pgcli.sources.stdin_lines import stdin_lines


class StdinSource:
    """Standard input as a source: items are yielded as lines arrive, in one pass only."""

    name = "standard input"
    total: int | None = None
    has_excluded = False

    def __init__(self, options: ReadOptions):
        self.ignored: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        # whether the lines have prompts is known only as they arrive; missing ones are errors then
        self.has_prompts = options.requires_prompts
        if ALL in options.keep:
            raise UsageError(
                "--keep '*' needs to know the columns, which standard input names line by line",
                hint="name them: --keep a,b",
            )
        self._options = replace(options, kept=named_columns(options.keep))
        if sys.stdin is None:
            raise UsageError("standard input is closed", hint="name a folder, or pipe paths in")
        # the raw file: a buffered read waits for more than one line, and holds a lock that a
        # thread still waiting for input would keep at exit
        self._file = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)

    @property
    def kept(self) -> tuple[str, ...]:
        """The names that the kept columns have in the output."""
        return tuple(column.output for column in self._options.kept)

    def kept_types(self) -> KeptTypes:
        """No type is known: lines are not read before their rows are written."""
        return dict.fromkeys(self.kept)

    def rows(self, first: int, part: RowSlice) -> Iterator[Item]:
        """One item for each line or name, numbered from `first`; all of them, as they arrive."""
        index = first
        lines = stdin_lines(self._file, self.name, null_separated=self._options.null_separated)
        for number, line in enumerate(lines, 1):
            if line.strip():
                item = self._item(line, f"line {number}", index)
                if self._options.names.accepts(item.id):
                    yield item
                    index += 1

    def _item(self, line: bytes, position: str, index: int) -> Item:
        is_object = line.startswith(b"{") and not self._options.null_separated
        values = self._object(line, position) if is_object else None
        if values is None:
            self._check_path(position)
            location = self._locate(os.fsdecode(line))
            image = location.image
            return Item(index, image, image, location.path, fault=location.fault)
        self._check_object(values, position)
        try:
            row = ManifestRow(position, values)
            return row_to_item(row, index, self._options, locate=self._locate, manifest="-")
        except ManifestError as problem:
            raise ManifestError(f"{self.name}, {problem}", hint=problem.hint) from problem

    def _locate(self, path: str) -> ImageLocation:
        return locate_anywhere(path, allow_urls=self._options.url_reader is not None)

    def _object(self, line: bytes, position: str) -> dict[str, Any] | None:
        """The line's JSON object; None for a path that begins with a brace."""
        try:
            return parse_object(line)
        except ValueError as problem:
            if b"\0" not in line and os.path.lexists(line):
                return None
            raise ManifestError(f"{self.name}, {position}: {problem}") from problem

    def _check_object(self, values: dict[str, Any], position: str) -> None:
        """Raise an error for a prompt that is refused, and for a missing column."""
        options = self._options
        if options.refuses_prompts and values.get(options.prompt_column) is not None:
            message = f"{self.name}, {position}: the row has a prompt, and one is given for all"
            raise UsageError(message, hint="leave one of them out, or rename with --prompt-column")
        choices = () if options.choices_column is None else (options.choices_column,)
        kept = (column.source for column in options.kept)
        for name in (options.image_column, *kept, *options.fields, *choices):
            if name not in values:
                raise ManifestError(f"{self.name}, {position}: there is no {name!r}")

    def _check_path(self, position: str) -> None:
        """Raise an error if a path alone lacks what is needed."""
        options = self._options
        if options.requires_prompts:
            raise ManifestError(f"{self.name}, {position}: a path alone has no prompt")
        if options.keep or options.fields or options.choices_column is not None:
            message = f"{self.name}, {position}: a path alone has no columns"
            raise UsageError(message, hint="columns need a JSON object on each line")
