"""Searches the vectors of pages by late interaction, exactly, in threads that read row groups.

A page's score is the sum over a question's vectors of the largest product with one of its own
vectors, not divided by their number. It is computed in float32; all pages within the rounding error
of a hit are scored again in float64, so that hits and ties do not depend on groups and threads.

E size of a vector · N pages of a row group · T vectors of a question · V vectors of the pages
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow
from numpy.typing import NDArray
from pyarrow import parquet

from pgcli.errors import NoInputError, UsageError
from pgcli.output import load_format
from pgcli.output.lines import LineFormat
from pgcli.output.reader import reading
from pgcli.output.schema import EMBEDDING, is_page_type
from pgcli.search.nearest import NO_ROW, Hits, RowNumbers, Vectors
from pgcli.search.vector_files import MODEL, ONE_MODEL, VectorFiles
from pgcli.stores.files import open_regular

#: Each has the vectors of a row group in memory: 8 MiB, and twice as much in float32.
MAX_THREADS = 16
#: The settings of a file with the texts around pages and questions: see `towers.pages.PromptForm`.
FORM = ("page_prompt", "question_prefix")


class Group(NamedTuple):
    """A row group of a file; `first` is the number of its first row among all rows."""

    file: Path
    number: int
    first: int
    rows: int


class Pages(NamedTuple):
    """The pages of a row group that have vectors: row numbers (N,), all vectors one after the other
    (V, E), and where those of each page begin (N,). The names of their models.
    """

    rows: RowNumbers
    vectors: Vectors
    starts: NDArray[np.int64]
    models: list[str]

    def of_page(self, page: int) -> Vectors:
        """The vectors of a page."""
        following = self.starts[page + 1 : page + 2].tolist() or [len(self.vectors)]
        return self.vectors[self.starts[page] : following[0]]


def has_pages(paths: Sequence[Path]) -> bool:
    """Whether the first file has the vectors of pages. Raises UsageError for an unreadable one."""
    _, file = VectorFiles(paths).files[0]
    if isinstance(load_format(file), LineFormat):
        return False
    with reading(file):
        schema = parquet.read_schema(file)
    return EMBEDDING in schema.names and is_page_type(schema.field(EMBEDDING).type)


class PageFiles(VectorFiles):
    """The vectors of pages in several files and folders; of some, vectors may be merged.

    Raises UsageError for files of other vectors, and for those whose prompt form differs or is not
    recorded: vectors of different forms cannot be compared.
    """

    def __init__(self, paths: Sequence[Path]):
        super().__init__(paths)
        self.form, self.is_pooled = tuple[str, ...](), False
        self._groups: list[Group] = []
        for _, file in self.files:
            settings = load_format(file).settings(file)
            form = tuple(str(settings.get(name)) for name in FORM)
            if FORM[1] not in settings or self.form not in ((), form):
                raise UsageError(
                    f"{file} has vectors made with the prompts {form}, not {self.form or FORM}; "
                    "they cannot be compared",
                    hint="name files that pgcli embed wrote with one model",
                )
            self.form, self.is_pooled = form, self.is_pooled or bool(settings.get("pool"))
            self._check_model([settings.get(MODEL)], file)
            with reading(file), open_regular(file) as stream, parquet.ParquetFile(stream) as opened:
                kind = opened.schema_arrow.field(EMBEDDING).type
                if not is_page_type(kind) or self._width not in (None, kind.value_type.list_size):
                    raise UsageError(
                        f"{file} has other vectors than the files before", hint=ONE_MODEL
                    )
                self._width = kind.value_type.list_size
                for number in range(opened.num_row_groups):
                    rows = opened.metadata.row_group(number).num_rows
                    self._groups.append(Group(file, number, self.rows, rows))
                    self.rows += rows

    def hits(
        self,
        questions: Sequence[Vectors],
        k: int,
        on_pages: Callable[[int], None] = lambda pages: None,
    ) -> Hits:
        """The `k` pages with the highest scores for each question (T, E), best first.

        `on_pages` is called with how many pages were scored since it was last called. Raises
        UsageError for unreadable files, and NoInputError if no page has vectors.
        """
        rows = np.full((len(questions), k), NO_ROW, np.int64)
        scores, self.nulls = np.full((len(questions), k), -np.inf), 0

        def find(group: Group) -> tuple[Pages, list[tuple[RowNumbers, NDArray[np.float64]]]]:
            # the floors may be those of a moment ago, which let more pages through
            pages = read_pages(group)
            matches = [
                best_pages(question, pages, k, floor, group)
                for question, floor in zip(questions, scores[:, -1].tolist(), strict=True)
            ]
            return pages._replace(vectors=np.zeros((0, 0), np.float32)), matches

        with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
            for group, (pages, matches) in zip(
                self._groups, pool.map(find, self._groups), strict=True
            ):
                self._check_model(pages.models, group.file)
                self.nulls += group.rows - len(pages.rows)
                for number, (new_rows, new_scores) in enumerate(matches):
                    merged = np.concatenate([scores[number], new_scores])
                    best = np.argsort(-merged, kind="stable")[:k]
                    rows[number] = np.concatenate([rows[number], new_rows])[best]
                    scores[number] = merged[best]
                on_pages(group.rows)
        if self.nulls == self.rows:
            raise NoInputError(
                f"no vectors in {', '.join(map(str, self.paths))}", hint="pgcli embed writes them"
            )
        return Hits(rows, np.where(rows == NO_ROW, np.nan, scores))

    def vectors(self, rows: Collection[int]) -> dict[int, Vectors]:
        """The vectors (V, E) of the pages with these numbers."""
        matches: dict[int, Vectors] = {}
        for group in self._groups:
            if any(group.first <= row < group.first + group.rows for row in rows):
                pages = read_pages(group)
                numbers = enumerate(pages.rows.tolist())
                matches |= {row: pages.of_page(n).copy() for n, row in numbers if row in rows}
        return matches


def read_pages(group: Group) -> Pages:
    """The pages of a row group. Raises UsageError for an unreadable file."""
    with reading(group.file), open_regular(group.file) as stream:
        opened = parquet.ParquetFile(stream, pre_buffer=False)
        names = [name for name in (EMBEDDING, MODEL) if name in opened.schema_arrow.names]
        table = opened.read_row_group(group.number, names, use_threads=False).combine_chunks()
    models = table[MODEL].unique().to_pylist() if MODEL in names else []
    column = (
        table[EMBEDDING].chunk(0) if table.num_rows else pyarrow.array([], table.schema[0].type)
    )
    counts = column.value_lengths().fill_null(0).to_numpy(False)
    has_vectors = np.flatnonzero(counts)
    # `flatten` leaves out the vectors of null rows
    vectors = column.flatten().flatten().to_numpy(False).astype(np.float32)
    ends = np.cumsum(counts[has_vectors], dtype=np.int64)
    return Pages(
        group.first + has_vectors,
        vectors.reshape(-1, column.type.value_type.list_size),
        ends - counts[has_vectors],
        models,
    )


def best_pages(
    question_TE: Vectors, pages: Pages, k: int, floor: float, group: Group
) -> tuple[RowNumbers, NDArray[np.float64]]:
    """The pages of a row group that may be hits, and their exact scores.

    Hits have at least the score `floor`. Raises UsageError for numbers that are not finite.
    """
    if not len(pages.rows):
        return pages.rows, np.zeros(0)
    product_TV = question_TE @ pages.vectors.T
    score_N = np.maximum.reduceat(product_TV, pages.starts, axis=1).sum(axis=0)
    if not np.isfinite(score_N).all():
        raise UsageError(
            f"{group.file} has vectors with numbers that are not finite", hint="embed it again"
        )
    if len(score_N) > k:
        floor = max(floor, float(np.partition(score_N, -k)[-k]))
    # twice the most by which a sum of products of vectors of length 1 differs from the exact one
    terms, size = question_TE.shape
    error = 2 * terms * (size + terms + 4) * float(np.finfo(np.float32).eps)
    near = np.flatnonzero(score_N >= floor - error)
    return pages.rows[near], np.array(
        [exact_score(question_TE, pages.of_page(n)) for n in near.tolist()]
    )


def exact_score(question_TE: Vectors, vector_VE: Vectors) -> float:
    """The score of a page, in float64."""
    products = vector_VE.astype(np.float64) @ question_TE.astype(np.float64).T
    return float(products.max(axis=0).sum())
