"""A loaded model: it answers questions about images, compares them with texts, and is trained."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy

from pgcli import tasks
from pgcli.api.arguments import (
    Call,
    PathName,
    Source,
    make_call,
    make_items,
    parse_loading,
    source_list,
    without_none,
)
from pgcli.checkpoints.config import read_kind
from pgcli.checkpoints.families import GENERATING
from pgcli.checkpoints.files import ADAPTER_CONFIG
from pgcli.checkpoints.find import DEMO, find
from pgcli.device.machine import decoding_processes
from pgcli.errors import UsageError, called_from_python, naming_keywords
from pgcli.images import ImageDecoder
from pgcli.images.pool import decode_ahead
from pgcli.records import Answer, error_answer
from pgcli.rows import as_saved
from pgcli.run.request import question_of
from pgcli.stores import make_reader
from pgcli.stores.files import read_json
from pgcli.tasks import EmbeddingQuestion
from pgcli.text import encodable
from pgcli.towers.abilities import check_instructions, check_kind, check_labels, check_language

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine
    from pgcli.run.input_rows import Ask
    from pgcli.search.nearest import Hits
    from pgcli.towers.engine import EmbeddingEngine


#: Answers that were not read to their end. They are closed before the interpreter ends: after that,
#: what closes them is gone, and Python would print tracebacks.
UNFINISHED: weakref.WeakSet[Generator[Answer, None, None]] = weakref.WeakSet()
READING = ("fast_decode", "allow_urls", "allow_private_hosts")


@called_from_python
def load(model: PathName = "demo", /, **options: Any) -> Engine:
    """Load a checkpoint folder, a model of the Hub, or `demo` or `demo-towers`, the built-in ones.

    Takes the options of the command line for models and images: `revision`, `adapter`,
    `device`, `dtype`, `quantize`, `batch_size`, `mask_decoder`, `fast_decode`, `allow_urls` and
    `allow_private_hosts`.

    Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
    """
    values = parse_loading({"model": model, **options})
    adapter, mask_decoder = values.get("adapter"), values.get("mask_decoder")
    device, dtype = values.get("device", "auto"), values.get("dtype", "auto")
    quantize, batch_size = values.get("quantize", "none"), values.get("batch_size")
    checkpoint = find(values["model"], values.get("revision"))
    found_adapter = None if adapter is None else find(adapter, kind="adapter")
    reading = {name: values.get(name, False) for name in READING}
    kind = read_kind(checkpoint.folder)
    if kind == "multi_vector":
        raise UsageError(
            f"{checkpoint.name} is ColPali, which pgcli.load does not load",
            hint="pgcli.run('embed', ...) writes a file, and the command pgcli search reads it",
        )
    if kind not in (*GENERATING, None):
        from pgcli.towers.engine import open_towers

        if adapter is not None or mask_decoder is not None or quantize != "none":
            raise UsageError(
                f"{checkpoint.name} does not take adapter, mask_decoder or quantize",
                hint="omit them: only models that generate text take them",
            )
        towers = open_towers(checkpoint, device=device, dtype=dtype, batch_size=batch_size)
        return Engine(towers, **reading)
    from pgcli.engine.loader import open_engine

    loaded = open_engine(
        checkpoint,
        adapter=found_adapter,
        mask_decoder_file=None if mask_decoder is None else Path(mask_decoder),
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        quantize=quantize,
    )
    return Engine(loaded, **reading)


class Engine:
    """A loaded model.

    The methods that answer yield one Answer per image and prompt, in input order; `embed` returns
    an array, `search` its hits. PaliGemma answers with text, by `caption`, `ask`,
    `detect`, `segment` and `ocr`, and embeds images. Two towers embed images and texts, score and
    classify; classifiers classify. A method that the model does not have raises UsageError.

    A source is one of the command line, or images in memory: bytes, Pillow's images, arrays
    and tensors; lists may mix them. An image that cannot be read is an Answer with `error` set;
    the others are answered. The keyword arguments of a method are the options of the command of its
    name, with `batch_size`, `workers` and `progress`; options of other commands raise UsageError.
    """

    def __init__(self, engine: InferenceEngine | EmbeddingEngine, **reading: bool):
        self._engine = engine
        self._reading = {name: reading.get(name, False) for name in READING}

    @property
    def label(self) -> str:
        """Name and revision of the checkpoint, as in the column `model` of the rows."""
        return self._engine.label

    def __repr__(self) -> str:
        engine = self._engine
        return (
            f"<Engine {engine.label}: {engine.device}, {engine.dtype}, "
            f"batches of up to {engine.batch_size:,}>"
        )

    @called_from_python
    def caption(self, source: Source | Iterable[Source], /, **options: Any) -> Iterator[Answer]:
        """One caption per image."""
        return self.answer(make_call("caption", options), source)

    @called_from_python
    def ask(
        self,
        source: Source | Iterable[Source],
        prompt: str | Sequence[str] | None = None,
        /,
        **options: Any,
    ) -> Iterator[Answer]:
        """One answer per image and prompt; without a prompt, the manifest's prompts.

        With `choice`, or a manifest's column of choices, the answer is the most likely choice, and
        `Answer.choices` holds the probability of each.
        """
        return self.answer(make_call("ask", {"prompt": prompt, **options}), source)

    @called_from_python
    def detect(
        self,
        source: Source | Iterable[Source],
        object: str | Sequence[str] | None = None,
        /,
        **options: Any,
    ) -> Iterator[Answer]:
        """One answer per image, with `boxes` around the named objects in pixels.

        `strict` allows only complete boxes around these objects; `each` asks for one object in each
        prompt, an answer per image and object. Boxes below `min_confidence` are dropped.
        """
        return self.answer(make_call("detect", {"object": object, **options}), source)

    @called_from_python
    def segment(
        self,
        source: Source | Iterable[Source],
        object: str | Sequence[str] | None = None,
        /,
        **options: Any,
    ) -> Iterator[Answer]:
        """One answer per image, with `boxes` around the named objects and their `masks`."""
        return self.answer(make_call("segment", {"object": object, **options}), source)

    @called_from_python
    def ocr(self, source: Source | Iterable[Source], /, **options: Any) -> Iterator[Answer]:
        """The text in each image."""
        return self.answer(make_call("ocr", options), source)

    @called_from_python
    def embed(
        self,
        source: Source | Iterable[Source] | None = None,
        /,
        **options: Any,
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
        **options: Any,
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
        **options: Any,
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

    def answer(self, call: Call, source: Any) -> Iterator[Answer]:
        """The answers of a call that `make_call` made."""
        question, engine = call.question, cast(Any, self._engine)
        if isinstance(question, EmbeddingQuestion):
            return self._vector_rows(call, source)
        check_kind(question.task, engine.label, engine.kind)
        if engine.kind == "instruct":
            question = question_of(call.command, call.answering, ("-",), instructed=True)
            call = replace(call, question=question)
        check_language(question, engine.kind)
        check_instructions(question, engine.label, takes_system=engine.takes_system)
        from pgcli.engine.sampler import SamplingParams  # imports torch

        options = call.answering
        sampling = SamplingParams(options.temperature, options.top_p, options.top_k, options.seed)
        batch_size = call.engine.batch_size
        ask = partial(engine.ask, question=question, sampling=sampling, batch_size=batch_size)
        return self._rows(call, source, ask, engine)

    @cached_property
    def _encoder(self) -> EmbeddingEngine:
        """The engine of vectors; of PaliGemma it shares the vision tower."""
        from pgcli.towers.engine import EmbeddingEngine, of_paligemma

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
        from pgcli.run.input_rows import answer_items  # imports pyarrow

        question = call.question
        reading = self._reading
        reader = make_reader(
            allow_urls=reading["allow_urls"], allow_private_hosts=reading["allow_private_hosts"]
        )
        items, total = make_items(source, question, reader)
        decode = partial(
            decode_ahead,
            decoder=ImageDecoder(replace(engine.spec, fast_decode=reading["fast_decode"])),
            workers=call.engine.workers,
            # images of other machines are decoded in processes, however few they are
            total=None if reader else total,
            reader=reader,
            pauses=total is None,
            default_workers=decoding_processes(engine.device),
        )
        refuse = partial(error_answer, task=question.task, model=engine.label)
        prompts = 1 if question.templates is None else len(question.templates)
        rows = saved(
            answer_items(tasks.with_prompts(items, question), decode, ask, refuse),
            None if total is None else total * prompts,
            progress=call.progress,
        )
        UNFINISHED.add(rows)
        return rows


@called_from_python
def train(
    sources: PathName | Iterable[PathName],
    *,
    output: PathName,
    progress: bool = False,
    **options: Any,
) -> TrainingReport:
    """Train as `pgcli train SOURCES -o OUTPUT` does; the same call again resumes the run.

    Options have the names of the command line, with `_` in place of `-`: `model="demo"`,
    `epochs=10`, `freeze=["vision", "projector"]`. `progress` shows progress, evaluations and the
    summary on stderr. Ctrl-C ends after the update in progress and raises KeyboardInterrupt.

    Raises the errors of `pgcli.errors`, each with a `hint` that says what to do.
    """
    from pgcli.api.runs import read_values
    from pgcli.cli.commands.learning import run_training
    from pgcli.training.options import TRAIN_RECORDS, TrainOptions

    names = source_list(sources)
    if not all(isinstance(name, str | os.PathLike) for name in names):
        raise UsageError(
            "train takes the paths of manifests, folders or archives",
            hint="write the rows to a Parquet file: its images may be bytes",
        )
    typed = without_none(options) | {"output": os.fspath(output)}
    with read_values("train", TRAIN_RECORDS, typed, progress=progress) as values:
        run_training(TrainOptions.of([*map(os.fspath, names)], values, typed.keys()))
    folder = Path(output)
    result = (read_json(folder / "run.json") or {}).get("result", {})
    return TrainingReport(
        str(folder),
        result.get("step", 0),
        result.get("best", {}),
        tuple(result.get("unreadable", ())),
        options.get("model"),
        options.get("revision"),
    )


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """A finished training run: its folder, and the number of its updates.

    `best` has the step and the values of the best evaluation, if there were evaluations;
    `unreadable` are the ids of rows that could not be used. An adapter is for the `model` with the
    `revision`; else the folder is the model.
    """

    folder: str
    steps: int
    best: Mapping[str, float]
    unreadable: tuple[str, ...]
    model: str | None
    revision: str | None

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`, one for each update."""
        from pgcli.training.run_files import METRICS, read_metrics

        return read_metrics(Path(self.folder, METRICS))

    def load(self, **options: Any) -> Engine:
        """The best weights as an engine; takes the options of `pgcli.load`."""
        if (Path(self.folder) / ADAPTER_CONFIG).exists():
            options = {"revision": self.revision, "adapter": self.folder, **options}
            return load(self.model or DEMO, **options)
        return load(self.folder, **options)


@atexit.register
def close_unfinished() -> None:
    """Close the unfinished generators of answers, except those that another thread is reading."""
    for answers in [*UNFINISHED]:
        with suppress(ValueError):
            answers.close()


def saved(
    rows: Generator[Answer, None, None], total: int | None, *, progress: bool
) -> Generator[Answer, None, None]:
    """The rows, with the numbers that a file of them has; `progress` shows a bar of the `total`."""
    from tqdm.auto import tqdm

    with naming_keywords(), closing(rows):
        yield from map(as_saved, tqdm(rows, total=total, unit="row", disable=not progress))
