"""The question of a run, and the kind of model that answers it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import (
    DEMO,
    DEMO_TOWERS,
    FETCH_DECODER,
    Checkpoint,
    find,
    folder_of,
    own_mask_decoder,
)
from pgcli.checkpoints.model_description import read_description, read_kind
from pgcli.errors import ModelUnavailable, UsageError
from pgcli.records import error_answer
from pgcli.run.workers.answer import AnswerFn, Ask, rows_in_order
from pgcli.tasks import EmbeddingQuestion, Question, check_max_new_tokens
from pgcli.towers.abilities import check_kind, check_question

if TYPE_CHECKING:
    from pgcli.checkpoints.hub import DownloadProgress
    from pgcli.run.request import RunRequest

#: What each built-in model knows, and the option that names a real one.
KNOWS = {
    DEMO: ("drawings of coloured shapes", "<--model google/paligemma2-3b-mix-224>"),
    DEMO_TOWERS: (
        "drawings of shapes and their captions",
        "<--model google/siglip-base-patch16-224>",
    ),
}


def built_in_model(request: RunRequest) -> str:
    """The built-in model that answers without `--model`."""
    return DEMO if isinstance(request.question, Question) else DEMO_TOWERS


def model_name(request: RunRequest) -> str:
    """The name of the run's model."""
    model = request.model.model
    return built_in_model(request) if model is None else model


def check_model(request: RunRequest) -> None:
    """Raise for an unusable model, adapter or mask decoder, without downloading or loading it."""
    folder = folder_of(model_name(request))
    if folder is not None:
        check_checkpoint(request, model_name(request), folder)
    if request.model.adapter is not None:
        folder_of(request.model.adapter, "adapter")
    check_mask_decoder(request.mask_decoder)


def check_checkpoint(request: RunRequest, name: str, folder: Path) -> None:
    """Raise UsageError or InvalidCheckpoint if a checkpoint cannot answer the question."""
    question = request.question
    if isinstance(question, EmbeddingQuestion):
        check_question(question, name, read_description(folder))
        return
    if (kind := read_kind(folder)) is not None:
        check_kind(question.task, name, kind)
    check_max_new_tokens(question, read_config(folder).max_answer_tokens)


def check_mask_decoder(file: str | None) -> None:
    """Raise UsageError or ModelUnavailable if the mask decoder is not a local file."""
    if file is None:
        return
    if "://" in file:
        raise UsageError(
            f"the mask decoder must be a local file, not {file}",
            hint=f"download it first: {FETCH_DECODER}",
        )
    if not Path(file).is_file():
        raise ModelUnavailable(
            f"there is no mask decoder {file}", hint=f"download it: {FETCH_DECODER}"
        )


def find_checkpoints(
    request: RunRequest, progress: DownloadProgress | None = None
) -> tuple[Checkpoint, Checkpoint | None]:
    """Find the model and its adapter; missing files are downloaded."""
    options = request.model
    checkpoint = find(model_name(request), options.revision, progress=progress)
    check_checkpoint(request, checkpoint.name, checkpoint.folder)
    adapter = None
    if options.adapter is not None and isinstance(request.question, Question):
        adapter = find(options.adapter, kind="adapter", progress=progress)
    return checkpoint, adapter


def load_engine(
    request: RunRequest, checkpoint: Checkpoint, adapter: Checkpoint | None, device: str
) -> Any:
    """Load the model on a device. It imports torch, which takes a second."""
    options = request.model
    if isinstance(request.question, EmbeddingQuestion):
        from pgcli.towers.loader import open_towers as load_towers

        engine: Any = load_towers(
            checkpoint, device=device, dtype=options.dtype, batch_size=options.batch_size
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


def embedding_dim(request: RunRequest, engine: Any) -> int | None:
    """The length of the embeddings in rows."""
    return engine.embedding_dim if request.question.task == "embed" else None


def model_facts(request: RunRequest, engine: Any) -> Iterator[tuple[str, str]]:
    """Facts about the model for the summary."""
    question = request.question
    if question.task == "embed":
        pooling = "the mean of the patches' features" if engine.kind == "paligemma" else "pooled"
        yield "embeddings", f"{engine.embedding_dim:,} values, {pooling}, L2-normalised"
    has_texts = isinstance(question, EmbeddingQuestion) and (
        question.needs_texts or question.labels
    )
    if has_texts and not engine.adds_eos:
        yield "texts", "end with the end token, which the checkpoint's tokenizer does not add"


def notices(request: RunRequest) -> Iterator[tuple[str, str]]:
    """Notices before a run about the model and the question, each with a hint."""
    if request.model.model is None:
        name = built_in_model(request)
        knows, option = KNOWS[name]
        yield (
            f"no model is named: using {name}, the built-in model, which knows only {knows}",
            f"for other images, name a model: {option}",
        )
    if request.question.task == "segment" and request.mask_decoder is None:
        folder = folder_of(model_name(request))
        if folder is None or own_mask_decoder(folder) is None:
            yield (
                "masks stay codes, as no decoder is named: --mask-decoder FILE turns them into "
                "pixels",
                f"the decoder that PaliGemma was trained with: {FETCH_DECODER}",
            )
