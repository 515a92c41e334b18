"""CIDEr-D of captions, with the numbers of coco-caption, and the tokens of Stanford's PTBTokenizer.

Tokens are written to the output of CoreNLP 3.4.1 with `-lowerCase`, the version of coco-caption,
without Java. Addresses, telephone numbers, faces and rare abbreviations, which captions do not
have, may differ.

Letters of shapes: R rows; C captions, of each row the answer and then the references; W words of
all captions; G distinct n-grams, K n-grams in their order; E pairs of a caption and an n-gram.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np

from pgcli.evaluation.measures import JoinedRow, Measure, Metric, image_numbers, mean

MAX_N = 4  # words of an n-gram
SIGMA = 6.0  # of the penalty for a difference in length
SCALE = 10.0
CACHED_CHUNKS = 2**16  # most words are in many captions
#: Removed from the tokens by coco-caption. Its names of brackets are in upper case and match no
#: token, so brackets stay.
REMOVED = frozenset("\" '' ' `` ` . ? ! , : ... .. ;".split())
BRACKETS = {"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"}
#: Characters that the tokenizer replaces.
REPLACED = str.maketrans(
    dict.fromkeys("‘’‹›", "'")
    | dict.fromkeys("“”«»", " '' ")
    | dict.fromkeys("–—―", " -- ")
    | {"…": " ... ", "\u00a0": " ", "£": " # ", "€": " $ ", "½": " 1/2 "}
)
#: Words that keep a period behind them.
ABBREVIATIONS = (
    "ave co corp dept dr etc ft gov inc jr lt ltd mr mrs ms mt prof sgt sr st vs".split()
)
NUMBER = r"(?:[-+]?\d*(?:[.,:]\d+)+|[-+]\d+)"
WORD = r"[^\W_]+(?:(?:[-_&]|[\u0300-\u036f]+)[^\W_]+)*[\u0300-\u036f]*"
TOKEN = re.compile(
    rf"""
    (?:can(?=not\b)) | (?:(?:gon|wan)(?=na\b)) | (?:(?:got)(?=ta\b)) | (?:(?:gim|lem)(?=me\b))
  | 't(?=(?:is|was)\b) | y'(?=all\b) | [^\W\d_]+?(?=n['`]t\b) | n['`]t\b
  | '(?:s|m|d|re|ve|ll|em|n)\b(?:(?<='n)')?
  | (?:o'clock|ma'am)\b | [a-hj-xz]'(?!re\b|ve\b|ll\b)[^\W\d_]{{2,}}
  | (?:[^\W_]+-)?(?:[^\W\d_]\.)+[^\W\d_]\.(?![^\W_])(?:-(?:(?:[^\W\d_]\.){{2,}}|[^\W_]+))*
  | [^\W\d_]\.(?:(?:-[^\W_]+)+|(?![^\W\d_]))
  | (?:{"|".join(ABBREVIATIONS)})\.(?:(?:-[^\W_]+)+|(?![^\W\d_]))
  | [^\W\d_][^\W_]*\.(?=[,;:])                                                  # as in etc.,
  | [^\W_]+(?:-[^\W\d_]+){{0,2}}(?:\\?/[^\W_]+(?:-[^\W\d_]+){{0,2}}){{1,2}}(?![\w/])
  | \d+-\d+/\d+ | \d+/\d+ | \d+(?:[.,]\d+)+(?:-[^\W_]+)+ | {NUMBER} | (?<![^\W_])'\d\ds?
  | [^\W\d_][^\W_]*(?:[.!?][^\W\d_][^\W_]*)+ | {WORD}
  | [!?]+ | \.{{3}} | \.{{2}} | -+ | '' | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)


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
    texts = [(caption, *own) for caption, own in zip(captions, references, strict=True)]
    words = Words.of(text for own in texts for text in own)
    size_R = np.array([len(own) for own in texts], np.int64)
    answer_R = np.cumsum(size_R) - size_R  # the first caption of each row
    row_C = np.repeat(np.arange(len(texts)), size_R)
    answer_C, image_C = answer_R[row_C], image_numbers(images)[row_C]
    image_C[answer_R] = -1  # answers count for no document frequency
    similarity_C = np.zeros(len(row_C))
    for ngram_W, images_G in words.ngrams(image_C):
        similarity_C += similarities(words.caption_W, ngram_W, answer_C, images_G, len({*images}))
    length_C = np.maximum(words.length_C - 1, 0)  # upstream measures it in bigrams
    change_C = length_C[answer_C] - length_C
    similarity_C *= np.exp(-(change_C**2) / (2 * SIGMA**2)) * SCALE / MAX_N
    similarity_C[answer_R] = 0
    scores: list[float] = (np.bincount(row_C, similarity_C, len(texts)) / (size_R - 1)).tolist()
    return scores


@dataclass(frozen=True)
class Words:
    """The words of captions as numbers below `vocabulary`, and the captions' numbers of words."""

    length_C: np.ndarray
    caption_W: np.ndarray
    word_W: np.ndarray
    vocabulary: int

    @classmethod
    def of(cls, captions: Iterable[str]) -> Self:
        """The words of the captions."""
        numbers: dict[str, int] = {}
        words, lengths = array("i"), []
        for caption in captions:
            own = [token for chunk in chunks_of(caption) for token in chunk_tokens(chunk)]
            words.extend(numbers.setdefault(token, len(numbers)) for token in own)
            lengths.append(len(own))
        caption_W = np.repeat(np.arange(len(lengths)), lengths)
        return cls(np.array(lengths, np.int64), caption_W, np.array(words, np.int64), len(numbers))

    def ngrams(self, image_C: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each length, the number of the n-gram at each word, and the images that have it.

        Words without enough words behind them have -1. Captions of the image -1 do not count.
        """
        ngram_W = np.zeros(len(self.word_W), np.int64)
        for n in range(1, MAX_N + 1):
            starts = max(0, len(ngram_W) - n + 1)
            start_K = np.flatnonzero(self.caption_W[:starts] == self.caption_W[n - 1 :])
            key_K = ngram_W[start_K] * self.vocabulary + self.word_W[start_K + (n - 1)]
            known_G, number_K = np.unique(key_K, return_inverse=True)
            ngram_W = np.full(len(ngram_W), -1)
            ngram_W[start_K] = number_K
            image_K = image_C[self.caption_W[start_K]]
            pair_K = np.unique(image_K[image_K >= 0] * len(known_G) + number_K[image_K >= 0])
            yield ngram_W, np.bincount(pair_K % max(1, len(known_G)), minlength=len(known_G))


def similarities(
    caption_W: np.ndarray,
    ngram_W: np.ndarray,
    answer_C: np.ndarray,
    images_G: np.ndarray,
    images: int,
) -> np.ndarray:
    """The clipped cosine of each caption and the answer of its row, for n-grams of one length.

    `images_G` of all `images` have an n-gram.
    """
    kept, size = np.flatnonzero(ngram_W >= 0), max(1, len(images_G))
    key_W = caption_W[kept] * size + ngram_W[kept]
    key_E, count_E = np.unique(key_W, return_counts=True)
    caption_E, ngram_E = np.divmod(key_E, size)
    weight_E = count_E * (math.log(max(1, images)) - np.log(np.maximum(1, images_G[ngram_E])))
    norm_C = np.sqrt(np.bincount(caption_E, weight_E**2, len(answer_C)))
    # the weight of each n-gram in the answer, which may not have it
    wanted_E = answer_C[caption_E] * size + ngram_E
    place_E = np.minimum(np.searchsorted(key_E, wanted_E), len(key_E) - 1)
    shared = np.flatnonzero(key_E[place_E] == wanted_E)
    product = np.minimum(weight_E[place_E[shared]], weight_E[shared]) * weight_E[shared]
    product_C = np.bincount(caption_E[shared], product, len(answer_C))
    scale_C = norm_C[answer_C] * norm_C
    return product_C / np.where(scale_C > 0, scale_C, 1)


def chunks_of(caption: str) -> list[str]:
    """The parts of a caption that are tokenised separately: whitespace is around them."""
    # no character of REPLACED is in ASCII
    return (caption if caption.isascii() else caption.translate(REPLACED)).split()


@lru_cache(maxsize=CACHED_CHUNKS)
def chunk_tokens(chunk: str) -> list[str]:
    """The tokens of text without whitespace, in lower case and without punctuation."""
    tokens = [BRACKETS.get(token, token).lower() for token in TOKEN.findall(chunk)]
    return [token for token in tokens if token not in REMOVED and token.strip("-")]
