"""Where the words of a question match on a page of ColPali.

E size of a vector · P patches · T vectors of a question · V vectors of a page · W words
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]


class Word(NamedTuple):
    """A word of a question, and the numbers of its vectors."""

    text: str
    vectors: Sequence[int]


class PageMaps(NamedTuple):
    """The words of each question, and the maps of each hit, empty without any, for a `grid`."""

    words: Sequence[Sequence[Word]]
    of_hits: Sequence[bytes]
    grid: int


def page_maps(
    words: Sequence[Sequence[Word]],
    questions: Sequence[Vectors],
    row_QK: NDArray[np.int64],
    read: Callable[[set[int]], Mapping[int, Vectors]],
    grid: int,
) -> PageMaps:
    """The maps of the hits of each question, whose vectors `read` returns."""
    pages, of_hits = read({*row_QK[row_QK >= 0].tolist()}), list[bytes]()
    for own, question, rows in zip(words, questions, row_QK.tolist(), strict=True):
        for page in (pages[row] for row in rows if row >= 0):
            has_maps = own and len(page) >= grid * grid
            of_hits.append(word_maps(own, question, page, grid).tobytes() if has_maps else b"")
    return PageMaps(words, of_hits, grid)


def word_maps(
    words: Sequence[Word], question_TE: Vectors, page_VE: Vectors, grid: int
) -> NDArray[np.uint8]:
    """The maps (1 + W, P) of all words together and of each, row by row from the top left.

    A value is the largest product of a word's vectors with the patch's, from 0 to 255; the mean of
    all words would be noise.
    """
    product_TP = question_TE @ page_VE[: grid * grid].T
    of_words = [product_TP[[*word.vectors]].max(axis=0) for word in words]
    maps = np.stack([np.max(of_words, axis=0), *of_words])
    scaled: NDArray[np.uint8] = np.rint(255 * maps.clip(0, 1)).astype(np.uint8)
    return scaled
