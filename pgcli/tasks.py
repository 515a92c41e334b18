"""Tasks: the question about each item, and its prompts, filled with the columns of the item."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from pgcli.boxes import NO_FILTER, BoxFilter
from pgcli.errors import UsageError
from pgcli.records import (
    CLASSIFY_COLUMNS,
    COLUMNS,
    EMBED_COLUMNS,
    EXTRA_COLUMNS,
    SCORE_COLUMNS,
    TEXT_EMBED_COLUMNS,
    Fault,
    Item,
    Region,
    Task,
)
from pgcli.text import encodable

#: The default limit on the tokens of an answer.
MAX_NEW_TOKENS: Mapping[Task, int] = {
    "caption": 128,
    "ask": 64,
    "detect": 256,
    "segment": 512,
    "ocr": 512,
}

#: The limit for models that follow instructions.
MAX_INSTRUCTED_TOKENS: Mapping[Task, int] = {"caption": 256, "ask": 256, "ocr": 1024}
MAX_TYPED_TOKENS = 256  # of an answer to a JSON Schema
CAPTION = "Describe this image in one or two sentences, without an introduction."
OCR = "Write down all text in this image exactly as it stands, and nothing else."
#: The names of languages in instructions; another tag is named as it is.
LANGUAGES: Mapping[str, str] = {
    **{"ar": "Arabic", "bn": "Bengali", "cs": "Czech", "da": "Danish", "de": "German"},
    **{"el": "Greek", "en": "English", "es": "Spanish", "fa": "Persian", "fi": "Finnish"},
    **{"fil": "Filipino", "fr": "French", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian"},
    **{"hu": "Hungarian", "id": "Indonesian", "it": "Italian", "iw": "Hebrew"},
    **{"ja": "Japanese", "ko": "Korean", "mi": "Maori", "nl": "Dutch", "no": "Norwegian"},
    **{"pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian"},
    **{"sv": "Swedish", "sw": "Swahili", "te": "Telugu", "th": "Thai", "tr": "Turkish"},
    **{"uk": "Ukrainian", "vi": "Vietnamese", "zh": "Chinese"},
}

#: PaliGemma's languages: those of COCO-35L.
CAPTION_LANGUAGES = tuple(code for code in LANGUAGES if code != "iw")
LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
EmbeddingTask = Literal["embed", "score", "classify"]
#: The templates of labels, unless others are given.
LABEL, TEMPLATES = "{label}", ("a photo of a {label}",)
TOP = 5  # labels of a row
BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_EMPTY = Fault("no_prompt", "The prompt is empty.")


class Absent:
    """The options that only one kind of question has, with their values in the other kind."""

    __slots__ = ()
    choices: tuple[str, ...] = ()
    choices_column: str | None = None
    region: Region | None = None
    objects: tuple[str, ...] = ()
    each: bool = False
    schema: str | None = None
    text_column: str | None = None
    float16: bool = False
    pages: bool = False

    @property
    def refuses_prompts(self) -> bool:
        """Whether prompts are given for all items, so that none may have its own."""
        return False

    @property
    def embeds_texts(self) -> bool:
        """Whether items are texts, not images."""
        return False


@dataclass(frozen=True, slots=True)
class Question(Absent):
    """A task and its prompts, in which `{column}` is replaced by a value of the manifest's row.

    `templates` is None if the manifest has a prompt for each item. `objects` are the names to
    detect: all in one prompt, or with `each` one per prompt; `strict` allows only boxes around
    these as an answer. `box_filter` selects the boxes to keep. `choices` are the candidates for
    every answer; `choices_column` has the candidates of each item. `region` is the part of every
    image that the prompts are about, unless an item has its own. `system` is a text that opens the
    conversation, for models that follow instructions. With a JSON `schema`, which
    `answer_schema.read_schema` made, answers are JSON that fits it.
    """

    task: Task
    templates: tuple[str, ...] | None
    max_new_tokens: int
    objects: tuple[str, ...] = ()
    strict: bool = False
    choices: tuple[str, ...] = ()
    choices_column: str | None = None
    region: Region | None = None
    each: bool = False
    box_filter: BoxFilter = NO_FILTER
    system: str | None = None
    schema: str | None = None

    @property
    def objects_of_prompts(self) -> dict[str, tuple[str, ...]]:
        """The objects in each prompt, as the model gets it."""
        groups = [(name,) for name in self.objects] if self.each else [self.objects]
        return {normalize(box_prompt(self.task, names)): names for names in groups}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""
        extra = {
            "masks": self.task == "segment",
            "choices": self.has_choices,
            "values": self.schema is not None,
        }
        return (*COLUMNS, *(name for name in EXTRA_COLUMNS if extra[name]))

    @property
    def refuses_prompts(self) -> bool:
        return self.task == "ask" and self.templates is not None

    @property
    def has_choices(self) -> bool:
        """Whether answers are picked among choices."""
        return bool(self.choices) or self.choices_column is not None


def caption(
    lang: str = "en", *, max_new_tokens: int | None = None, instructed: bool = False
) -> Question:
    """One caption per image, in the language with this tag (`en`, `pt-BR`).

    With `instructed`, here and in `ask` and `ocr`, it is a question to a model that follows
    instructions, which has other prompts and limits.
    """
    if not LANGUAGE.fullmatch(lang):
        raise UsageError(
            f"<--lang=> must be a language tag, not {lang!r}", hint="for example <--lang en>"
        )
    template = f"caption {lang}"
    if instructed:
        language = LANGUAGES.get(lang.lower(), f"the language with the tag {lang}")
        template = CAPTION if language == "English" else f"{CAPTION} Write in {language}."
    return make_question("caption", [template], max_new_tokens, instructed=instructed)


def ask(
    prompts: Sequence[str] | None,
    *,
    choices: Sequence[str] = (),
    choices_column: str | None = None,
    schema: str | None = None,
    max_new_tokens: int | None = None,
    instructed: bool = False,
) -> Question:
    """One answer per image and prompt. With `prompts` None, each item has its own prompt.

    With `choices`, or a manifest's column of them, the answer is the most probable choice; with a
    `schema`, JSON that fits it. Raises UsageError for a repeated prompt, as image and prompt are
    the key of a row.
    """
    if schema is not None and (choices or choices_column is not None):
        raise UsageError("<--schema=> and choices exclude each other", hint="omit one of them")
    if schema is not None and max_new_tokens is None:
        max_new_tokens = MAX_TYPED_TOKENS
    if choices and choices_column is not None:
        raise UsageError(
            "<--choice=> and <--choices-column=> exclude each other", hint="omit one of them"
        )
    stripped = distinct("choice", choices)
    if len(stripped) == 1:
        raise UsageError(
            "there is only one choice", hint="name two or more: <--choice yes> <--choice no>"
        )
    templates = None if prompts is None else [prompt.strip() for prompt in prompts]
    if templates == []:
        raise UsageError("no prompt to ask", hint='write <--prompt "what is this?">')
    check_distinct("prompt", templates or ())
    question = make_question("ask", templates, max_new_tokens, instructed=instructed)
    return replace(question, choices=stripped, choices_column=choices_column, schema=schema)


def detect(
    objects: Sequence[str],
    *,
    strict: bool = False,
    each: bool = False,
    box_filter: BoxFilter = NO_FILTER,
    max_new_tokens: int | None = None,
) -> Question:
    """Boxes around each of these objects, in one prompt or, with `each`, in a prompt for each one.

    Braces in a name are literal. A `strict` answer consists only of boxes around these objects.
    """
    question = _box_question("detect", objects, max_new_tokens, each=each)
    return replace(question, strict=strict, box_filter=box_filter)


def segment(
    objects: Sequence[str],
    *,
    box_filter: BoxFilter = NO_FILTER,
    max_new_tokens: int | None = None,
) -> Question:
    """Boxes around each of these objects, each with the codes of its mask."""
    return replace(_box_question("segment", objects, max_new_tokens), box_filter=box_filter)


def ocr(*, max_new_tokens: int | None = None, instructed: bool = False) -> Question:
    """The text in the image."""
    template = OCR if instructed else "ocr"
    return make_question("ocr", [template], max_new_tokens, instructed=instructed)


def make_question(
    task: Task,
    templates: Sequence[str] | None,
    max_new_tokens: int | None,
    *,
    instructed: bool = False,
) -> Question:
    """The question; the limit defaults to the task's."""
    default = (MAX_INSTRUCTED_TOKENS if instructed else MAX_NEW_TOKENS)[task]
    limit = default if max_new_tokens is None else max_new_tokens
    return Question(task, None if templates is None else tuple(templates), limit)


def distinct(noun: str, texts: Sequence[str]) -> tuple[str, ...]:
    """The texts without outer blanks. Raises UsageError for an empty or repeated one."""
    stripped = tuple(map(normalize, texts))
    if "" in stripped:
        raise UsageError(f"a {noun} is empty", hint=f"write a text, or remove this {noun}")
    check_distinct(noun, stripped)
    return stripped


def check_distinct(noun: str, texts: Sequence[str]) -> None:
    """Raise UsageError for a repeated text."""
    for text in texts:
        if texts.count(text) > 1:
            raise UsageError(f"the {noun} {text!r} is given twice", hint="remove one of the two")


def check_max_new_tokens(question: Question, max_answer_tokens: int) -> None:
    """Raise UsageError if the longest answer leaves the model no slots for a prompt."""
    if question.max_new_tokens > max_answer_tokens and not question.has_choices:
        raise UsageError(
            f"<--max-new-tokens {question.max_new_tokens}> leaves this model no room for a prompt",
            hint=f"use <--max-new-tokens {max_answer_tokens}> or less",
        )


def normalize(prompt: str) -> str:
    """The prompt as the model gets it: without outer blanks and newlines, encodable."""
    return encodable(prompt).strip()


def box_prompt(task: Task, objects: Sequence[str]) -> str:
    """The prompt for boxes around these objects."""
    return f"{task} {' ; '.join(objects)}"


def _box_question(
    task: Literal["detect", "segment"],
    objects: Sequence[str],
    max_new_tokens: int | None,
    *,
    each: bool = False,
) -> Question:
    names = [name.strip() for name in objects]
    if not names:
        raise UsageError("no object to look for", hint="write <--object cat>")
    for name in names:
        if not name or any(mark in name for mark in ",;\n\r"):
            parts = [part.strip() for part in re.split(r"[,;\n\r]", name) if part.strip()]
            options = " ".join(
                f"<--object {shlex.quote(part)}>" for part in parts or ("cat", "dog")
            )
            problem = "a list" if parts else "empty"
            raise UsageError(
                f"the object {name!r} is {problem}",
                hint=f"name one object, and repeat the option for several: {options}",
            )
    if each:
        check_distinct("object", names)
    groups = [[name] for name in names] if each else [names]
    prompts = [box_prompt(task, group) for group in groups]
    prompts = [text.replace("{", "{{").replace("}", "}}") for text in prompts]  # braces are literal
    question = make_question(task, prompts, max_new_tokens)
    return replace(question, objects=tuple(names), each=each)


@dataclass(frozen=True, slots=True)
class EmbeddingQuestion(Absent):
    """What to compute from images, or from texts, without a prompt.

    `score` compares each image with the `texts`, or with the text in the column `text_column` of
    the manifest's row. `classify` finds the `top` most probable `labels`, each inserted into the
    `label_templates`. `embed` embeds the `texts` and the lines of `texts_file`, or images if there
    are none; with `float16`, embeddings have that precision. `raw_text` keeps upper case and
    punctuation even if the checkpoint was trained without them. With `pages`, the embedding of an
    image is a list of vectors, in which every `pool` similar ones are merged.
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
    pages: bool = False
    pool: int | None = None

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
    pool: int | None = None,
) -> EmbeddingQuestion:
    """The embedding of each image, or of each of these texts and of each line of a file."""
    if raw_text and not (texts or texts_file):
        raise UsageError("<--raw-text> applies to texts only", hint="omit it")
    return EmbeddingQuestion(
        "embed",
        texts=tuple(texts),
        texts_file=texts_file,
        float16=float16,
        raw_text=raw_text,
        pool=pool,
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
    return EmbeddingQuestion(
        "classify",
        labels=distinct("label", labels),
        label_templates=chosen,
        top=top,
        raw_text=raw_text,
    )


def template_columns(question: AnyQuestion) -> tuple[str, ...]:
    """The manifest columns in the prompts, each once, in the order of their first use."""
    names = (
        match[1] for template in question.templates or () for match in BRACES.finditer(template)
    )
    return tuple(dict.fromkeys(name for name in names if name is not None))


def rows_per_image(question: AnyQuestion) -> int | None:
    """The number of prompts of each item; None if prompts with columns may be equal."""
    if question.templates is None:
        return 1
    count = len(question.templates)
    return count if count == 1 or not template_columns(question) else None


def with_prompts(items: Iterable[Item], question: AnyQuestion) -> Iterator[Item]:
    """The items with their prompts as the model gets them, their choices and regions.

    Equal prompts of one item are asked once; an empty one is an error of the item. Raises
    UsageError for an item without a column that its prompt names, and for an item without a prompt.
    """
    for item in items:
        if question.templates is None:
            prompts = item.prompts
        else:
            prompts = tuple(render(template, item) for template in question.templates)
        if not prompts:
            raise UsageError(
                f"{item.id} has no prompt",
                hint="write <--prompt TEXT>, or name the manifest's column with <--prompt-column=>",
            )
        prompts = tuple(dict.fromkeys(map(normalize, prompts)))
        is_empty = isinstance(question, Question) and "" in prompts
        yield replace(
            item,
            prompts=prompts,
            fault=item.fault or (_EMPTY if is_empty else None),
            choices=question.choices or tuple(map(normalize, item.choices)),
            region=question.region or item.region,
        )


def render(template: str, item: Item) -> str:
    """The template with the item's values, which are plain text: braces in them stay."""

    def replacement(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]  # a doubled brace is one brace
        if name not in item.fields:
            raise UsageError(
                f"the prompt names a column {name!r} that {item.id} does not have",
                hint=f"it has: {', '.join(item.fields) or 'none'}; a literal brace is doubled",
            )
        return format_value(item.fields[name], column=name, item=item)

    return BRACES.sub(replacement, template)


def format_value(value: Any, *, column: str, item: Item) -> str:
    """A manifest value as text in a prompt; null is empty text, as in CSV."""
    if value is None:
        return ""
    if isinstance(value, str | int | float | Decimal | date | time):
        return str(value)
    raise UsageError(
        f"the column {column!r} of {item.id} holds {type(value).__name__}, not text or a number",
        hint="a prompt can only be filled from columns of text or numbers",
    )
