"""Embeddings, scores, labels and search with a loaded model."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Unpack

from pgcli import tasks
from pgcli.api.answers import AnswerIterator
from pgcli.api.call import Call, make_call
from pgcli.api.call_options import CallOptions
from pgcli.api.sources import Source, make_items
from pgcli.device.decoding import decoding_processes
from pgcli.errors import UsageError, called_from_python
from pgcli.images import ImageDecoder
from pgcli.images.pool import decode_ahead
from pgcli.records import Answer, error_answer
from pgcli.rows import as_saved
from pgcli.run.workers.answer import Ask, answer_items
from pgcli.stores import make_reader
from pgcli.tasks import AnyQuestion, EmbeddingQuestion
from pgcli.text import encodable
from pgcli.towers.abilities import check_kind, check_labels

if TYPE_CHECKING:
    import numpy

    from pgcli.engine.engine import InferenceEngine
    from pgcli.search.nearest import Hits
    from pgcli.towers.engine import EmbeddingEngine


class EmbeddingMethods:
    """Methods of an engine for embeddings of images and texts."""

    _engine: InferenceEngine | EmbeddingEngine
    _allow_urls: bool
    _allow_private_hosts: bool
    _fast_decode: bool

    @called_from_python
    def embed(
        self,
        source: Source | Iterable[Source] | None = None,
        /,
        **options: Unpack[CallOptions],
    ) -> numpy.ndarray:
        """The embeddings (N, E) of images, or of texts, in float32, each with a length of 1.

        An image that cannot be read has a row of NaN. Of PaliGemma, the embedding is the mean of
        the patches' features.
        """
        text = options.get("text")
        if (source is None) == (text is None):
            raise UsageError("embed takes images, or texts", hint='embed("photos")')
        call = make_call("embed", options, of_texts=text is not None)
        question = call.question
        assert isinstance(question, EmbeddingQuestion)
        if text is not None:
            check_kind("embed", self._engine.label, self._engine.kind, texts=True)
            return self._encoder.encode_texts(
                [*map(encodable, question.texts)], raw=question.raw_text
            )
        import numpy

        rows = [row.embedding for row in self._vector_rows(call, source)]
        vectors = numpy.full((len(rows), self._encoder.embedding_dim), numpy.nan, numpy.float32)
        for number, row in enumerate(rows):
            if row is not None:
                vectors[number] = row
        return vectors

    @called_from_python
    def score(
        self,
        source: Source | Iterable[Source],
        text: str | Sequence[str] = (),
        /,
        **options: Unpack[CallOptions],
    ) -> Iterator[Answer]:
        """One Answer per image, with `scores`: how well each text describes it.

        With `text_column`, the text in each row of a manifest is scored with its image.
        """
        return self._vector_rows(make_call("score", {"text": text, **options}), source)

    @called_from_python
    def classify(
        self,
        source: Source | Iterable[Source],
        label: str | Sequence[str] = (),
        /,
        **options: Unpack[CallOptions],
    ) -> Iterator[Answer]:
        """One Answer per image, with the most probable `labels`; `answer` is the best one.

        Two towers fill `template` with each label; classifiers have their own labels, and `label`
        keeps only some of them.
        """
        return self._vector_rows(make_call("classify", {"label": label, **options}), source)

    @called_from_python
    def search(
        self,
        vectors: numpy.ndarray,
        text: str | Sequence[str] | None = None,
        *,
        image: Source | Iterable[Source] | None = None,
        k: int = 10,
        min_similarity: float | None = None,
    ) -> Hits:
        """The rows of `vectors` (N, E) most similar to each text, or to each image, best first.

        `rows` and `similarities` of the result are arrays (queries, k); -1 and NaN stand for hits
        that are missing.
        """
        from pgcli.search.nearest import nearest

        queries = self.embed(image, text=text)
        return nearest(queries, vectors, k, min_similarity=min_similarity)

    @cached_property
    def _encoder(self) -> EmbeddingEngine:
        """The engine of vectors; of PaliGemma it shares the vision tower."""
        from pgcli.towers.engine import EmbeddingEngine
        from pgcli.towers.loader import of_paligemma

        engine = self._engine
        return engine if isinstance(engine, EmbeddingEngine) else of_paligemma(engine)

    def _vector_rows(self, call: Call, source: Any) -> Iterator[Answer]:
        question, label = call.question, self._engine.label
        assert isinstance(question, EmbeddingQuestion)
        check_kind(question.task, label, self._engine.kind, texts=question.needs_texts)
        if question.task == "classify":
            check_labels(question, label, self._encoder.labels)
        from pgcli.towers.answers import EmbeddingAnswers

        ask = EmbeddingAnswers(self._encoder, question).ask
        return self._rows(call, source, ask, self._encoder)

    def _rows(
        self, call: Call, source: Any, ask: Ask, engine: InferenceEngine | EmbeddingEngine
    ) -> Iterator[Answer]:
        """The rows of all images, in their order."""
        question = call.question
        reader = make_reader(
            allow_urls=self._allow_urls, allow_private_hosts=self._allow_private_hosts
        )
        items, total = make_items(source, question, reader)
        decode = partial(
            decode_ahead,
            decoder=ImageDecoder(replace(engine.spec, fast_decode=self._fast_decode)),
            workers=call.engine.workers,
            # images of other machines are decoded in processes, however few they are
            total=None if reader else total,
            reader=reader,
            pauses=total is None,
            default_workers=decoding_processes(engine.device),
        )
        refuse = partial(error_answer, task=question.task, model=engine.label)
        rows = saved(answer_items(tasks.with_prompts(items, question), decode, ask, refuse))
        if call.progress:
            rows = with_progress(rows, question, total)
        return AnswerIterator(rows, question.task)


def saved(rows: Generator[Answer, None, None]) -> Generator[Answer, None, None]:
    """The rows, with the numbers that a file of them has."""
    with closing(rows):
        yield from map(as_saved, rows)


def with_progress(
    rows: Generator[Answer, None, None], question: AnyQuestion, images: int | None
) -> Generator[Answer, None, None]:
    """The same rows, counted by a progress bar."""
    from tqdm.auto import tqdm

    prompts = 1 if question.templates is None else len(question.templates)
    total = None if images is None else images * prompts
    with closing(rows):
        yield from tqdm(rows, total=total, unit="row")
