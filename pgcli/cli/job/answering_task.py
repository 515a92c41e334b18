"""Tasks that PaliGemma answers with text: caption, ask, detect, segment and ocr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import (
    DEMO,
    FETCH_DECODER,
    Checkpoint,
    folder_of,
    own_mask_decoder,
)
from pgcli.checkpoints.model_description import read_kind
from pgcli.cli.job.file_settings import file_settings
from pgcli.cli.options import AnsweringOptions, ModelOptions
from pgcli.embedding.abilities import check_kind
from pgcli.errors import ModelUnavailable, UsageError
from pgcli.pipeline import Ask
from pgcli.tasks import Question, check_max_new_tokens

if TYPE_CHECKING:
    from pgcli.engine.engine import InferenceEngine


@dataclass(frozen=True)
class AnsweringTask:
    """A question that is answered with text, and how tokens are sampled."""

    question: Question
    options: AnsweringOptions
    mask_decoder: str | None = None
    default_model: ClassVar[str] = DEMO
    knows: ClassVar[str] = "drawings of coloured shapes"
    real_model: ClassVar[str] = "--model google/paligemma-3b-mix-224"

    def check(self, options: ModelOptions, folder: Path | None) -> None:
        """Raise for a model, an adapter or a mask decoder that cannot be used."""
        if folder is not None:
            self._check_model(options.model or DEMO, folder)
        if options.adapter is not None:
            folder_of(options.adapter, "adapter")
        check_mask_decoder(self.mask_decoder)

    def _check_model(self, name: str, folder: Path) -> None:
        if (kind := read_kind(folder)) is not None:
            check_kind(self.question.task, name, kind)
        check_max_new_tokens(self.question, read_config(folder).max_answer_tokens)

    def settings(self) -> dict[str, object]:
        question, options = self.question, self.options
        return {
            "prompts": question.templates,
            "max_new_tokens": question.max_new_tokens,
            "mask_decoder": file_settings(self.mask_decoder),
            "temperature": options.temperature,
            "top_p": options.top_p,
            "top_k": options.top_k,
            "seed": options.seed,
            "alternatives": question.alternatives,
            "token_logprobs": question.token_logprobs,
            "region": question.region,
            "objects": question.objects,
            "strict": question.strict,
            "min_score": question.box_filter.min_score,
            "min_confidence": question.box_filter.min_confidence,
            "nms": question.box_filter.nms,
            "choices": question.choices,
            "choices_column": question.choices_column,
        }

    def default_settings(self) -> dict[str, object]:
        return DEFAULT.settings()

    def facts(self) -> Iterator[tuple[str, str]]:
        question = self.question
        for prompt in question.templates or ("the manifest's own",):
            yield "prompt", prompt
        if question.choices:
            yield "choices", ", ".join(question.choices)
        if question.choices_column is not None:
            yield "choices", f"the manifest's {question.choices_column!r}"
        if question.strict:
            yield "answers", "whole boxes around these objects only"
        if question.box_filter:
            limits = asdict(question.box_filter).items()
            given = [f"{name.replace('_', '-')} {x:g}" for name, x in limits if x is not None]
            yield "boxes", ", ".join(given)
        if question.region is not None:
            yield "region", ",".join(f"{side:g}" for side in question.region)
        if self.mask_decoder is not None:
            yield "mask decoder", self.mask_decoder

    def notices(self, options: ModelOptions) -> Iterator[tuple[str, str]]:
        sampling = self.options
        if sampling.temperature == 0 and (sampling.top_p < 1 or sampling.top_k):
            yield "--top-p and --top-k change nothing without a --temperature", ""
        if self.question.has_choices and (sampling.temperature or sampling.max_new_tokens):
            yield "--temperature and --max-new-tokens change nothing where answers are choices", ""
        if self.question.task == "segment" and not self._has_mask_decoder(options):
            yield (
                "masks stay codes, as no decoder is named: --mask-decoder FILE turns them into "
                "pixels",
                f"the decoder that PaliGemma was trained with: {FETCH_DECODER}",
            )

    def _has_mask_decoder(self, options: ModelOptions) -> bool:
        folder = folder_of(options.model or DEMO)
        is_own = folder is not None and own_mask_decoder(folder) is not None
        return self.mask_decoder is not None or is_own

    def load(
        self, checkpoint: Checkpoint, adapter: Checkpoint | None, options: ModelOptions
    ) -> InferenceEngine:
        self._check_model(checkpoint.name, checkpoint.folder)
        # these import torch, which takes a second
        from pgcli.engine.loader import load
        from pgcli.engine.memory import new_slots

        engine = load(
            checkpoint,
            adapter=adapter,
            mask_decoder_file=None if self.mask_decoder is None else Path(self.mask_decoder),
            device=options.device,
            dtype=options.dtype,
            batch_size=options.batch_size,
            quantize=options.quantize,
            max_new_tokens=new_slots(self.question),
        )
        engine.starts_small = engine.is_large
        return engine

    def model_settings(self, engine: InferenceEngine) -> dict[str, object]:
        return {}

    def stage(self, engine: InferenceEngine, should_stop: Callable[[], bool]) -> Ask:
        """The function that answers decoded images with the question and sampling options."""
        from pgcli.engine.sampler import SamplingParams

        options = self.options
        sampling = SamplingParams(
            temperature=options.temperature,
            top_p=options.top_p,
            top_k=options.top_k,
            seed=options.seed,
        )
        return partial(
            engine.ask, question=self.question, sampling=sampling, should_stop=should_stop
        )

    def model_facts(self, engine: InferenceEngine) -> Iterator[tuple[str, str]]:
        return iter(())


#: A task whose settings are the defaults.
DEFAULT = AnsweringTask(Question("caption", None, 0), AnsweringOptions())


def check_mask_decoder(file: str | None) -> None:
    """Raise UsageError or ModelUnavailable if the mask decoder is not a file on this machine."""
    if file is None:
        return
    if "://" in file:
        raise UsageError(f"{file} is an address", hint=f"download it first: {FETCH_DECODER}")
    if not Path(file).is_file():
        raise ModelUnavailable(f"there is no file {file}", hint=f"fetch it: {FETCH_DECODER}")
