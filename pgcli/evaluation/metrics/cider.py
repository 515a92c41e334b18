"""CIDEr-D of captions, with the numbers of coco-caption, and the tokens of Stanford's PTBTokenizer.

Tokens are written to the output of CoreNLP 3.4.1 with `-lowerCase`, the version of coco-caption,
without Java. Addresses, telephone numbers, faces and rare abbreviations, which captions do not
have, may differ.

Letters of shapes: R rows, those of an image together; C captions, of each row the answer and then
the references; W words of all captions; G distinct n-grams, K n-grams in their order; E pairs of a
caption and an n-gram.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from pgcli.evaluation.joined_row import JoinedRow
from pgcli.evaluation.measures import Measure, blocks, image_numbers, mean, offsets
from pgcli.evaluation.metrics import Metric

MAX_N = 4  # words of an n-gram
SIGMA = 6.0  # of the penalty for a difference in length
SCALE = 10.0
MAX_WORDS = 2**18  # of the captions that are compared at a time
PARTS = 8  # of the n-grams, each sorted alone, which takes less memory
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
    image_R = image_numbers(images)
    by_image = np.argsort(image_R, kind="stable")
    texts = [(captions[row], *references[row]) for row in by_image]
    first_R = offsets([len(own) for own in texts])
    words = Words.of(text for own in texts for text in own)
    row_C = np.repeat(np.arange(len(texts)), np.diff(first_R))
    answer_C, image_C = first_R[row_C], image_R[by_image][row_C]
    image_C[first_R[:-1]] = -1  # answers count for no document frequency
    similarity_C = np.zeros(len(row_C))
    for ngram_W, images_G in words.ngrams(image_C):
        for rows in blocks(words.first_C[first_R], MAX_WORDS):
            first, last = first_R[rows.start], first_R[rows.stop]
            own = slice(words.first_C[first], words.first_C[last])
            similarity_C[first:last] += similarities(
                words.caption_W[own] - first,
                ngram_W[own],
                answer_C[first:last] - first,
                images_G,
                int(image_R.max()) + 1,
            )
    length_C = np.maximum(np.diff(words.first_C) - 1, 0)  # upstream measures it in bigrams
    change_C = length_C[answer_C] - length_C
    similarity_C *= np.exp(-(change_C**2) / (2 * SIGMA**2)) * SCALE / MAX_N
    similarity_C[first_R[:-1]] = 0
    scores_R = np.empty(len(texts))
    scores_R[by_image] = np.bincount(row_C, similarity_C, len(texts)) / (np.diff(first_R) - 1)
    scores: list[float] = scores_R.tolist()
    return scores


@dataclass(frozen=True)
class Words:
    """The words of captions as numbers below `vocabulary`; `first_C` also has their total."""

    first_C: np.ndarray
    caption_W: np.ndarray
    word_W: np.ndarray
    vocabulary: int

    @classmethod
    def of(cls, captions: Iterable[str]) -> Self:
        """The words of the captions."""
        chunks, numbers, lengths = ChunkWords(), array("i"), array("i")
        for caption in captions:
            own = [number for chunk in chunks_of(caption) for number in chunks[chunk]]
            numbers.fromlist(own)
            lengths.append(len(own))
        caption_W = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        word_W = np.array(numbers, np.int32)
        return cls(offsets(lengths), caption_W, word_W, len(chunks.numbers))

    def ngrams(self, image_C: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each length, the number of the n-gram at each word, and the images that have it.

        Words without enough words behind them have -1. Captions of the image -1 do not count.
        """
        ngram_W = np.zeros(len(self.word_W), np.int32)
        for n in range(1, MAX_N + 1):
            starts = max(0, len(ngram_W) - n + 1)
            is_whole = self.caption_W[:starts] == self.caption_W[n - 1 :]
            shorter_W, ngram_W = ngram_W, np.full(len(ngram_W), -1, np.int32)
            images, total = [np.zeros(0, np.int32)], 0
            for part in range(PARTS):  # of the n-grams, by their first word
                start_K = np.flatnonzero(is_whole & (self.word_W[:starts] % PARTS == part))
                last_K = self.word_W[start_K + (n - 1)]
                key_K = shorter_W[start_K] * np.int64(self.vocabulary) + last_K
                order_K = np.argsort(key_K, kind="stable")
                start_K, number_K = start_K[order_K], np.cumsum(changes(key_K[order_K])) - 1
                ngram_W[start_K] = number_K + total
                # the captions of an image follow each other, so that it counts once
                image_K = image_C[self.caption_W[start_K]]
                number_K, image_K = (values[image_K >= 0] for values in (number_K, image_K))
                is_next = changes(number_K) | changes(image_K)
                size = int(ngram_W[start_K].max(initial=total - 1)) + 1 - total
                images.append(np.bincount(number_K[is_next], minlength=size).astype(np.int32))
                total += size
            yield ngram_W, np.concatenate(images)


class ChunkWords(dict[str, list[int]]):
    """The numbers of the words of each chunk of a caption."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __missing__(self, chunk: str) -> list[int]:
        numbers = self.numbers
        words = [numbers.setdefault(token, len(numbers)) for token in chunk_tokens(chunk)]
        self[chunk] = words
        return words


def changes(values: np.ndarray) -> np.ndarray:
    """Whether each value differs from the one before it; True for the first one."""
    is_changed = np.ones(len(values), bool)
    is_changed[1:] = values[1:] != values[:-1]
    return is_changed


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


def chunk_tokens(chunk: str) -> list[str]:
    """The tokens of text without whitespace, in lower case and without punctuation."""
    tokens = [BRACKETS.get(token, token).lower() for token in TOKEN.findall(chunk)]
    return [token for token in tokens if token not in REMOVED and token.strip("-")]
