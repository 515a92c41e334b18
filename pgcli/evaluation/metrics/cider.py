"""CIDEr-D of captions, with the numbers of coco-caption."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, mean
from pgcli.evaluation.metrics import Metric
from pgcli.evaluation.metrics.ptb_tokenizer import caption_tokens

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


def measure_cider(rows: Sequence[JoinedRow]) -> list[Measure]:
    """The mean CIDEr-D; surplus rows and those without an answer score 0."""
    scored = [row for row in rows if row.true_answers]
    scores = iter(
        cider(
            [row.answer or "" for row in scored],
            [row.true_answers for row in scored],
            [row.image for row in scored],
        )
    )
    return [mean("cider", [next(scores) if row.true_answers else 0.0 for row in rows])]


CIDER = Metric("answers", measure_cider)


def cider(
    captions: Sequence[str], references: Sequence[Sequence[str]], images: Sequence[Hashable]
) -> list[float]:
    """The score of each caption by its references, from 0 to 10.

    Document frequencies count images: several captions of an image count once. Scores therefore
    depend on the set of images; a single image scores 0.
    """
    reference_counts = [[count_ngrams(text) for text in texts] for texts in references]
    of_image: dict[Hashable, set[Ngram]] = {}
    for image, texts in zip(images, reference_counts, strict=True):
        of_image.setdefault(image, set()).update(ngram for counts in texts for ngram in counts)
    frequency = Counter(ngram for ngrams in of_image.values() for ngram in ngrams)
    log_images = math.log(max(1, len(of_image)))
    scores = []
    for caption, texts in zip(captions, reference_counts, strict=True):
        own = tf_idf(count_ngrams(caption), frequency, log_images)
        total = sum(similarity(own, tf_idf(counts, frequency, log_images)) for counts in texts)
        scores.append(SCALE * total / len(texts))
    return scores


def count_ngrams(caption: str) -> Counter[Ngram]:
    """The number of times that a caption has each n-gram."""
    words = caption_tokens(caption)
    return Counter(
        tuple(words[start : start + n])
        for n in range(1, MAX_N + 1)
        for start in range(len(words) - n + 1)
    )


def tf_idf(counts: Mapping[Ngram, int], frequency: Mapping[Ngram, int], log_images: float) -> TfIdf:
    """The weights of the n-grams; `log_images` is the logarithm of the number of images."""
    weights: tuple[dict[Ngram, float], ...] = tuple({} for _ in range(MAX_N))
    for ngram, count in counts.items():
        weights[len(ngram) - 1][ngram] = count * (log_images - math.log(max(1, frequency[ngram])))
    length = sum(counts[ngram] for ngram in weights[1])  # of bigrams, as upstream
    return TfIdf(weights, tuple(norm(of_n.values()) for of_n in weights), length)


def norm(values: Iterable[float]) -> float:
    return math.sqrt(sum(value * value for value in values))


def similarity(caption: TfIdf, reference: TfIdf) -> float:
    """The mean over n of the clipped cosine, with the penalty for a difference in length."""
    total = 0.0
    for n in range(MAX_N):
        weights, true = caption.weights[n], reference.weights[n]
        product = sum(
            min(weight, true[ngram]) * true[ngram]
            for ngram, weight in weights.items()
            if ngram in true
        )
        norms = caption.norms[n] * reference.norms[n]
        total += product / norms if norms else product
    penalty = math.exp(-((caption.length - reference.length) ** 2) / (2 * SIGMA**2))
    return total * penalty / MAX_N
