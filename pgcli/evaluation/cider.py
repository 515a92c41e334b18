"""CIDEr-D of captions, as coco-caption computes it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pgcli.evaluation.ptb_tokenizer import caption_tokens

MAX_N = 4  # words of an n-gram
SIGMA = 6.0  # of the penalty for a difference in length
SCALE = 10.0

Ngram = tuple[str, ...]


@dataclass(frozen=True)
class TfIdf:
    """The weights of a caption's n-grams and their norm, both for each n, and its length."""

    weights: tuple[Mapping[Ngram, float], ...]
    norms: tuple[float, ...]
    length: int


def cider(captions: Sequence[str], references: Sequence[Sequence[str]]) -> list[float]:
    """The score of each caption by the references of its image, from 0 to 10.

    Document frequencies are those of all references given, so that subsets have other scores, and
    the score of a single image is 0.
    """
    reference_counts = [[count_ngrams(one) for one in image] for image in references]
    frequency: Counter[Ngram] = Counter()
    for image in reference_counts:
        frequency.update({ngram for counts in image for ngram in counts})
    images = math.log(max(1, len(references)))
    scores = []
    for caption, image in zip(captions, reference_counts, strict=True):
        found = tf_idf(count_ngrams(caption), frequency, images)
        total = sum(similarity(found, tf_idf(counts, frequency, images)) for counts in image)
        scores.append(SCALE * total / len(image))
    return scores


def count_ngrams(caption: str) -> Counter[Ngram]:
    """The number of times that a caption has each n-gram."""
    words = caption_tokens(caption)
    return Counter(
        tuple(words[start : start + n])
        for n in range(1, MAX_N + 1)
        for start in range(len(words) - n + 1)
    )


def tf_idf(counts: Mapping[Ngram, int], frequency: Mapping[Ngram, int], images: float) -> TfIdf:
    """The weights of the n-grams; `images` is the logarithm of the number of images."""
    weights: tuple[dict[Ngram, float], ...] = tuple({} for _ in range(MAX_N))
    for ngram, count in counts.items():
        weights[len(ngram) - 1][ngram] = count * (images - math.log(max(1, frequency[ngram])))
    length = sum(counts[ngram] for ngram in weights[1])  # of bigrams, as upstream
    return TfIdf(weights, tuple(map(norm, (one.values() for one in weights))), length)


def norm(values: Iterable[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def similarity(found: TfIdf, true: TfIdf) -> float:
    """The mean over n of the clipped cosine, with the penalty for a difference in length."""
    total = 0.0
    for n in range(MAX_N):
        weights, other = found.weights[n], true.weights[n]
        product = sum(
            min(weight, other[ngram]) * other[ngram]
            for ngram, weight in weights.items()
            if ngram in other
        )
        norms = found.norms[n] * true.norms[n]
        total += product / norms if norms else product
    penalty = math.exp(-((found.length - true.length) ** 2) / (2 * SIGMA**2))
    return total * penalty / MAX_N
