"""Makes the rows of embed, score and classify from the vectors of images and texts."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from pgcli.engine.output import RowAnswer, oom_answer
from pgcli.output.schema import page_text
from pgcli.records import Answer, DecodedImage, LabelProbability, TextScore, unanswered
from pgcli.tasks import EmbeddingQuestion
from pgcli.towers.engine import EmbeddingEngine, EncodedImage, Stream
from pgcli.towers.pooling import pooled

#: The most bytes of text vectors that are cached for further rows with the same text.
MAX_TEXT_BYTES = 64 * 2**20


class EmbeddingAnswers:
    """Answers a question about a stream of images, or of texts, with an embedding engine.

    Texts and labels that all rows share are encoded once; a row's own text once per distinct text.
    """

    def __init__(self, engine: EmbeddingEngine, question: EmbeddingQuestion):
        self._engine, self._question = engine, question
        self._row_texts = TextVectors(engine, raw=question.raw_text)
        self._labels = engine.labels or question.labels
        self._wanted = frozenset(question.labels or engine.labels)
        self._vectors: np.ndarray | None = None  # of the shared texts or labels
        self._truncated = frozenset[str]()  # of the shared texts, or of the batch's texts
        if question.task == "score" and question.texts:
            self._vectors = engine.encode_texts(question.texts, raw=question.raw_text)
            self._note_truncated(question.texts)
        elif question.labels and not engine.labels:
            self._vectors = label_vectors(engine, question)
            self._note_truncated([text for texts in question.label_texts for text in texts])

    def ask(
        self, stream: Stream, *, should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[RowAnswer]:
        """The answers with their row indices, in the order of the stream.

        Once `should_stop` returns True, no further batch starts.
        """
        if self._question.embeds_texts:
            yield from self._embed_texts(stream, should_stop)
            return
        batch: list[tuple[int, EncodedImage]] = []
        for row_index, encoded in self._engine.encode(stream, should_stop=should_stop):
            batch.append((row_index, encoded))
            if len(batch) >= encoded.batch:
                yield from self._answers(batch)
                batch = []
        yield from self._answers(batch)

    def _note_truncated(self, texts: Sequence[str]) -> None:
        self._truncated = self._engine.truncated(texts, raw=self._question.raw_text)

    def _embed_texts(self, stream: Stream, should_stop: Callable[[], bool]) -> Iterator[RowAnswer]:
        for batch in in_batches(stream, self._engine.batch_size):
            if should_stop():
                return
            texts = [image.item.prompts[0] for _, image in batch]
            vectors = self._engine.encode_texts(texts, raw=self._question.raw_text)
            self._note_truncated(texts)
            for (row_index, image), text, vector in zip(batch, texts, vectors, strict=True):
                embedding, is_cut = self._embedding(vector), text in self._truncated
                row = self._row(image, text=text, embedding=embedding, truncated=is_cut)
                yield row_index, row

    def _answers(self, batch: Sequence[tuple[int, EncodedImage]]) -> Iterator[RowAnswer]:
        """The answers of encoded images; their own texts are encoded in one batch."""
        if self._question.text_column is not None:
            texts = [encoded.image.item.prompts[0] for _, encoded in batch]
            self._row_texts.encode(texts)
            self._note_truncated(texts)
        for row_index, encoded in batch:
            if encoded.vector is None:
                yield row_index, oom_answer(self._row(encoded.image))
                continue
            columns = self._columns(encoded.image, encoded.vector)
            yield row_index, self._row(encoded.image, vision_ms=encoded.vision_ms, **columns)

    def _columns(self, image: DecodedImage, vector: np.ndarray) -> dict[str, Any]:
        """The task's result for an image's vector."""
        if self._question.task == "embed":
            return {"embedding": self._embedding(vector)}
        if self._question.task == "classify":
            labels = self._label_probabilities(vector)
            answer = labels[0].label if labels else None
            return {"labels": labels, "answer": answer, "truncated": bool(self._truncated)}
        if self._vectors is not None:
            scores = self._scores(self._question.texts, self._vectors, vector)
            return {"scores": scores, "truncated": bool(self._truncated)}
        text = image.item.prompts[0]
        scores = self._scores([text], self._row_texts[text][None], vector)
        return {"scores": scores, "truncated": text in self._truncated}

    def _embedding(self, vector: np.ndarray) -> array[float] | str:
        if vector.ndim == 2:  # the vectors of a page
            factor = self._question.pool
            return page_text(vector if factor is None else pooled(vector, factor))
        if self._question.float16:
            vector = vector.astype(np.float16).astype(np.float32)
        values = array("f")
        values.frombytes(vector.tobytes())
        return values

    def _scores(
        self, texts: Sequence[str], vectors: np.ndarray, vector: np.ndarray
    ) -> tuple[TextScore, ...]:
        cosines = vectors @ vector
        logits = self._engine.scores(cosines)
        scores = sigmoid(logits) if self._engine.has_sigmoid else [None] * len(texts)
        columns = zip(texts, cosines.tolist(), scores, softmax(logits), strict=True)
        return tuple(TextScore(*values) for values in columns)

    def _label_probabilities(self, vector: np.ndarray) -> tuple[LabelProbability, ...]:
        """The most probable labels; for a classifier, of the requested labels."""
        logits = vector if self._vectors is None else self._engine.scores(self._vectors @ vector)
        pairs = zip(self._labels, softmax(logits), strict=True)
        labels = [LabelProbability(*pair) for pair in pairs if pair[0] in self._wanted]
        labels.sort(key=lambda label: -label.probability)  # stable: ties in the order given
        return tuple(labels[: self._question.top])

    def _row(self, image: DecodedImage, **columns: Any) -> Answer:
        """The row of an image or a text with these columns."""
        task, model = self._question.task, self._engine.label
        return unanswered(image, image.item.prompts[0], task=task, model=model, **columns)


class TextVectors:
    """The embeddings of texts, of which MAX_TEXT_BYTES are cached."""

    def __init__(self, engine: EmbeddingEngine, *, raw: bool):
        self._engine, self._raw = engine, raw
        self._vectors: OrderedDict[str, np.ndarray] = OrderedDict()

    def encode(self, texts: Iterable[str]) -> None:
        """Encode the texts that are not cached, and cache them."""
        wanted = list(dict.fromkeys(texts))
        for text in wanted:
            if text in self._vectors:
                self._vectors.move_to_end(text)
        new = [text for text in wanted if text not in self._vectors]
        if new:
            vectors = self._engine.encode_texts(new, raw=self._raw)
            # copies, since a view would keep its whole batch in memory
            self._vectors.update((text, v.copy()) for text, v in zip(new, vectors, strict=True))
            most = max(len(wanted), MAX_TEXT_BYTES // vectors[0].nbytes)
            while len(self._vectors) > most:
                self._vectors.popitem(last=False)

    def __getitem__(self, text: str) -> np.ndarray:
        return self._vectors[text]


def label_vectors(engine: EmbeddingEngine, question: EmbeddingQuestion) -> np.ndarray:
    """The vector of each label: the mean of its templates' embeddings, with a length of 1."""
    texts = question.label_texts
    flat = [text for of_label in texts for text in of_label]
    vectors = engine.encode_texts(flat, raw=question.raw_text)
    means = vectors.reshape(len(texts), -1, vectors.shape[-1]).mean(axis=1)
    normalized: np.ndarray = means / np.linalg.norm(means, axis=1, keepdims=True)
    return normalized


def softmax(logits: np.ndarray) -> list[float]:
    """The softmax of the values."""
    exponents = np.exp(logits.astype(np.float64) - logits.max())
    values: list[float] = (exponents / exponents.sum()).tolist()
    return values


def sigmoid(logits: np.ndarray) -> list[float]:
    """The sigmoid of each value, without overflow."""
    values: list[float] = (0.5 * (1 + np.tanh(logits.astype(np.float64) / 2))).tolist()
    return values


def in_batches(stream: Stream, size: int) -> Iterator[list[tuple[int, DecodedImage]]]:
    """The stream in lists of at most `size`."""
    images = iter(stream)
    while batch := list(islice(images, size)):
        yield batch
