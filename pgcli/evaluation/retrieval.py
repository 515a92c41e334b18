"""Recall of retrieval, from images to their texts and from texts to their images.

Letters of shapes: N images, M texts, B of them at a time, E size of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pgcli.errors import UsageError
from pgcli.evaluation.measures import JoinedRow, Measure, Metric, mean, ratio
from pgcli.output.reader import read_results

RANKS = (1, 5, 10)
BLOCK = 512
NO_RANK = np.iinfo(np.int64).max

#: The similarities of images to a slice of the texts, (N, B); -inf for an image without any.
Similarities = Callable[[slice], np.ndarray]


def measure_retrieval(rows: Sequence[JoinedRow], texts_file: str | None = None) -> list[Measure]:
    """Recall by the scores of the rows, or by embeddings of the rows and of a file of texts.

    Raises UsageError for rows with neither, and for true texts without a score or an embedding.
    """
    if has_column(rows, "scores"):
        names, similarity_NM = scores_of(rows)
        check_texts(rows, names, "the rows have no score of it", "score them with --texts-file")
        return recalls(rows, names, lambda block: similarity_NM[:, block])
    if not has_column(rows, "embedding"):
        raise UsageError(
            "--metric retrieval needs embeddings or scores", hint="pgcli embed and score write them"
        )
    if texts_file is None:
        raise UsageError(
            "--metric retrieval needs the embeddings of the texts",
            hint="--texts FILE names the output of pgcli embed --texts-file",
        )
    vectors = text_vectors(texts_file)
    problem = f"{texts_file} has no embedding of it"
    check_texts(rows, vectors, problem, "embed it with --texts-file")
    text_ME = np.stack(list(vectors.values()))
    return recalls(rows, list(vectors), products(image_vectors(rows, text_ME.shape[1]), text_ME))


RETRIEVAL = Metric("answers", measure_retrieval)


def recalls(
    rows: Sequence[JoinedRow], texts: Sequence[str], similarities: Similarities
) -> list[Measure]:
    """Recall at 1, 5 and 10 in both directions, by the similarities of the rows to distinct texts.

    An image counts by the best of its texts. Equally similar texts and images of other images rank
    before the true ones.
    """
    numbers = {text: number for number, text in enumerate(texts)}
    true = [sorted({numbers[text] for text in row.true_answers}) for row in rows]
    text_rank_N, image_ranks = ranks(true, len(texts), similarities)
    recall: list[Measure] = [
        mean(f"image_to_text@{rank}", (text_rank_N < rank).tolist()) for rank in RANKS
    ]
    for rank in RANKS:
        hits = [sum(image_rank < rank for image_rank in own) for own in image_ranks]
        recall.append(ratio(f"text_to_image@{rank}", hits, [len(own) for own in true]))
    return recall


def ranks(
    true: Sequence[Sequence[int]], texts: int, similarities: Similarities
) -> tuple[np.ndarray, list[list[int]]]:
    """The rank of the best true text of each image, and of the image for each of its texts."""
    best_N = np.full(len(true), -np.inf)
    owners: dict[int, list[int]] = {}
    for row, own in enumerate(true):
        for text in own:
            owners.setdefault(text, []).append(row)
    image_ranks: list[list[int]] = [[] for _ in true]
    for text, column_N in columns(texts, similarities):
        rows = owners.get(text, [])
        # images of the same text are no competitors of each other
        rivals = np.delete(column_N, rows) if rows else column_N
        for row in rows:
            best_N[row] = max(best_N[row], column_N[row])
            rank = int((rivals >= column_N[row]).sum())
            image_ranks[row].append(rank if np.isfinite(column_N[row]) else NO_RANK)
    above_N = np.zeros(len(true), np.int64)
    for text, column_N in columns(texts, similarities):
        is_above_N = column_N >= best_N
        is_above_N[owners.get(text, [])] = False
        above_N += is_above_N
    return np.where(np.isfinite(best_N), above_N, NO_RANK), image_ranks


def columns(texts: int, similarities: Similarities) -> Iterator[tuple[int, np.ndarray]]:
    """Each text and the similarities of the images to it, (N,)."""
    for start in range(0, texts, BLOCK):
        block_NB = similarities(slice(start, min(start + BLOCK, texts)))
        for column, column_N in enumerate(np.ascontiguousarray(block_NB.T)):
            yield start + column, column_N


def products(image_NE: np.ndarray, text_ME: np.ndarray) -> Similarities:
    """The similarities of embeddings; images without an embedding have rows of NaN."""

    def similarities(block: slice) -> np.ndarray:
        similarity_NB: np.ndarray = image_NE @ text_ME[block].T
        return np.where(np.isnan(similarity_NB), -np.inf, similarity_NB)

    return similarities


def image_vectors(rows: Sequence[JoinedRow], width: int) -> np.ndarray:
    """The embeddings of the rows (N, E), NaN for those without. Raises UsageError."""
    image_NE = np.full((len(rows), width), np.nan, np.float32)
    for number, row in enumerate(rows):
        vector = (row.row or {}).get("embedding")
        if vector is not None and len(vector) != width:
            raise UsageError(
                f"image embeddings have {len(vector)} dimensions, text embeddings {width}",
                hint="embed both with the same model",
            )
        if vector is not None:
            image_NE[number] = vector
    return image_NE


def has_column(rows: Sequence[JoinedRow], name: str) -> bool:
    """Whether any of the rows has the column."""
    return any(name in (row.row or {}) for row in rows)


def scores_of(rows: Sequence[JoinedRow]) -> tuple[list[str], np.ndarray]:
    """The texts of the rows, and the cosines of each row with them; -inf where it has none."""
    numbers: dict[str, int] = {}
    scores = [(row.row or {}).get("scores") or () for row in rows]
    for own in scores:
        for score in own:
            numbers.setdefault(score["text"], len(numbers))
    similarity_NM = np.full((len(rows), len(numbers)), -np.inf, np.float32)
    for number, own in enumerate(scores):
        for score in own:
            similarity_NM[number, numbers[score["text"]]] = score["cosine"]
    return list(numbers), similarity_NM


def text_vectors(name: str) -> dict[str, np.ndarray]:
    """The embedding of each text in a file of `pgcli embed`. Raises UsageError."""
    vectors = {
        str(row["text"]): np.array(row["embedding"], np.float32)
        for row in read_results(Path(name))
        if row.get("text") is not None and row.get("embedding") is not None
    }
    if not vectors:
        raise UsageError(f"{name} has no embedding of a text", hint="pgcli embed --texts-file FILE")
    return vectors


def check_texts(rows: Sequence[JoinedRow], known: Any, problem: str, hint: str) -> None:
    """Raise UsageError for a true text that has no vector or score."""
    for row in rows:
        for text in row.true_answers:
            if text not in known:
                raise UsageError(f"a true text is {text!r}, and {problem}", hint=hint)
