"""The model of a run: find it, load it, ask it, and compare it with the model of saved rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.config import read_config, read_description, read_kind
from pgcli.checkpoints.files import total_bytes
from pgcli.checkpoints.find import (
    DEMO,
    DEMO_TOWERS,
    FETCH_DECODER,
    Checkpoint,
    find,
    find_model_config,
    folder_of,
    own_mask_decoder,
)
from pgcli.errors import ModelUnavailable, UsageError
from pgcli.model.config import PaliGemmaConfig
from pgcli.output import FOLDER, load_format, named_format
from pgcli.output.lines import LineFormat
from pgcli.records import error_answer
from pgcli.run.input_rows import AnswerFn, Ask, rows_in_order
from pgcli.run.progress import EngineInfo, RunProgress
from pgcli.run.request import question_of
from pgcli.run.state.record import RunRecord, loaded_model
from pgcli.run.workers.work import EngineSlot, engine_slots
from pgcli.tasks import (
    MAX_INSTRUCTED_TOKENS,
    EmbeddingQuestion,
    check_max_new_tokens,
)
from pgcli.towers.abilities import (
    check_instructions,
    check_kind,
    check_language,
    check_question,
)

if TYPE_CHECKING:
    from pgcli.checkpoints.hub import DownloadProgress
    from pgcli.run.request import RunRequest


def engine_info(request: RunRequest, engine: Any) -> EngineInfo:
    """The facts about a loaded engine for the summary and the record."""
    dim = engine.embedding_dim if request.question.task == "embed" else None
    model = loaded_model(request, engine.label, engine.dtype, dim)
    if request.question.pages:
        model |= engine.form._asdict()
    return EngineInfo(
        engine.label,
        engine.device,
        engine.dtype,
        engine.batch_size,
        model,
        tuple(model_facts(request, engine)),
    )


class RunModel:
    """The model of a run, in this process or in engine processes."""

    checkpoint: Checkpoint
    adapter: Checkpoint | None = None
    engine: Any = None  # set once the model is loaded in this process

    def __init__(self, request: RunRequest, progress: RunProgress):
        self._request, self._progress = request, progress
        self.info: EngineInfo | None = None

    def find(self) -> None:
        """Show notices about the model, then find or download its files.

        Raises ModelUnavailable and InvalidCheckpoint.
        """
        for text, hint in notices(self._request):
            self._progress.say(text, hint)
        # the progress display may show downloads
        downloads = getattr(self._progress.show, "downloads", lambda: None)()
        self.checkpoint, self.adapter = find_checkpoints(self._request, downloads)

    def slots(self, rows: int | None) -> list[EngineSlot]:
        """The engines for so many rows; one for an unknown number (None)."""
        options = self._request.model
        is_empty = options.engines is None and not rows
        if rows is None or is_empty or self._request.question.embeds_texts:
            return [EngineSlot(1)]
        size = total_bytes(self.checkpoint.folder)
        return engine_slots(options.engines, options.device, size, rows=rows)

    def load(self, record: RunRecord | None) -> Any:
        """Load the model. Raises OutputExists if the record has another one."""
        request, progress = self._request, self._progress
        with progress.stage(f"loading {self.checkpoint.name}"):
            engine = load_engine(request, self.checkpoint, self.adapter, request.model.device)
        self.engine, progress.limits = engine, engine.batch_limits.summary
        self.note(engine_info(request, engine), record)
        return engine

    def note(self, info: EngineInfo, record: RunRecord | None) -> None:
        """Note a loaded model, of this process or another one.

        Raises OutputExists if the record has another model.
        """
        if self.info is not None:
            return
        self.info = self._progress.summary.engine = info
        self._progress.summary.loading_seconds = perf_counter() - self._progress.began
        if self._request.model.device == "auto" and info.device == "cpu":
            from pgcli.device.machine import find_gpu_problem

            if (problem := find_gpu_problem()) and not problem.is_intentional:
                reason = f"the CPU is used, not the GPU: {problem.reason}"
                self._progress.say(reason, hint=problem.remedy)
        if record is not None and (state := self._progress.state) is not None:
            compared = {**info.model}
            del compared["dtype_option"]  # the resolved dtype is compared instead
            record.check_model(compared, state.name)


#: What each built-in model knows, and the option that names a real one.
KNOWS = {
    DEMO: ("drawings of coloured shapes", "<--model google/paligemma2-3b-mix-224>"),
    DEMO_TOWERS: (
        "drawings of shapes and their captions",
        "<--model google/siglip-base-patch16-224>",
    ),
}


def check_model(request: RunRequest) -> None:
    """Raise for an unusable model, adapter or mask decoder, without downloading or loading it."""
    folder = folder_of(request.model_name)
    if folder is not None:
        check_checkpoint(request, request.model_name, folder)
    if request.model.adapter is not None:
        folder_of(request.model.adapter, "adapter")
    check_mask_decoder(request.mask_decoder)


def check_checkpoint(request: RunRequest, name: str, folder: Path) -> None:
    """Raise UsageError or InvalidCheckpoint if a checkpoint cannot answer the question."""
    question = request.question
    if isinstance(question, EmbeddingQuestion):
        check_question(question, name, read_description(folder))
        return
    kind = read_kind(folder)
    if kind is not None:
        check_kind(question.task, name, kind)
    check_language(question, kind)
    if kind == "instruct" and question.region is not None:
        raise UsageError(
            f"<--region=> needs PaliGemma, and {name} is Gemma 3, which has no location tokens",
            hint="omit <--region=>, or crop the images",
        )
    takes_system = False
    if kind == "instruct":
        from pgcli.checkpoints.tokenizer import has_conversations  # not for other models' mistakes

        takes_system = has_conversations(folder)
    check_instructions(question, name, takes_system=takes_system)
    check_max_new_tokens(question, read_config(folder).max_answer_tokens)


def for_model(request: RunRequest) -> RunRequest:
    """The request as the model understands it: models that follow instructions get other prompts,
    and ColPali's embeddings are lists of vectors, in Parquet only.

    The kind of the model is in its configuration, which is downloaded if it is not on this machine;
    a dry run downloads nothing, and takes an unknown model for PaliGemma.
    Raises ModelUnavailable, InvalidCheckpoint and UsageError.
    """
    is_embed = isinstance(request.question, EmbeddingQuestion) and request.question.task == "embed"
    may_differ = is_embed or request.question.task in MAX_INSTRUCTED_TOKENS
    if not may_differ or request.model.model is None:
        return request
    folder = find_model_config(
        request.model.model, request.model.revision, download=not request.running.dry_run
    )
    kind = None if folder is None else read_kind(folder)
    if isinstance(request.question, EmbeddingQuestion):
        return for_pages(request) if kind == "multi_vector" else request
    if kind != "instruct":
        return request
    question = question_of(request.command, request.answering, request.sources, instructed=True)
    return replace(request, question=question, instructed=True)


def for_pages(request: RunRequest) -> RunRequest:
    """The request of `embed` for ColPali. Raises UsageError for an output of JSON lines."""
    question, output = request.question, request.output
    assert isinstance(question, EmbeddingQuestion)
    is_stream = output.output == "-"
    is_folder = named_format(output.output) == FOLDER
    if is_stream or (not is_folder and isinstance(load_format(output.output), LineFormat)):
        what = "standard output" if is_stream else output.output
        raise UsageError(
            f"{what} cannot hold the vectors of pages: as JSON they take 1.3 MB a page",
            hint="name a Parquet file, or a folder of them: <-o pages.parquet>, <-o pages/>",
        )
    return replace(request, question=replace(question, pages=True, float16=True))


def page_bytes(request: RunRequest) -> int:
    """About how many bytes the vectors of a page take, without those of its few prompt tokens."""
    folder = find_model_config(request.model_name, request.model.revision, download=False)
    question = request.question
    assert folder is not None
    assert isinstance(question, EmbeddingQuestion)
    config = read_description(folder).config
    assert isinstance(config, PaliGemmaConfig)
    assert config.vector_size is not None
    return 2 * config.vector_size * config.image_tokens // (question.pool or 1)


def check_mask_decoder(file: str | None) -> None:
    """Raise ModelUnavailable if the mask decoder is not a file on this machine."""
    if file is None:
        return
    if not Path(file).is_file():
        raise ModelUnavailable(
            f"there is no mask decoder {file}", hint=f"download it: {FETCH_DECODER}"
        )


def find_checkpoints(
    request: RunRequest, progress: DownloadProgress | None = None
) -> tuple[Checkpoint, Checkpoint | None]:
    """Find the model and its adapter; missing files are downloaded."""
    options = request.model
    checkpoint = find(request.model_name, options.revision, progress=progress)
    check_checkpoint(request, checkpoint.name, checkpoint.folder)
    adapter = None
    if options.adapter is not None:
        adapter = find(options.adapter, kind="adapter", progress=progress)
    return checkpoint, adapter


def load_engine(
    request: RunRequest, checkpoint: Checkpoint, adapter: Checkpoint | None, device: str
) -> Any:
    """Load the model on a device. It imports torch, which takes a second."""
    options = request.model
    if isinstance(request.question, EmbeddingQuestion):
        from pgcli.towers.pages import open_encoder

        engine: Any = open_encoder(
            checkpoint,
            adapter=adapter,
            device=device,
            dtype=options.dtype,
            batch_size=options.batch_size,
        )
    else:
        from pgcli.engine.loader import open_engine
        from pgcli.engine.memory import new_slots

        decoder = request.mask_decoder
        engine = open_engine(
            checkpoint,
            adapter=adapter,
            mask_decoder_file=None if decoder is None else Path(decoder),
            device=device,
            dtype=options.dtype,
            batch_size=options.batch_size,
            quantize=options.quantize,
            max_new_tokens=new_slots(request.question),
        )
        engine.starts_small = engine.is_large
    engine.label = request.model_label or engine.label
    return engine


def answer_function(request: RunRequest, engine: Any, should_stop: Callable[[], bool]) -> AnswerFn:
    """A function that answers decoded images with the loaded model: see `answer.answer`."""
    question = request.question
    if isinstance(question, EmbeddingQuestion):
        from pgcli.towers.answers import EmbeddingAnswers

        ask: Ask = partial(EmbeddingAnswers(engine, question).ask, should_stop=should_stop)
    else:
        from pgcli.engine.sampler import SamplingParams

        options = request.answering
        sampling = SamplingParams(
            options.temperature, options.top_p, options.top_k, seed=options.seed
        )
        ask = partial(engine.ask, question=question, sampling=sampling, should_stop=should_stop)
    refuse = partial(error_answer, task=question.task, model=engine.label)
    return lambda images: rows_in_order(images, ask, refuse, should_stop)


def model_facts(request: RunRequest, engine: Any) -> Iterator[tuple[str, str]]:
    """Facts about the model for the summary."""
    question = request.question
    if question.task == "embed":
        pooling = "the mean of the patches' features" if engine.kind == "paligemma" else "pooled"
        pooling = "a list for each page" if engine.kind == "multi_vector" else pooling
        yield "embeddings", f"{engine.embedding_dim:,} values, {pooling}, L2-normalised"
    has_texts = isinstance(question, EmbeddingQuestion) and (
        question.needs_texts or question.labels
    )
    if has_texts and not engine.adds_eos:
        yield "texts", "end with the end token, which the checkpoint's tokenizer does not add"


def notices(request: RunRequest) -> Iterator[tuple[str, str]]:
    """Notices before a run about the model and the question, each with a hint."""
    if request.model.model is None:
        name = request.built_in_model
        knows, option = KNOWS[name]
        yield (
            f"no model is named: using {name}, the built-in model, which knows only {knows}",
            f"for other images, name a model: {option}",
        )
    if request.question.task == "segment" and request.mask_decoder is None:
        folder = folder_of(request.model_name)
        if folder is None or own_mask_decoder(folder) is None:
            yield (
                "masks stay codes, as no decoder is named: --mask-decoder FILE turns them into "
                "pixels",
                f"the decoder that PaliGemma was trained with: {FETCH_DECODER}",
            )
