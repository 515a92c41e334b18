"""Questions for two towers and classifiers: embeddings, scores of texts, labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pgcli.errors import UsageError
from pgcli.records import (
    CLASSIFY_COLUMNS,
    EMBED_COLUMNS,
    SCORE_COLUMNS,
    TEXT_EMBED_COLUMNS,
)
from pgcli.tasks.question import Absent, Question, distinct

EmbeddingTask = Literal["embed", "score", "classify"]
LABEL = "{label}"
TEMPLATES = ("a photo of a {label}",)  # unless others are given
TOP = 5  # labels of a row


@dataclass(frozen=True, slots=True)
class EmbeddingQuestion(Absent):
    """What to compute from images, or from texts, without a prompt.

    `score` compares each image with the `texts`, or with the text in the column `text_column` of
    the manifest's row. `classify` finds the `top` most probable `labels`, each inserted into the
    `label_templates`. `embed` embeds the `texts` and the lines of `texts_file`, or images if there
    are none; with `float16`, embeddings have that precision. `raw_text` keeps upper case and
    punctuation even if the checkpoint was trained without them.
    """

    task: EmbeddingTask
    texts: tuple[str, ...] = ()
    texts_file: str | None = None
    text_column: str | None = None
    labels: tuple[str, ...] = ()
    label_templates: tuple[str, ...] = ()
    top: int = TOP
    float16: bool = False
    raw_text: bool = False

    @property
    def embeds_texts(self) -> bool:
        return self.task == "embed" and bool(self.texts or self.texts_file)

    @property
    def templates(self) -> tuple[str, ...] | None:
        """One empty prompt for each image; None if each item has its own text."""
        return None if self.text_column is not None or self.embeds_texts else ("",)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""
        if self.task == "embed":
            return TEXT_EMBED_COLUMNS if self.embeds_texts else EMBED_COLUMNS
        return SCORE_COLUMNS if self.task == "score" else CLASSIFY_COLUMNS

    @property
    def label_texts(self) -> list[list[str]]:
        """For each label, the templates with the label inserted."""
        templates = self.label_templates or TEMPLATES
        return [[template.replace(LABEL, label) for template in templates] for label in self.labels]

    @property
    def needs_texts(self) -> bool:
        """Whether texts are encoded, whatever the checkpoint."""
        return self.embeds_texts or self.task == "score"


AnyQuestion: TypeAlias = "Question | EmbeddingQuestion"


def embed(
    texts: Sequence[str] = (),
    *,
    texts_file: str | None = None,
    float16: bool = False,
    raw_text: bool = False,
) -> EmbeddingQuestion:
    """The embedding of each image, or of each of these texts and of each line of a file."""
    if raw_text and not (texts or texts_file):
        raise UsageError("<--raw-text> applies to texts only", hint="omit it")
    return EmbeddingQuestion(
        "embed", texts=tuple(texts), texts_file=texts_file, float16=float16, raw_text=raw_text
    )


def score(
    texts: Sequence[str] = (), *, text_column: str | None = None, raw_text: bool = False
) -> EmbeddingQuestion:
    """How well each text describes each image.

    With `text_column`, how well the text of each row of a manifest describes its image. Raises
    UsageError unless exactly one of the two is given, and for a repeated text.
    """
    if texts and text_column is not None:
        raise UsageError(
            "<--text=> and <--text-column=> exclude each other", hint="omit one of them"
        )
    if not texts and text_column is None:
        raise UsageError(
            "no text to score",
            hint='write <--text "a red car">; or <--text-column NAME>, if a manifest has texts',
        )
    return EmbeddingQuestion(
        "score", texts=distinct("text", texts), text_column=text_column, raw_text=raw_text
    )


def classify(
    labels: Sequence[str] = (),
    *,
    templates: Sequence[str] = (),
    top: int = TOP,
    raw_text: bool = False,
) -> EmbeddingQuestion:
    """The most probable of these labels for each image; by default, of the checkpoint's own.

    Raises UsageError for a template without `{label}`, and for a repeated text.
    """
    chosen = distinct("template", templates)
    for template in chosen:
        if LABEL not in template:
            raise UsageError(
                f"the template {template!r} has no {LABEL}",
                hint='for example <--template "a photo of a {label}">',
            )
    if top < 1:
        raise UsageError(f"<--top=> must be at least 1, not {top}", hint=f"the default is {TOP}")
    return EmbeddingQuestion(
        "classify",
        labels=distinct("label", labels),
        label_templates=chosen,
        top=top,
        raw_text=raw_text,
    )
