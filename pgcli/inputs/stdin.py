"""Standard input as a source: a path or a JSON object per line, NUL-separated names, an image."""

from __future__ import annotations

import codecs
import os
import re
import select
import sys
from collections.abc import Iterator
from itertools import chain
from typing import Any

from pgcli.errors import ManifestError, UsageError
from pgcli.inputs.file_table import BYTES, LINE, FileRecord
from pgcli.inputs.lines import MAX_LINE_BYTES, TOO_LONG, parse_object
from pgcli.inputs.options import ALL, SOURCE, ReadOptions, named_columns
from pgcli.inputs.paths import ImageLocation, locate_anywhere
from pgcli.inputs.readers import ManifestRow
from pgcli.inputs.rows import row_to_item
from pgcli.records import MAX_IMAGE_BYTES, Fault, Item

NAME = "standard input"
CHUNK_BYTES = 64 * 2**10
#: The first bytes of images: no path and no line of JSON begins so, and holds what follows.
IMAGE_BYTES = re.compile(
    rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP|BM....\0\0\0\0|II\*\0|MM\0\*"
    rb"|....ftyp(?:avif|avis|mif1)|P[1-6]\s(?:#.*\n)*\s*\d+\s+\d+\s",
    re.DOTALL,
)
_TOO_LARGE = Fault("too_large", f"The image is larger than {MAX_IMAGE_BYTES} bytes.")


class Stdin:
    """Standard input: its lines, or the bytes of an image, and the items that they are."""

    def __init__(self, options: ReadOptions):
        self._options = options
        self._kept = named_columns(options.keep)
        self._ids: dict[int, str] = {}  # hashes of the ids so far, with their positions

    def read(self, source: int) -> Iterator[FileRecord]:
        """A record for each line that is not blank, as they arrive, or one for the image.

        Raises ManifestError for a line that is too long.
        """
        # the raw file: a buffered read waits for more than one line, and holds a lock that a
        # thread still waiting for input would keep at exit
        chunks = read_chunks(getattr(sys.stdin.buffer, "raw", sys.stdin.buffer))
        first = next(chunks, b"")
        while 0 < len(first) < 32 and b"\n" not in first and (more := next(chunks, b"")):
            first += more
        if not self._options.null_separated and IMAGE_BYTES.match(first):
            size, pieces = 0, []
            for piece in chain([first], chunks):
                size += len(piece)
                pieces.append(piece if size <= MAX_IMAGE_BYTES else b"")
            data = b"" if size > MAX_IMAGE_BYTES else b"".join(pieces)
            yield FileRecord(source, 0, BYTES, data)
            return
        separator = b"\0" if self._options.null_separated else b"\n"
        lines = split_lines(chain([first], chunks), separator)
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield FileRecord(source, 0, LINE, line, numbers=(number,))

    def item(self, record: FileRecord, index: int) -> Item:
        """The item of a line, or of the image. Raises ManifestError and UsageError."""
        options = self._options
        if record.kind == BYTES:
            self._check_path("an image")
            fault = None if record.name else _TOO_LARGE
            kept = {column.output: "-" for column in self._kept}
            return Item(index, str(index), "-", None, record.name or None, kept=kept, fault=fault)
        position, line = f"line {(record.numbers or (0,))[0]}", record.name
        is_object = line.startswith(b"{") and not options.null_separated
        values = self._object(line, position) if is_object else None
        if values is None:
            self._check_path(position)
            location = self._locate(os.fsdecode(line))
            image = location.image
            kept = {column.output: image for column in self._kept}
            return Item(index, image, image, location.path, kept=kept, fault=location.fault)
        self._check_object(values, position)
        row = ManifestRow(position, {SOURCE: f"{NAME}, {position}", **values})
        try:
            item = row_to_item(
                row, index, options, locate=self._locate, manifest="-", kept=self._kept
            )
        except ManifestError as problem:
            raise ManifestError(f"{NAME}, {problem}", hint=problem.hint) from problem
        if options.id_column in values and not options.repeats_ids:
            earlier = self._ids.setdefault(hash(item.id), position)
            if earlier != position:
                raise ManifestError(
                    f"{NAME} gives the id {item.id!r} twice: {earlier} and {position}",
                    hint="ids name rows; --id-column selects another column",
                )
        return item

    def _locate(self, path: str) -> ImageLocation:
        return locate_anywhere(path, allow_urls=self._options.url_reader is not None)

    def _object(self, line: bytes, position: str) -> dict[str, Any] | None:
        """The line's JSON object; None for a path that begins with a brace."""
        try:
            return parse_object(line)
        except ValueError as problem:
            if b"\0" not in line and os.path.lexists(line):
                return None
            raise ManifestError(f"{NAME}, {position}: {problem}") from problem

    def _check_object(self, values: dict[str, Any], position: str) -> None:
        """Raise an error for a prompt or a region that is refused, and for a missing column."""
        options = self._options
        if options.refuses_prompts and values.get(options.prompt_column) is not None:
            message = f"{NAME}, {position}: the row has a prompt, and one is given for all"
            raise UsageError(message, hint="leave one of them out, or rename with --prompt-column")
        names = [options.image_column, *(column.source for column in self._kept), *options.fields]
        names += [options.prompt_column] if options.requires_prompts else []
        names += [options.choices_column] if options.choices_column is not None else []
        for name in names:
            if name not in values and name != SOURCE:
                raise ManifestError(f"{NAME}, {position}: there is no {name!r}")

    def _check_path(self, position: str) -> None:
        """Raise an error if a path alone, or an image, lacks what is needed."""
        options = self._options
        if options.requires_prompts:
            raise ManifestError(f"{NAME}, {position}: a path alone has no prompt")
        named = {column.source for column in self._kept}.union(options.fields) - {SOURCE}
        if named or options.choices_column is not None:
            message = f"{NAME}, {position}: a path alone has no columns"
            raise UsageError(message, hint="columns need a JSON object on each line")


def check_stdin(options: ReadOptions) -> None:
    """Raise UsageError if standard input is closed, or cannot have what the options ask for."""
    if ALL in options.keep:
        raise UsageError(
            "--keep '*' needs to know the columns, which standard input names line by line",
            hint="name them: --keep a,b",
        )
    if sys.stdin is None:
        raise UsageError("standard input is closed", hint="name a folder, or pipe paths in")


def read_chunks(file: Any) -> Iterator[bytes]:
    """What arrives at a raw file, as it arrives."""
    while (chunk := file.read(CHUNK_BYTES)) != b"":
        if chunk is None:  # the pipe is non-blocking and empty
            select.select([file], [], [])
        else:
            yield chunk


def split_lines(chunks: Iterator[bytes], separator: bytes) -> Iterator[bytes]:
    """The lines, or the names that end in NUL, without line ends and byte order mark."""
    line_end = b"\r" if separator == b"\n" else b""
    mark = codecs.BOM_UTF8  # of the first line only
    begun: list[bytes] = []
    for chunk in chunks:
        *lines, rest = chunk.split(separator)
        for line in lines:
            yield b"".join([*begun, line]).removeprefix(mark).removesuffix(line_end)
            begun, mark = [], b""
        begun.append(rest)
        if sum(map(len, begun)) > MAX_LINE_BYTES:
            raise ManifestError(f"{NAME}: a line {TOO_LONG}")
    yield b"".join(begun).removeprefix(mark).removesuffix(line_end)
