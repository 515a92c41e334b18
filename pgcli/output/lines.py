"""Rows as lines of JSON, written and read back, and as lines of text for a person."""

from __future__ import annotations

import json
import mmap
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from pgcli.errors import UsageError
from pgcli.records import BOX_TASKS, Answer, Box, TextScore
from pgcli.rows import RowSchema, has_vectors, json_text, safe_json_text
from pgcli.stores.files import open_regular
from pgcli.text import MAX_DEPTH, is_deep, json_object, printable

if TYPE_CHECKING:
    import pyarrow


#: The deepest nesting of a line: a manifest's values and the row around them.
MAX_LEVELS = 2 * MAX_DEPTH
#: The longest line: enough for a row with kept columns of 64 MiB as base64.
MAX_LINE_BYTES = 128 * 2**20
#: The bytes that Arrow parses at once; each line has to fit.
BLOCK_BYTES = 2**24
PAGE_LINES = "the vectors of a page are not written as JSON lines: they would take 1.3 MB a page"


def json_line(answer: Answer, schema: RowSchema, *, ascii_only: bool = False) -> str:
    """The row as compact JSON and a newline.

    `ascii_only` is for terminals: JSON itself does not escape DEL, C1 controls and direction marks.
    """
    return json_text(schema.row(answer), ascii_only=ascii_only) + "\n"


def parse_row(line: bytes) -> dict[str, Any] | None:
    """The row in a complete line; None for anything else."""
    return json_object(line, MAX_LEVELS) if line.endswith(b"\n") else None


def is_too_deep(line: bytes) -> bool:
    """Whether a line nests deeper than any row."""
    if line.count(b"[") + line.count(b"{") <= MAX_LEVELS:
        return False
    try:
        return is_deep(json.loads(line), MAX_LEVELS)
    except (ValueError, RecursionError) as problem:
        return isinstance(problem, RecursionError)


def read_lines(file: Path) -> Iterator[bytes]:
    """The file's lines with their newlines, which the last line may lack.

    Raises ValueError for a line that is too long for a row.
    """
    with open_regular(file) as stream:
        while line := stream.readline(MAX_LINE_BYTES + 1):
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(f"a line is longer than {MAX_LINE_BYTES >> 20} MiB")
            yield line


def read_rows(file: Path) -> Iterator[dict[str, Any]]:
    """The file's rows up to the first line that is not a row."""
    for line in read_lines(file):
        row = parse_row(line)
        if row is None:
            return
        yield row


class LineFormat:
    """Files of JSON lines; rows can be appended one by one."""

    def write(self, file: BinaryIO, rows: Iterable[Mapping[str, Any]], schema: RowSchema) -> int:
        """Write the rows of a result file; return the row count."""
        names, count = (*schema.columns, *schema.keep), 0
        for row in rows:
            if has_vectors(row.get("embedding")):
                raise UsageError(PAGE_LINES, hint="write a .parquet file")
            cells = {name: row.get(name) for name in names}
            values = {name: getattr(value, "json", value) for name, value in cells.items()}
            file.write(f"{safe_json_text(values)}\n".encode())
            count += 1
        return count

    def read(self, file: Path, *, exact: bool = False) -> Iterator[dict[str, Any] | None]:
        """The rows in order; None for a line that is not a row. Raises ValueError."""
        for number, line in enumerate(read_lines(file)):
            row = parse_row(line)
            if row is None and is_too_deep(line):
                raise ValueError(f"row {number + 1:,}: nested too deeply")
            yield row

    def batches(
        self, file: BinaryIO, columns: Sequence[str], rows: int
    ) -> Iterator[pyarrow.RecordBatch]:
        """The columns as Arrow reads them, in batches of BLOCK_BYTES; ignores `rows`.

        Ignores a truncated last row. Raises ValueError.
        """
        import pyarrow
        import pyarrow.json

        from pgcli.output.schema import line_type

        lines = _complete_lines(file)
        if len(lines):
            yield from pyarrow.json.open_json(
                pyarrow.BufferReader(lines),
                pyarrow.json.ReadOptions(block_size=BLOCK_BYTES),
                pyarrow.json.ParseOptions(
                    pyarrow.schema([(name, line_type(name)) for name in columns]),
                    unexpected_field_behavior="ignore",
                ),
            )

    def settings(self, file: Path) -> Mapping[str, Any]:
        """An empty mapping: lines have no metadata."""
        return {}


def _complete_lines(file: BinaryIO) -> pyarrow.Buffer:
    """The lines of a file, mapped into memory, without a truncated last one."""
    import pyarrow

    if not file.seek(0, 2):
        return pyarrow.py_buffer(b"")
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    end = mapped.rfind(b"\n") + 1
    if parse_row(mapped[end:] + b"\n") is not None:
        end = len(mapped)
    return pyarrow.py_buffer(mapped).slice(0, end)


LINES = LineFormat()


NOTHING = "(nothing found)"
BOX_TOKENS = re.compile(r"<(loc|seg)\d+>")
SHOWN_VALUES = 4  # of an embedding's values


def text_lines(answer: Answer, *, with_prompt: bool = False) -> str:
    """`id: answer` and a line for each box, choice, score or label, or `id: error code: message`.

    With `with_prompt`, `id, prompt: answer`. Answers are shown without box tokens; an answer
    without a complete box says so; an embedding shows its first values.
    """
    name = printable(answer.id)
    if with_prompt and answer.prompt:
        name += f", {printable(answer.prompt)}"
    if answer.error is not None:
        return f"{name}: error {answer.error}: {printable(answer.error_message or '')}\n"
    is_empty = answer.task in BOX_TASKS and not answer.boxes
    text = printable(answer.answer or "")
    if answer.boxes:
        text = " ".join(BOX_TOKENS.sub(" ", text).split())
    if is_empty:
        text = NOTHING
    if answer.embedding is not None and not isinstance(answer.embedding, str):
        text = embedding_text(answer.text, answer.embedding)
    first = f"{name}: {text}".rstrip()
    details = (
        *map(box_line, answer.boxes),
        *(f"  {c.probability:6.1%} {printable(c.text)}" for c in answer.choices or ()),
        *(f"  {s.probability:6.1%} {score_text(s)}" for s in answer.scores or ()),
        *(f"  {c.probability:6.1%} {printable(c.label)}" for c in answer.labels or ()),
    )
    return "".join(f"{line}\n" for line in (first, *details))


def box_line(box: Box) -> str:
    """A box in whole pixels, top left to bottom right, and its confidence with two digits."""
    corners = f"{box.xmin:.0f},{box.ymin:.0f} - {box.xmax:.0f},{box.ymax:.0f}"
    sure = "" if box.confidence is None else f" ({box.confidence:.2g})"
    return f"  {printable(box.label)} {corners}{sure}"


def score_text(score: TextScore) -> str:
    """A text with its cosine and score in brackets."""
    own = "" if score.score is None else f", score {score.score:.3g}"
    return f"{printable(score.text)} (cosine {score.cosine:.3f}{own})"


def embedding_text(text: str | None, values: array[float]) -> str:
    """The text of the embedding, if it is one of a text, and the first values."""
    shown = ", ".join(f"{value:.3f}" for value in values[:SHOWN_VALUES])
    more = f", ... ({len(values):,} values)" if len(values) > SHOWN_VALUES else ""
    return f"{'' if text is None else f'{printable(text)}: '}{shown}{more}"
