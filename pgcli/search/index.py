"""A faiss index beside a file of vectors: built once, and searched without reading the vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from pgcli.errors import OutputFailed, UsageError
from pgcli.search.duplicates import groups, join
from pgcli.search.nearest import NO_ROW, Block, Hits, RowNumbers, Vectors, check_width
from pgcli.search.vector_files import ONE_MODEL, VectorFiles
from pgcli.stores.files import read_json
from pgcli.stores.writing import published, write_json

VERSION = 2
#: Fewer vectors than this are compared exactly: there is nothing to gain by clusters.
MIN_CLUSTERED = 20_000
#: Vectors that the centre of a cluster is computed from, and the share of clusters searched.
ROWS_PER_CLUSTER, SEARCHED_SHARE, MIN_SEARCHED = 64, 1 / 16, 16
#: Rows whose neighbours are searched at once.
NEIGHBOURS_AT_ONCE = 256
#: The most by which faiss rounds a similarity.
ROUNDING = 1e-5

#: Passes blocks on and shows how many rows were read.
Track = Callable[[VectorFiles], Iterator[Block]]


@dataclass(frozen=True)
class VectorIndex:
    """The index of the vectors of one path, their model, all rows and those without a vector."""

    index: Any
    model: str | None
    rows: int
    nulls: int


def open_indexes(
    files: VectorFiles, report: Callable[[str], None], track: Track
) -> list[VectorIndex]:
    """The index of each path, built where it is missing, or older than its vectors.

    `report` is called with what is built. Raises UsageError if faiss is not installed, if files
    have several models or sizes of vectors, and for anything that is not vectors; OutputFailed.
    """
    import_faiss()
    indexes = [load_index(path) or build_index(path, report, track) for path in files.paths]
    for path, index in zip(files.paths, indexes, strict=True):
        if (index.model, index.index.d) != (indexes[0].model, indexes[0].index.d):
            raise UsageError(
                f"{path} has vectors of {index.index.d} numbers of the model {index.model}, "
                f"{files.paths[0]} has {indexes[0].index.d} numbers of {indexes[0].model}",
                hint=ONE_MODEL,
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


def index_path(path: Path) -> Path:
    """The index of a file or folder of vectors: beside it, with the ending `.faiss`."""
    path = path if path.name else path.resolve()
    return path.with_name(f"{path.name}.faiss")


def description(file: Path) -> Path:
    """The file that says which vectors an index is of."""
    return file.with_name(f"{file.name}.json")


def stamp(path: Path) -> list[list[object]]:
    """The names, sizes and modification times of the files of a path."""
    files = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def load_index(path: Path) -> VectorIndex | None:
    """The index of a path; None if there is none of these vectors that can be read."""
    file, faiss = index_path(path), import_faiss()
    described = read_json(description(file)) or {}
    try:
        is_current = described["version"] == VERSION and described["vectors"] == stamp(path)
        if not is_current or described["bytes"] != file.stat().st_size:
            return None
        index = faiss.read_index(str(file), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        loaded = VectorIndex(
            index, described["model"], int(described["rows"]), int(described["nulls"])
        )
    except (KeyError, TypeError, OSError, RuntimeError):
        return None
    return searched_widely(loaded)


def build_index(path: Path, report: Callable[[str], None], track: Track) -> VectorIndex:
    """Build the index of a path and save it. Raises what `open_indexes` raises."""
    file, faiss, files, seen = index_path(path), import_faiss(), VectorFiles([path]), stamp(path)
    report(f"{file} is {'older than its vectors' if file.exists() else 'not there'}: building it")
    sample = sample_vectors(files, track)
    if (count := files.rows - files.nulls) < MIN_CLUSTERED:
        index = faiss.IndexIDMap(faiss.IndexFlatIP(files.width))
    else:
        clusters = round(count**0.5)
        centres = faiss.IndexFlatIP(files.width)
        index = faiss.IndexIVFFlat(centres, files.width, clusters, faiss.METRIC_INNER_PRODUCT)
        index.cp.max_points_per_centroid = ROWS_PER_CLUSTER
        index.train(sample[:: max(1, len(sample) // (clusters * ROWS_PER_CLUSTER))])
    for rows, vectors in track(files):
        index.add_with_ids(vectors, rows)
    built = VectorIndex(index, files.model, files.rows, files.nulls)
    save_index(file, built, seen)
    return searched_widely(built)


def sample_vectors(files: VectorFiles, track: Track) -> Vectors:
    """Vectors that are evenly spread over the files, enough for the clusters."""
    sample, step, count = np.zeros((0, files.width), np.float32), 1, 0
    for rows, vectors in track(files):
        sample = np.concatenate([sample, vectors[-count % step :: step]])
        count += len(rows)
        while len(sample) > 2 * ROWS_PER_CLUSTER * max(count**0.5, 256):
            sample, step = sample[::2], step * 2
    return sample


def save_index(file: Path, index: VectorIndex, seen: list[list[object]]) -> None:
    """Write the index, then what it is of. Raises OutputFailed."""
    described = {"version": VERSION, "vectors": seen, "model": index.model}
    described |= {"rows": index.rows, "nulls": index.nulls}
    try:
        with published(file) as path:
            path.touch()
            import_faiss().write_index(index.index, str(path))
            description(file).unlink(missing_ok=True)
            described["bytes"] = path.stat().st_size
        write_json(description(file), described)
    except (OutputFailed, RuntimeError) as problem:  # faiss raises RuntimeError for a full disk
        raise OutputFailed(
            f"the index {file} cannot be written: {problem}",
            hint="free some space or correct the permissions; without --index the search is exact",
        ) from problem


def searched_widely(index: VectorIndex) -> VectorIndex:
    """The index with the number of clusters that are searched."""
    if hasattr(index.index, "nprobe"):
        index.index.nprobe = max(MIN_SEARCHED, round(index.index.nlist * SEARCHED_SHARE))
    return index


def first_rows(indexes: Sequence[VectorIndex]) -> list[int]:
    """The number of the first row of each path among all rows."""
    return [0, *accumulate(index.rows for index in indexes)][:-1]


def search_indexes(
    queries: Vectors, indexes: Sequence[VectorIndex], k: int, min_similarity: float | None = None
) -> Hits:
    """The hits of each of the normalised queries (Q, E) that the indexes find, best first."""
    least = -np.inf if min_similarity is None else min_similarity
    similarities, rows = [], []
    for index, first in zip(indexes, first_rows(indexes), strict=True):
        check_width(queries, index.index.d)
        scores_QK, rows_QK = index.index.search(queries, k)
        is_hit = (rows_QK != NO_ROW) & (scores_QK >= least)
        similarities.append(np.where(is_hit, np.minimum(scores_QK, 1.0), np.nan))
        rows.append(np.where(is_hit, rows_QK + first, NO_ROW))
    scores, numbers = np.concatenate(similarities, axis=1), np.concatenate(rows, axis=1)
    best = np.lexsort((numbers, -scores))[:, :k]  # NaN is last
    hits = (np.take_along_axis(values, best, axis=1) for values in (numbers, scores))
    return Hits(*hits)


def indexed_duplicates(
    blocks: Iterator[Block], indexes: Sequence[VectorIndex], min_similarity: float
) -> list[RowNumbers]:
    """The groups of near-duplicates among the blocks of all rows, by the pairs that are found."""
    parents = np.arange(sum(index.rows for index in indexes))
    for numbers, vectors in blocks:
        for start in range(0, len(numbers), NEIGHBOURS_AT_ONCE):
            chunk = slice(start, start + NEIGHBOURS_AT_ONCE)
            for index, first in zip(indexes, first_rows(indexes), strict=True):
                ends, scores, rows = index.index.range_search(
                    vectors[chunk], min_similarity - ROUNDING
                )
                pairs_2P = np.stack(
                    [numbers[chunk].repeat(np.diff(ends.astype(np.int64))), rows + first]
                )
                join(parents, pairs_2P[:, scores >= min_similarity - ROUNDING / 10])
    return groups(parents)
