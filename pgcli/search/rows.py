"""The queries of a search as vectors, and its rows: hits of queries or members of groups."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from pgcli.checkpoints.find import builtin_models
from pgcli.errors import NoUsableDevice, UsageError
from pgcli.images import ImageDecoder
from pgcli.output.tables import SETTINGS, TableFormat
from pgcli.records import Item
from pgcli.rows import json_safe, json_text, round6
from pgcli.search.nearest import Hits, RowNumbers, Vectors, normalised
from pgcli.search.vector_files import VectorFiles
from pgcli.text import printable

if TYPE_CHECKING:
    from pgcli.towers.engine import EmbeddingEngine
    from pgcli.towers.maps import PageMaps


def embed_queries(
    engine: EmbeddingEngine,
    texts: Sequence[str],
    images: Sequence[str],
    width: int,
    *,
    raw_text: bool = False,
) -> Vectors:
    """The normalised vectors (Q, E) of the texts, then of the images.

    Raises UsageError for a model that embeds no queries, or vectors of another size than `width`,
    and for images that cannot be read.
    """
    if engine.kind in ("classifier", "multi_vector"):
        kind = "ColPali" if engine.kind == "multi_vector" else "an image classifier"
        raise UsageError(
            f"{engine.label} is {kind}, whose vectors cannot be compared with these",
            hint="name two towers: SigLIP, SigLIP 2 or CLIP; PaliGemma embeds images",
        )
    vectors = embed_images(engine, images)
    if texts:
        vectors = [*engine.encode_texts(texts, raw=raw_text), *vectors]
    queries = normalised(np.stack(vectors), "query")
    if queries.shape[1] != width:
        raise UsageError(
            f"{engine.label} makes vectors with {queries.shape[1]} dimensions, those to search "
            f"have {width}",
            hint="name the model that embedded them with <--model=>",
        )
    return queries


def embed_images(engine: EmbeddingEngine, images: Sequence[str]) -> list[Vectors]:
    """The vector of each image. Raises UsageError for one that cannot be read."""
    decoder = ImageDecoder(engine.spec)
    decoded = [decoder(Item(number, name, name, name)) for number, name in enumerate(images)]
    for image in decoded:
        if image.fault is not None:
            what = f"{image.item.id}: {image.fault.message}"
            raise UsageError(what, hint="--image takes an image file")
    vectors = []
    for _, encoded in engine.encode(iter(enumerate(decoded))):
        if encoded.vector is None:
            raise NoUsableDevice(
                "the device has no memory left for even one image", hint="name another <--device=>"
            )
        vectors.append(encoded.vector)
    return vectors


def model_of_rows(label: str) -> tuple[str, str | None]:
    """The name and the revision in the column `model`; a folder and the built-in model have none
    to choose from.
    """
    name, _, revision = label.rpartition("@")
    if not name or Path(label).expanduser().is_dir():
        return label, None
    return name, None if name in builtin_models() else revision


def adapter_of_rows(label: str) -> tuple[str, str]:
    """The model and the adapter in the column `model`; the adapter is empty if there is none."""
    if Path(label).expanduser().is_dir():
        return label, ""
    model, _, adapter = label.partition("+")
    return model, adapter


def are_different(label: str, rows_model: str) -> bool:
    """Whether two models are certainly different: the name of a folder does not say what it has."""
    return label != rows_model and all(
        "@" in name and not Path(name).is_dir() for name in (label, rows_model)
    )


Row = Mapping[str, Any]
NOTHING = "(nothing found)"
SIZE = ("width", "height", "largest")  # columns of rows of groups
KINDS = {
    **dict.fromkeys(("rank", "group", "width", "height"), pyarrow.int32()),
    **dict.fromkeys(("largest", "truncated"), pyarrow.bool_()),
    "similarity": pyarrow.float64(),
}


def hit_rows(
    queries: Sequence[str], hits: Hits, files: VectorFiles, truncated: Collection[str] = ()
) -> list[Row]:
    """A row for each hit: the query, the rank from 1, the row's names, and the similarity.

    `truncated` are the queries that exceed the model's input.
    """
    names = files.names({row for row in hits.rows.ravel().tolist() if row >= 0})
    return [
        {
            "query": query,
            "rank": rank,
            **names[row],
            "similarity": round6(similarity),
            "truncated": query in truncated,
        }
        for query, rows, similarities in zip(
            queries, *(values.tolist() for values in hits), strict=True
        )
        for rank, (row, similarity) in enumerate(zip(rows, similarities, strict=True), 1)
        if row >= 0
    ]


def group_rows(groups: Sequence[RowNumbers], files: VectorFiles) -> list[Row]:
    """A row for each member of a group of rows, the largest image first: the group from 1, what
    names the row, its size, and its similarity to the first row of the group.
    """
    members = np.sort(np.concatenate([np.zeros(0, np.int64), *groups]))
    if not len(members):
        return []
    names = files.names(members.tolist(), sizes=True)
    vectors = np.concatenate([vectors[np.isin(rows, members)] for rows, vectors in files])
    rows: list[Row] = []
    for number, group in enumerate(groups, 1):
        ordered = sorted(group.tolist(), key=lambda row: -pixel_count(names[row]))
        own = vectors[np.searchsorted(members, ordered)]
        similarities = own.astype(np.float64) @ own[0]
        similarities[0] = 1.0
        has_sizes = pixel_count(names[ordered[0]]) > 0
        for place, (row, similarity) in enumerate(zip(ordered, similarities.tolist(), strict=True)):
            width, height = names[row]["size"] or (None, None)
            largest = place == 0 if has_sizes and width else None
            size = {"width": width, "height": height, "largest": largest}
            own_row = {"group": number, **names[row], **size}
            rows.append(own_row | {"similarity": round6(similarity)})
    return rows


def pixel_count(named: Mapping[str, Any]) -> int:
    """The number of pixels of an image; 0 where its size is not known."""
    width, height = named["size"] or (0, 0)
    return int(width) * int(height)


def size_note(row: Row) -> str:
    """`640 x 480, the largest`, for a row of a group; empty where the size is not known."""
    if not row.get("width"):
        return ""
    return f"{row['width']} x {row['height']}" + ", the largest" * bool(row.get("largest"))


@dataclass(frozen=True)
class SearchRows:
    """The rows of a search; `queries` is empty for near-duplicates, `maps` are those of pages."""

    rows: Sequence[Row]
    settings: Mapping[str, object]
    queries: Sequence[str] = ()
    maps: PageMaps | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a file of the rows, in order; `text` if a row has one."""
        first = ("query", "rank") if self.queries else ("group",)
        text = ("text",) if any(row["text"] is not None for row in self.rows) else ()
        size = () if self.queries else SIZE
        last = ("truncated",) if self.queries else ()
        return (*first, "id", "image", *text, *size, "similarity", *last)

    def values(self) -> list[dict[str, Any]]:
        """The columns of each row."""
        return [{name: json_safe(row[name]) for name in self.columns} for row in self.rows]

    def json_lines(self, *, ascii_only: bool = False) -> Iterator[bytes]:
        """The rows as lines of JSON."""
        for row in self.values():
            yield f"{json_text(row, ascii_only=ascii_only)}\n".encode()

    def text_lines(self) -> Iterator[bytes]:
        """Lines for a person: each query, or each group, above its rows."""
        titles: dict[Any, list[Row]] = {query: [] for query in self.queries}
        for row in self.rows:
            titles.setdefault(row["query"] if self.queries else row["group"], []).append(row)
        for title, rows in titles.items():
            line = f"{title}:" if self.queries else f"group {title}: {len(rows):,} members"
            yield f"{printable(line)}\n".encode()
            for row in rows:
                name = row["id"] if row["text"] is None else row["text"]
                size = f"  {note}" if (note := size_note(row)) else ""
                yield f"  {row['similarity']:6.3f} {printable(name)}{size}\n".encode()
            if not rows:
                yield f"  {NOTHING}\n".encode()
        if not titles:
            yield f"{NOTHING}\n".encode()

    def write_table(self, file: Path, format: TableFormat) -> None:
        """Write the rows as a table, with the settings of the search in its metadata."""
        settings = json_safe({"command": "search", **self.settings})
        schema = pyarrow.schema(
            [(name, KINDS.get(name, pyarrow.string())) for name in self.columns]
        )
        table = pyarrow.Table.from_pylist(self.values(), schema)
        with file.open("wb") as stream:
            format.write_tables(stream, [table], {SETTINGS: json.dumps(settings).encode()})
