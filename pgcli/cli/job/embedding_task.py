"""Tasks of two towers and classifiers: embed, score and classify."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pgcli.checkpoints.find import DEMO_TOWERS, Checkpoint
from pgcli.checkpoints.model_description import read_description
from pgcli.cli.job.file_settings import file_settings
from pgcli.cli.options import ModelOptions
from pgcli.embedding.abilities import check_question
from pgcli.errors import UsageError
from pgcli.pipeline import Ask
from pgcli.tasks import EmbeddingQuestion

if TYPE_CHECKING:
    from pgcli.embedding.engine import EmbeddingEngine


@dataclass(frozen=True)
class EmbeddingTask:
    """A question that is answered with vectors of images and texts."""

    question: EmbeddingQuestion
    default_model: ClassVar[str] = DEMO_TOWERS
    knows: ClassVar[str] = "drawings of shapes and their captions"
    real_model: ClassVar[str] = "--model google/siglip-base-patch16-224"

    def check(self, options: ModelOptions, folder: Path | None) -> None:
        """Raise for options of generated answers, and for a model of another kind."""
        for name, is_given in (
            ("--adapter", options.adapter is not None),
            ("--quantize", options.quantize != "none"),
        ):
            if is_given:
                raise UsageError(
                    f"{name} is for models that answer with text", hint=f"leave {name} out"
                )
        if folder is not None:
            check_question(self.question, options.model or DEMO_TOWERS, read_description(folder))

    def settings(self) -> dict[str, object]:
        question = self.question
        return {
            "texts": question.texts,
            "texts_file": file_settings(question.texts_file),
            "text_column": question.text_column,
            "labels": question.labels,
            "templates": question.label_templates,
            "top": question.top,
            "raw_text": question.raw_text,
            "dtype_out": "float16" if question.float16 else "float32",
        }

    def default_settings(self) -> dict[str, object]:
        return {}

    def facts(self) -> Iterator[tuple[str, str]]:
        question = self.question
        for text in question.texts:
            yield "text", text
        if question.text_column is not None:
            yield "text", f"the manifest's {question.text_column!r}"
        for label in question.labels:
            yield "label", label
        for template in question.label_templates:
            yield "template", template

    def notices(self, options: ModelOptions) -> Iterator[tuple[str, str]]:
        return iter(())

    def load(
        self, checkpoint: Checkpoint, adapter: Checkpoint | None, options: ModelOptions
    ) -> EmbeddingEngine:
        check_question(self.question, checkpoint.name, read_description(checkpoint.folder))
        from pgcli.embedding.loader import load  # imports torch, which takes a second

        return load(
            checkpoint,
            device=options.device,
            dtype=options.dtype,
            batch_size=options.batch_size,
        )

    def model_settings(self, engine: EmbeddingEngine) -> dict[str, object]:
        return {"embedding_dim": engine.embedding_dim} if self.question.task == "embed" else {}

    def stage(self, engine: EmbeddingEngine, should_stop: Callable[[], bool]) -> Ask:
        """The function that encodes decoded images and makes their rows."""
        from pgcli.embedding.answers import EmbeddingAnswers

        return partial(EmbeddingAnswers(engine, self.question).ask, should_stop=should_stop)

    def model_facts(self, engine: EmbeddingEngine) -> Iterator[tuple[str, str]]:
        if self.question.task == "embed":
            of = "the mean of the patches' features" if engine.kind == "paligemma" else "pooled"
            yield "embeddings", f"{engine.embedding_dim:,} values, {of}, with a length of 1"
