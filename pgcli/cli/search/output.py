"""The rows of a search, and where they are written: standard output, JSON lines or Parquet."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pgcli.cli.ui.console import Screen, is_terminal
from pgcli.errors import UsageError
from pgcli.output import FormatOption, output_format
from pgcli.printable import printable
from pgcli.results.gallery.hits import hit_row
from pgcli.results.publish import publish
from pgcli.rows import json_safe, json_text, round6
from pgcli.search.search_files import Hit
from pgcli.stores.writing import check_target, wrap_write_errors
from pgcli.wording import count

NOTHING = "(nothing found)"


@dataclass(frozen=True)
class Rows:
    """The hits of each query, or the members of each group, and the settings of the search.

    `names` are the queries, or the numbers of the groups. `has_texts` adds the column `text`.
    """

    by: Literal["query", "group"]
    names: Sequence[str]
    hits: Sequence[Sequence[Hit]]
    settings: Mapping[str, object] = field(default_factory=dict)
    has_texts: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of every row, in order."""
        first = ("query", "rank") if self.by == "query" else ("group",)
        return (*first, "id", "image", *(("text",) if self.has_texts else ()), "similarity")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number, (name, hits) in enumerate(zip(self.names, self.hits, strict=True), start=1):
            for rank, hit in enumerate(hits, start=1):
                values = {
                    "query": name,
                    "group": number,
                    "rank": rank,
                    "id": hit.name.id,
                    "image": hit.name.image,
                    "text": hit.name.text,
                    "similarity": round6(hit.similarity),
                }
                yield {column: json_safe(values[column]) for column in self.columns}

    def page_rows(
        self, vectors: Sequence[str], images: Sequence[str]
    ) -> Iterator[Mapping[str, Any]]:
        """The rows as a page shows them, each with its file of `vectors` and its index there.

        An image that is a query is a row, too, before its hits.
        """
        hits = [hit for hits in self.hits for hit in hits]
        queries = {name: str(Path(name).absolute()) for name in images}
        last = None
        for row, hit in zip(self, hits, strict=True):
            if self.by == "query" and row["query"] != last and row["query"] in queries:
                path = queries[row["query"]]
                query = {"id": row["query"], "image": path, "text": "the query", "similarity": 1.0}
                yield hit_row({**row, **query, "rank": 0, "vectors": vectors[0]})
            last = row.get("query")
            yield hit_row({**row, "index": hit.name.index, "vectors": vectors[hit.name.file]})

    def text(self) -> Iterator[str]:
        """Lines for a person: each query or group, and what was found below it."""
        if not self.hits:
            yield NOTHING
        for name, hits in zip(self.names, self.hits, strict=True):
            is_group = self.by == "group"
            yield printable(f"group {name}: {len(hits):,} members" if is_group else f"{name}:")
            for hit in hits:
                found = hit.name.id if hit.name.text is None else hit.name.text
                yield f"  {hit.similarity:6.3f} {printable(found)}"
            if not hits:
                yield f"  {NOTHING}"

    def summary(self, vectors: int) -> str:
        """One line on what was found."""
        count = sum(map(len, self.hits))
        if self.by == "query":
            queries = f"{len(self.hits):,} quer{'ies' if len(self.hits) != 1 else 'y'}"
            return f"{count:,} hit{'s' * (count != 1)} of {queries} among {vectors:,} vectors"
        groups = f"{len(self.hits):,} group{'s' * (len(self.hits) != 1)} of near-duplicates"
        return f"{groups} with {count:,} of {vectors:,} vectors"


def check_output(output: str, format: FormatOption, *, overwrite: bool) -> None:
    """Raise UsageError, OutputExists or OutputFailed where rows cannot be written."""
    if output == "-":
        return
    if output_format(output, format) == "folder":
        raise UsageError(f"{output} is the name of a folder", hint="name a .jsonl or .parquet file")
    check_target(Path(output), "-o", is_folder=False, overwrite=overwrite)


def write_rows(
    output: str, format: FormatOption, rows: Rows, *, overwrite: bool, screen: Screen
) -> None:
    """Write the rows; a file appears as a whole. Raises OutputExists and OutputFailed."""
    if output == "-":
        is_text = format == "text" or (format == "auto" and is_terminal(sys.stdout))
        with wrap_write_errors("standard output"):
            for line in lines(rows, is_text=is_text):
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        return
    kind = output_format(output, format)
    with publish(Path(output), is_folder=False, overwrite=overwrite) as part:
        if kind == "parquet":
            write_parquet(part, rows)
        else:
            with part.open("wb") as file:
                file.writelines(lines(rows, is_text=kind == "text"))
    screen.info(f"{output}: {count(sum(map(len, rows.hits)), 'row')}")


def lines(rows: Rows, *, is_text: bool) -> Iterator[bytes]:
    """The rows as lines of text, or of JSON: in ASCII on a terminal, which some of it controls."""
    if is_text:
        yield from (f"{line}\n".encode() for line in rows.text())
        return
    ascii_only = is_terminal(sys.stdout)
    yield from (f"{json_text(row, ascii_only=ascii_only)}\n".encode() for row in rows)


def write_parquet(file: Path, rows: Rows) -> None:
    """Write the rows as Parquet, with the settings of the search in the metadata."""
    import pyarrow
    from pyarrow import parquet

    from pgcli.output.parquet import SETTINGS

    kinds = {"rank": pyarrow.int32(), "group": pyarrow.int32(), "similarity": pyarrow.float64()}
    schema = pyarrow.schema(
        [(name, kinds.get(name, pyarrow.string())) for name in rows.columns],
        metadata={SETTINGS: json.dumps(json_safe(dict(rows.settings))).encode()},
    )
    parquet.write_table(pyarrow.Table.from_pylist([*rows], schema), file, compression="zstd")
