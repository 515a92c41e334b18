"""Recall of retrieval, from images to their texts and from texts to their images.

Letters of shapes: N images, M texts, B of them at a time, E size of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, RowRatio

RANKS = (1, 5, 10)
BLOCK = 512
NOT_FOUND = np.iinfo(np.int64).max

#: The similarities of images to a slice of the texts, (N, B); -inf for an image without any.
Similarities = Callable[[slice], np.ndarray]


def retrieval_measures(
    rows: Sequence[JoinedRow], texts: Sequence[str], similarities: Similarities
) -> list[Measure]:
    """Recall at 1, 5 and 10 in both directions, by the similarities of the rows to distinct texts.

    An image is found by the best of its texts. Equally similar texts and images of other images
    rank before the true ones.
    """
    numbers = {text: number for number, text in enumerate(texts)}
    true = [
        sorted({numbers[text] for text in row.truth.answers if text in numbers})
        if row.truth is not None
        else []
        for row in rows
    ]
    text_rank_N, image_ranks = ranks(true, len(texts), similarities)
    counts_N = np.array(
        [len(set(row.truth.answers)) if row.truth else 0 for row in rows], np.float64
    )
    measures: list[Measure] = [
        RowRatio.mean(f"image_to_text@{rank}", (text_rank_N < rank).tolist()) for rank in RANKS
    ]
    for rank in RANKS:
        found_N = np.array([sum(one < rank for one in own) for own in image_ranks], np.float64)
        measures.append(RowRatio(f"text_to_image@{rank}", found_N, counts_N))
    return measures


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
    for start, block_NB in blocks(texts, similarities):
        for place in range(block_NB.shape[1]):
            column_N, of_text = block_NB[:, place], owners.get(start + place, [])
            for row in of_text:
                best_N[row] = max(best_N[row], column_N[row])
            if of_text:  # images of the same text are no competitors of each other
                others = np.delete(column_N, of_text)
                for row in of_text:
                    image_ranks[row].append(rank_of(column_N[row], others))
    above_N = np.zeros(len(true), np.int64)
    for start, block_NB in blocks(texts, similarities):
        is_above_NB = block_NB >= best_N[:, None]
        for place in range(block_NB.shape[1]):
            is_above_NB[owners.get(start + place, []), place] = False
        above_N += is_above_NB.sum(axis=1)
    return np.where(np.isfinite(best_N), above_N, NOT_FOUND), image_ranks


def rank_of(similarity: float, others_N: np.ndarray) -> int:
    """The number of others that are at least as similar."""
    return int((others_N >= similarity).sum()) if np.isfinite(similarity) else NOT_FOUND


def blocks(texts: int, similarities: Similarities) -> Iterator[tuple[int, np.ndarray]]:
    """The similarities to some texts at a time, with the number of the first of them."""
    for start in range(0, texts, BLOCK):
        yield start, similarities(slice(start, min(start + BLOCK, texts)))


def products(image_NE: np.ndarray, text_ME: np.ndarray) -> Similarities:
    """The similarities of embeddings; those of an image without an embedding are NaN in its row."""

    def similarities(part: slice) -> np.ndarray:
        found: np.ndarray = image_NE @ text_ME[part].T
        return np.where(np.isnan(found), -np.inf, found)

    return similarities
