"""CIDEr-D of captions, with the numbers of coco-caption.

Letters of shapes: C captions, the answered ones first and then the references, W words of all
captions, E pairs of a caption and one of its n-grams, F captions that are references.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric
from pgcli.evaluation.metrics.ptb_tokenizer import caption_tokens

MAX_N = 4  # words of an n-gram
SIGMA = 6.0  # of the penalty for a difference in length
SCALE = 10.0


def measure_cider(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The mean CIDEr-D; surplus rows and those without an answer score 0."""
    scored = [number for number, row in enumerate(rows) if row.true_answers]
    scores = np.zeros(len(rows))
    scores[scored] = cider(
        [rows[number].answer or "" for number in scored],
        [rows[number].true_answers for number in scored],
        [rows[number].image for number in scored],
    )
    return [mean("cider", scores.tolist())]


CIDER = Metric("answers", measure_cider)


def cider(
    captions: Sequence[str], references: Sequence[Sequence[str]], images: Sequence[Hashable]
) -> list[float]:
    """The score of each caption by its references, from 0 to 10.

    Document frequencies count images: several captions of an image count once. Scores therefore
    depend on the set of images; a single image scores 0.
    """
    if not captions:
        return []
    numbers: dict[Hashable, int] = {}
    image_R = np.array([numbers.setdefault(image, len(numbers)) for image in images])
    row_F = np.repeat(np.arange(len(captions)), [len(texts) for texts in references])
    words = Words.of([*captions, *(text for texts in references for text in texts)])
    similarity_F, length_C = np.zeros(len(row_F)), np.zeros(words.captions, np.int64)
    for n in range(1, MAX_N + 1):
        counts = words.count_ngrams(n)
        similarity_F += similarities(counts, row_F, image_R, len(captions))
        if n == 2:  # upstream measures the length in bigrams
            np.add.at(length_C, counts.caption_E, counts.count_E)
    change_F = length_C[row_F] - length_C[len(captions) :]
    penalty_F = np.exp(-(change_F**2) / (2 * SIGMA**2))
    total_R = np.bincount(row_F, similarity_F * penalty_F / MAX_N, len(captions))
    scores: list[float] = (SCALE * total_R / np.bincount(row_F, minlength=len(captions))).tolist()
    return scores


@dataclass(frozen=True)
class NgramCounts:
    """How often captions have n-grams, by caption and then by the number of the n-gram."""

    ngrams: int
    caption_E: np.ndarray
    ngram_E: np.ndarray
    count_E: np.ndarray


class Words:
    """The words of captions as numbers, and the n-grams that start with each word."""

    def __init__(self, captions: int, caption_W: np.ndarray, word_W: np.ndarray, size: int):
        self.captions = captions
        self._caption_W, self._word_W, self._size = caption_W, word_W, size
        self._ngram_W = np.zeros(len(word_W), np.int64)  # of one word less than the next ones

    @classmethod
    def of(cls, captions: Iterable[str]) -> Words:
        """The words of the captions."""
        known: dict[str, int] = {}
        word_W, lengths = [], []
        for caption in captions:
            tokens = caption_tokens(caption)
            word_W += [known.setdefault(token, len(known)) for token in tokens]
            lengths.append(len(tokens))
        caption_W = np.repeat(np.arange(len(lengths)), lengths)
        return cls(len(lengths), caption_W, np.array(word_W, np.int32), len(known))

    def count_ngrams(self, n: int) -> NgramCounts:
        """The counts of n-grams; `n` is 1 first, and then one more at each call."""
        starts = len(self._word_W) - n + 1
        is_whole_W = self._caption_W[:starts] == self._caption_W[n - 1 :]
        kept = np.flatnonzero(is_whole_W) if starts > 0 else np.zeros(0, np.int64)
        key = self._ngram_W[kept] * self._size + self._word_W[kept + n - 1]
        distinct, ngram = np.unique(key, return_inverse=True)
        self._ngram_W[kept] = ngram
        pair, count_E = np.unique(
            self._caption_W[kept] * max(1, len(distinct)) + ngram, return_counts=True
        )
        return NgramCounts(len(distinct), *np.divmod(pair, max(1, len(distinct))), count_E)


def similarities(
    counts: NgramCounts, row_F: np.ndarray, image_R: np.ndarray, captions: int
) -> np.ndarray:
    """The clipped cosine of each reference and its row's caption, for n-grams of one length."""
    caption_E, ngram_E = counts.caption_E, counts.ngram_E
    split = int(np.searchsorted(caption_E, captions))  # references begin here
    row_E = row_F[caption_E[split:] - captions]
    in_image = np.sort(image_R[row_E] * max(1, counts.ngrams) + ngram_E[split:])
    in_image = in_image[np.diff(in_image, prepend=-1) > 0]  # each n-gram of an image once
    frequency = np.bincount(in_image % max(1, counts.ngrams), minlength=counts.ngrams)
    idf = math.log(max(1, image_R.max() + 1)) - np.log(np.maximum(1, frequency))
    weight_E = counts.count_E * idf[ngram_E]
    norm_C = np.sqrt(np.bincount(caption_E, weight_E**2, captions + len(row_F)))
    # the weight of each n-gram of a reference in the caption of its row, which may not have it
    key_E = caption_E[:split] * counts.ngrams + ngram_E[:split]
    wanted_E = row_E * counts.ngrams + ngram_E[split:]
    place_E = np.minimum(np.searchsorted(key_E, wanted_E), max(0, split - 1))
    shared = np.flatnonzero(key_E[place_E] == wanted_E) if split else np.zeros(0, np.int64)
    true_weight = weight_E[split:][shared]
    product = np.minimum(weight_E[:split][place_E[shared]], true_weight) * true_weight
    product_F = np.bincount(caption_E[split:][shared] - captions, product, len(row_F))
    norm_F = norm_C[row_F] * norm_C[captions:]
    return product_F / np.where(norm_F > 0, norm_F, 1)
