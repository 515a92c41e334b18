"""A task with its options: the question about every image of a run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pgcli.boxes import NO_FILTER, BoxFilter, parse_region
from pgcli.errors import UsageError
from pgcli.records import COLUMNS, EXTRA_COLUMNS, Region, Task
from pgcli.text import encodable

#: The default limit on the tokens of an answer.
MAX_NEW_TOKENS: Mapping[Task, int] = {
    "caption": 128,
    "ask": 64,
    "detect": 256,
    "segment": 512,
    "ocr": 512,
}

LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")


class Absent:
    """The options that only one kind of question has, with their values in the other kind."""

    __slots__ = ()
    choices: tuple[str, ...] = ()
    choices_column: str | None = None
    region: Region | None = None
    objects: tuple[str, ...] = ()
    each: bool = False
    text_column: str | None = None
    float16: bool = False

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
    image that the prompts are about, unless an item has its own.
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

    @property
    def objects_of_prompts(self) -> dict[str, tuple[str, ...]]:
        """The objects in each prompt, as the model gets it."""
        groups = [(name,) for name in self.objects] if self.each else [self.objects]
        return {normalize(box_prompt(self.task, names)): names for names in groups}

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the rows."""
        extra = {"masks": self.task == "segment", "choices": self.has_choices}
        return (*COLUMNS, *(name for name in EXTRA_COLUMNS if extra[name]))

    @property
    def refuses_prompts(self) -> bool:
        return self.task == "ask" and self.templates is not None

    @property
    def has_choices(self) -> bool:
        """Whether answers are picked among choices."""
        return bool(self.choices) or self.choices_column is not None


def caption(lang: str = "en", *, max_new_tokens: int | None = None) -> Question:
    """One caption per image, in the language with this tag (`en`, `pt-BR`)."""
    if not LANGUAGE.fullmatch(lang):
        raise UsageError(
            f"<--lang=> must be a language tag, not {lang!r}", hint="for example <--lang en>"
        )
    return make_question("caption", [f"caption {lang}"], max_new_tokens)


def ask(
    prompts: Sequence[str] | None,
    *,
    choices: Sequence[str] = (),
    choices_column: str | None = None,
    max_new_tokens: int | None = None,
) -> Question:
    """One answer per image and prompt. With `prompts` None, each item has its own prompt.

    With `choices`, or a manifest's column of them, the answer is the most probable choice. Raises
    UsageError for a repeated prompt, as image and prompt are the key of a row.
    """
    if choices and choices_column is not None:
        raise UsageError(
            "<--choice=> and <--choices-column=> exclude each other", hint="omit one of them"
        )
    return replace(
        make_question("ask", _check_templates(prompts), max_new_tokens),
        choices=validate_choices(choices) if choices else (),
        choices_column=choices_column,
    )


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


def ocr(*, max_new_tokens: int | None = None) -> Question:
    """The text in the image."""
    return make_question("ocr", ["ocr"], max_new_tokens)


def make_question(
    task: Task, templates: Sequence[str] | None, max_new_tokens: int | None
) -> Question:
    """The question; the limit defaults to the task's."""
    limit = MAX_NEW_TOKENS[task] if max_new_tokens is None else max_new_tokens
    if limit < 1:
        raise UsageError(
            f"<--max-new-tokens=> must be at least 1, not {limit}",
            hint=f"the default is {MAX_NEW_TOKENS[task]}",
        )
    return Question(task, None if templates is None else tuple(templates), limit)


def with_region(question: Question, region: Any) -> Question:
    """The question about this region of every image; None is all of it.

    Raises UsageError for an invalid region.
    """
    try:
        return replace(question, region=None if region is None else parse_region(region))
    except ValueError as problem:
        raise UsageError(
            f"the region {problem}, not {region!r}", hint="for example (10, 10, 200, 150)"
        ) from problem


def validate_choices(choices: Sequence[str]) -> tuple[str, ...]:
    """The choices without outer blanks. Raises UsageError unless they are two or more, distinct."""
    distinct_choices = distinct("choice", choices)
    if len(distinct_choices) < 2:
        raise UsageError(
            "there is only one choice", hint="name two or more: <--choice yes> <--choice no>"
        )
    return distinct_choices


def distinct(noun: str, texts: Sequence[str]) -> tuple[str, ...]:
    """The texts without outer blanks. Raises UsageError for an empty or repeated one."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise UsageError(
            f"{noun}s must be a list of texts, not {texts!r}", hint=f'{noun}s=["a cat", "a dog"]'
        )
    stripped = tuple(map(normalize, texts))
    if "" in stripped:
        raise UsageError(f"a {noun} is empty", hint=f"write a text, or remove this {noun}")
    for text in stripped:
        if stripped.count(text) > 1:
            raise UsageError(f"the {noun} {text!r} is given twice", hint="remove one of the two")
    return stripped


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


def literal(text: str) -> str:
    """The template that renders to this text."""
    return text.replace("{", "{{").replace("}", "}}")


def box_prompt(task: Task, objects: Sequence[str]) -> str:
    """The prompt for boxes around these objects."""
    return f"{task} {' ; '.join(objects)}"


def _check_templates(prompts: Sequence[str] | None) -> list[str] | None:
    """The prompts, stripped. Raises UsageError for a repeated prompt, or without any."""
    if prompts is None:
        return None
    templates = [prompt.strip() for prompt in prompts]
    if not templates:
        raise UsageError("no prompt to ask", hint='write <--prompt "what is this?">')
    for template in templates:
        if templates.count(template) > 1:
            raise UsageError(
                f"the prompt {template!r} is given twice", hint="remove one of the two"
            )
    return templates


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
        if each and names.count(name) > 1:
            raise UsageError(f"the object {name!r} is given twice", hint="remove one of the two")
    groups = [[name] for name in names] if each else [names]
    prompts = [literal(box_prompt(task, group)) for group in groups]
    question = make_question(task, prompts, max_new_tokens)
    return replace(question, objects=tuple(names), each=each)
