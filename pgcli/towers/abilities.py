"""Which tasks each kind of model can do."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from pgcli.checkpoints.config import ModelDescription
from pgcli.checkpoints.families import ModelKind
from pgcli.errors import UsageError
from pgcli.tasks import CAPTION_LANGUAGES, AnyQuestion, EmbeddingQuestion, Question
from pgcli.text import one_of

MAX_NEAR = 5  # labels that a message suggests
#: The commands that take each kind of model.
ABILITIES: Mapping[ModelKind, tuple[str, ...]] = {
    "paligemma": ("caption", "ask", "detect", "segment", "ocr", "embed"),
    "instruct": ("caption", "ask", "ocr"),
    "multi_vector": ("embed", "search"),
    "two_towers": ("embed", "score", "classify", "search"),
    "vision_tower": ("embed", "search"),
    "classifier": ("classify",),
}
NAMES: Mapping[ModelKind, str] = {
    "paligemma": "PaliGemma",
    "instruct": "Gemma 3",
    "multi_vector": "ColPali",
    "two_towers": "a two-tower model (SigLIP, CLIP)",
    "vision_tower": "a vision tower without a text tower",
    "classifier": "an image classifier",
}


def check_kind(task: str, model: str, kind: ModelKind, *, texts: bool = False) -> None:
    """Raise UsageError for a task that models of this kind cannot do.

    With `texts` the task includes encoding texts.
    """
    if task in ABILITIES[kind] and (kind == "two_towers" or not texts):
        return
    kinds = [
        NAMES[supported]
        for supported, commands in ABILITIES.items()
        if task in commands and (supported == "two_towers" or not texts)
    ]
    what = f"{task} texts" if texts and task == "embed" else task
    raise UsageError(
        f"{model} is {NAMES[kind]}, which cannot {what}",
        hint=f"{task} needs {one_of(kinds)}; this model works with "
        + ", ".join(f"pgcli {command}" for command in ABILITIES[kind]),
    )


def check_instructions(question: AnyQuestion, model: str, *, takes_system: bool) -> None:
    """Raise UsageError for a system text that a model cannot read."""
    if isinstance(question, Question) and question.system is not None and not takes_system:
        raise UsageError(
            f"<--system=> needs a model that was trained on conversations, and {model} was not",
            hint="omit <--system=>, or name such a model: google/gemma-3-4b-it",
        )


def check_language(question: AnyQuestion, kind: ModelKind | None) -> None:
    """Raise UsageError for captions in a language that PaliGemma was not trained with."""
    if kind != "paligemma" or question.task != "caption" or not question.templates:
        return
    lang = question.templates[0].removeprefix("caption ")
    if lang not in CAPTION_LANGUAGES:
        raise UsageError(
            f"<--lang {lang}> is not a language that PaliGemma was trained with",
            hint=f"one of {', '.join(CAPTION_LANGUAGES)}; for a fine-tuned model, "
            f'pgcli ask --prompt "caption {lang}"',
        )


def check_question(question: AnyQuestion, model: str, description: ModelDescription) -> None:
    """Raise UsageError for a question that this model cannot answer."""
    if not isinstance(question, EmbeddingQuestion):
        check_kind(question.task, model, description.kind)
        return
    check_kind(question.task, model, description.kind, texts=question.needs_texts)
    if question.task == "classify":
        check_labels(question, model, description.labels)


def check_labels(question: EmbeddingQuestion, model: str, labels: tuple[str, ...]) -> None:
    """Raise UsageError for missing labels, or labels that a classifier does not have."""
    if not labels:
        if not question.labels:
            raise UsageError(
                f"{model} has no built-in labels", hint="name them: <--label cat> <--label dog>"
            )
        return
    if question.label_templates or question.raw_text:
        option = "<--template=>" if question.label_templates else "<--raw-text>"
        raise UsageError(
            f"{option} needs two towers, but {model} is {NAMES['classifier']}",
            hint=f"omit {option}",
        )
    for label in question.labels:
        if label not in labels:
            near = get_close_matches(label, labels, MAX_NEAR, cutoff=0.5) or labels[:MAX_NEAR]
            more = ", ..." if len(labels) > len(near) else ""
            raise UsageError(
                f"{model} has no label {label!r}",
                hint=f"it has {len(labels):,}: {', '.join(map(repr, near))}{more}",
            )
