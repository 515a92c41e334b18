"""A faiss index next to a file of vectors: built once, and read without reading the vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pgcli.errors import OutputFailed, UsageError
from pgcli.search.components import Components
from pgcli.search.nearest import Rows, Vectors, check_sizes
from pgcli.search.search_files import Hit, OnRows, find_members, ignore
from pgcli.search.vector_files import VectorFiles, VectorStats
from pgcli.stores.files import read_json
from pgcli.stores.writing import published, write_json

VERSION = 1
#: Fewer vectors than this are compared exactly: there is nothing to gain by clusters.
MIN_CLUSTERED = 20_000
#: Vectors that the centre of a cluster is computed from, and the share of clusters searched.
ROWS_PER_CLUSTER, SEARCHED_SHARE, MIN_SEARCHED = 64, 1 / 16, 16
#: Rows whose neighbours are searched at once.
NEIGHBOURS_AT_ONCE = 256
#: The most by which faiss rounds a similarity.
ROUNDING = 1e-5


@dataclass(frozen=True)
class VectorIndex:
    """The index of the vectors of one path, their model and size, and what was read."""

    index: Any
    model: str | None
    width: int
    stats: VectorStats


def index_path(path: Path) -> Path:
    """The index of a file or folder of vectors: beside it, with the ending `.faiss`."""
    path = path if path.name else path.resolve()
    return path.with_name(f"{path.name}.faiss")


def open_indexes(
    files: VectorFiles, report: Callable[[str], None], on_rows: OnRows = ignore
) -> list[VectorIndex]:
    """The index of each path, built where it is missing, or older than its vectors.

    `report` is called with what is built. Raises UsageError if faiss is not installed, if files
    have several models or sizes of vectors, and for anything that is not vectors; OutputFailed.
    """
    import_faiss()
    indexes = [load_index(path) or build_index(path, report, on_rows) for path in files.paths]
    first = indexes[0]
    for path, other in zip(files.paths, indexes, strict=True):
        if (other.model, other.width) != (first.model, first.width):
            raise UsageError(
                f"{path} has vectors of {other.width} numbers of the model {other.model}, "
                f"{files.paths[0]} has {first.width} numbers of {first.model}",
                hint="search files of one model at a time",
            )
    return indexes


def import_faiss() -> Any:
    """The module faiss. Raises UsageError if it is not installed."""
    try:
        import faiss
    except ImportError as problem:
        raise UsageError(
            "--index needs faiss, which is not installed",
            hint="pip install 'paligemma-cli[index]'; without --index the search is exact",
        ) from problem
    return faiss


def stamp(path: Path) -> list[list[object]]:
    """The names, sizes and modification times of the files of a path."""
    parts = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    return [[part.name, part.stat().st_size, part.stat().st_mtime_ns] for part in parts]


def load_index(path: Path) -> VectorIndex | None:
    """The index of a path; None if there is none of these vectors that can be read."""
    file, faiss = index_path(path), import_faiss()
    about = read_json(description(file)) or {}
    try:
        is_current = about["version"] == VERSION and about["vectors"] == stamp(path)
        if not is_current or about["bytes"] != file.stat().st_size:
            return None
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        found = VectorIndex(index, about["model"], about["width"], VectorStats(**about["stats"]))
    except (KeyError, TypeError, OSError, RuntimeError):
        return None
    return prepared(found) if index.d == found.width else None


def description(file: Path) -> Path:
    """The file that says which vectors an index is of."""
    return file.with_name(f"{file.name}.json")


def build_index(path: Path, report: Callable[[str], None], on_rows: OnRows) -> VectorIndex:
    """Build the index of a path and save it. Raises what `open_indexes` raises."""
    file, faiss, files = index_path(path), import_faiss(), VectorFiles([path])
    report(f"{file} is {'older than its vectors' if file.exists() else 'not there'}: building it")
    seen = stamp(path)
    sample, count = sample_vectors(files, on_rows)
    width = sample.shape[1]
    if count < MIN_CLUSTERED:
        index = faiss.IndexIDMap(faiss.IndexFlatIP(width))
    else:
        clusters = round(count**0.5)
        centres = faiss.IndexFlatIP(width)
        index = faiss.IndexIVFFlat(centres, width, clusters, faiss.METRIC_INNER_PRODUCT)
        index.cp.max_points_per_centroid = ROWS_PER_CLUSTER
        index.train(sample[:: max(1, len(sample) // (clusters * ROWS_PER_CLUSTER))])
    for block in files:
        index.add_with_ids(block.vectors, block.rows)
        on_rows(len(block.rows))
    found = VectorIndex(index, files.model, width, files.stats)
    save_index(file, found, seen)
    return prepared(found)


def sample_vectors(files: VectorFiles, on_rows: OnRows) -> tuple[Vectors, int]:
    """Vectors that are evenly spread over the files, enough for the clusters, and the number of
    all.
    """
    width = files.head().vectors.shape[1]
    sample, step, count = np.zeros((0, width), np.float32), 1, 0
    for block in files:
        places = np.arange(-count % step, len(block.rows), step)
        sample, count = np.concatenate([sample, block.vectors[places]]), count + len(block.rows)
        while len(sample) > 2 * ROWS_PER_CLUSTER * max(count**0.5, 256):
            sample, step = sample[::2], step * 2
        on_rows(len(block.rows))
    return sample, count


def save_index(file: Path, index: VectorIndex, seen: list[list[object]]) -> None:
    """Write the index, then what it is of. Raises OutputFailed."""
    faiss = import_faiss()
    try:
        with published(file) as path:
            path.touch()
            faiss.write_index(index.index, str(path))
            description(file).unlink(missing_ok=True)
            about = {
                "version": VERSION,
                "vectors": seen,
                "bytes": path.stat().st_size,
                "model": index.model,
                "width": index.width,
                "stats": asdict(index.stats),
            }
        write_json(description(file), about)
    except (OutputFailed, RuntimeError) as problem:  # faiss raises RuntimeError for a full disk
        raise OutputFailed(
            f"the index {file} cannot be written: {problem}",
            hint="free some space or correct the permissions; without --index the search is exact",
        ) from problem


def prepared(index: VectorIndex) -> VectorIndex:
    """The index with the number of clusters that are searched."""
    if hasattr(index.index, "nprobe"):
        index.index.nprobe = max(MIN_SEARCHED, round(index.index.nlist * SEARCHED_SHARE))
    return index


def total_stats(indexes: Sequence[VectorIndex]) -> VectorStats:
    """What was read of all paths together."""
    each = [asdict(index.stats) for index in indexes]
    return VectorStats(**{name: sum(one[name] for one in each) for name in each[0]})


def offsets(indexes: Sequence[VectorIndex]) -> list[int]:
    """The number of the first row of each path among all rows."""
    counts = [index.stats.rows for index in indexes]
    return [sum(counts[:number]) for number in range(len(counts))]


def search_indexes(
    queries: Vectors,
    files: VectorFiles,
    indexes: Sequence[VectorIndex],
    k: int = 10,
    *,
    min_similarity: float | None = None,
) -> list[list[Hit]]:
    """The hits of each of the normalised queries (Q, E) that the indexes find, best first."""
    best: list[list[tuple[float, int]]] = [[] for _ in queries]
    for index, first in zip(indexes, offsets(indexes), strict=True):
        check_sizes(queries, np.zeros((0, index.width), np.float32))
        similarities, rows = index.index.search(queries, k)
        for number, found in enumerate(best):
            pairs = zip(similarities[number].tolist(), rows[number].tolist(), strict=True)
            found += [(-min(score, 1.0), row + first) for score, row in pairs if row >= 0]
    least = -np.inf if min_similarity is None else min_similarity
    kept = [[one for one in sorted(found)[:k] if -one[0] >= least] for found in best]
    names = files.names({row for found in kept for _, row in found})
    return [[Hit(names[row], -score) for score, row in found] for found in kept]


def indexed_duplicates(
    files: VectorFiles,
    indexes: Sequence[VectorIndex],
    min_similarity: float,
    on_rows: OnRows = ignore,
) -> list[list[Hit]]:
    """The groups of near-duplicates that the indexes find; see `find_duplicates`."""
    components = Components(sum(index.stats.rows for index in indexes))
    firsts = offsets(indexes)
    for block in files:
        for start in range(0, len(block.rows), NEIGHBOURS_AT_ONCE):
            part = slice(start, start + NEIGHBOURS_AT_ONCE)
            for index, first in zip(indexes, firsts, strict=True):
                components.join(
                    *neighbours(index, block.vectors[part], block.rows[part], first, min_similarity)
                )
        on_rows(len(block.rows))
    return find_members(files, components.groups())


def neighbours(
    index: VectorIndex, vectors: Vectors, rows: Rows, first: int, min_similarity: float
) -> tuple[Rows, Rows]:
    """The pairs of these rows and rows of the index that are at least so similar."""
    ends, scores, found = index.index.range_search(vectors, min_similarity - ROUNDING)
    is_similar = scores >= min_similarity - ROUNDING / 10
    return np.repeat(rows, np.diff(ends.astype(np.int64)))[is_similar], found[is_similar] + first
