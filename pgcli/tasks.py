"""What is asked of a picture: caption, ask, detect, segment or ocr, and the prompt each makes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time
from decimal import Decimal
from typing import Any, Literal

from pgcli import regions
from pgcli.errors import UsageError
from pgcli.printable import encodable
from pgcli.records import EXTRA_COLUMNS, Item, Region, Task

#: How many tokens an answer may have where the user does not say.
MAX_NEW_TOKENS: Mapping[Task, int] = {
    "caption": 128,
    "ask": 64,
    "detect": 256,
    "segment": 512,
    "ocr": 512,
}

LANGUAGE = re.compile(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*")
BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")


@dataclass(frozen=True, slots=True)
class Question:
    """A task and its prompts, in which `{column}` stands for a value of the manifest's row.

    `templates` is None where each item brings a prompt of its own, from the manifest's column.
    `objects` are what is looked for; `strict` allows no answer but boxes around these.
    `choices` are the candidates for every answer, or the `choices_column` holds an item's own.
    `region` is the part of every picture that the prompts are about, unless items bring their own.
    """

    task: Task
    templates: tuple[str, ...] | None
    max_new_tokens: int
    objects: tuple[str, ...] = ()
    strict: bool = False
    choices: tuple[str, ...] = ()
    choices_column: str | None = None
    region: Region | None = None

    @property
    def refuses_prompts(self) -> bool:
        """Whether prompts were given in words, beside which no item may bring one of its own."""
        return self.task == "ask" and self.templates is not None

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """The columns that rows have for this question on top of what every row has."""
        found = {"masks": self.task == "segment", "choices": self.has_choices}
        return tuple(name for name in EXTRA_COLUMNS if found[name])

    @property
    def has_choices(self) -> bool:
        """Whether answers are picked among candidates."""
        return bool(self.choices) or self.choices_column is not None


def caption(lang: str = "en", *, max_new_tokens: int | None = None) -> Question:
    """One caption per picture, in the language with this tag (`en`, `pt-BR`)."""
    if not LANGUAGE.fullmatch(lang):
        raise UsageError(f"not a language tag: {lang!r}", hint="write --lang en, --lang de")
    return make_question("caption", [f"caption {lang}"], max_new_tokens)


def ask(
    prompts: Sequence[str] | None,
    *,
    choices: Sequence[str] = (),
    choices_column: str | None = None,
    max_new_tokens: int | None = None,
) -> Question:
    """One answer per picture and prompt; None takes each item's own prompt.

    The same prompt twice is refused, as picture and prompt are the key of a row. With `choices`,
    or a manifest's column of them, the answer is the likeliest of these.
    """
    if choices and choices_column is not None:
        raise UsageError(
            "choices are given, and a column of them is named", hint="leave out one of the two"
        )
    return replace(
        _asked(prompts, max_new_tokens),
        choices=validate_choices(choices) if choices else (),
        choices_column=choices_column,
    )


def check_max_new_tokens(question: Question, max_answer_tokens: int) -> None:
    """Raise UsageError where the longest answer would leave the model no room for a prompt."""
    if question.max_new_tokens > max_answer_tokens and not question.has_choices:
        raise UsageError(
            f"answers of {question.max_new_tokens} tokens leave this model no room for a prompt",
            hint=f"--max-new-tokens {max_answer_tokens} at most",
        )


def with_region(question: Question, region: Any) -> Question:
    """The question asked about this part of every picture, about all of it where it is None.

    Raises UsageError for what is no region.
    """
    try:
        return replace(question, region=None if region is None else regions.parse_region(region))
    except ValueError as problem:
        raise UsageError(
            f"the region {region!r} is {problem}", hint="for example (10, 10, 200, 150)"
        ) from problem


def _asked(prompts: Sequence[str] | None, max_new_tokens: int | None) -> Question:
    if prompts is None:
        return make_question("ask", None, max_new_tokens)
    templates = [prompt.strip() for prompt in prompts]
    if not templates:
        raise UsageError("no prompt to ask", hint='write --prompt "what is this?"')
    for template in templates:
        if templates.count(template) > 1:
            raise UsageError(f"the prompt {template!r} is given twice", hint="give it once")
    return make_question("ask", templates, max_new_tokens)


def validate_choices(choices: Sequence[str]) -> tuple[str, ...]:
    """Two candidates or more, none of them empty or twice there; outer blanks count for nothing."""
    if isinstance(choices, str) or not all(isinstance(choice, str) for choice in choices):
        raise UsageError(f"{choices!r} is no list of choices", hint='choices=["yes", "no"]')
    found = tuple(map(normalize, choices))
    if len(found) < 2:
        raise UsageError("one choice, and picking takes two", hint="--choice yes --choice no")
    if "" in found:
        raise UsageError("a choice is empty", hint="a choice is the text of an answer")
    for choice in found:
        if found.count(choice) > 1:
            raise UsageError(f"the choice {choice!r} is given twice", hint="give each once")
    return found


def detect(
    objects: Sequence[str], *, strict: bool = False, max_new_tokens: int | None = None
) -> Question:
    """Boxes around each of these objects, asked for in one prompt; braces in a name are text.

    A `strict` answer consists of boxes around these objects and of nothing else.
    """
    return replace(_box_question("detect", objects, max_new_tokens), strict=strict)


def segment(objects: Sequence[str], *, max_new_tokens: int | None = None) -> Question:
    """Boxes around each of these objects, each with the codes of its mask."""
    return _box_question("segment", objects, max_new_tokens)


def _box_question(
    task: Literal["detect", "segment"], objects: Sequence[str], max_new_tokens: int | None
) -> Question:
    names = [name.strip() for name in objects]
    if not names:
        raise UsageError("no object to look for", hint="write --object cat")
    for name in names:
        if not name or any(mark in name for mark in ";\n\r"):
            raise UsageError(
                f"not the name of one object: {name!r}",
                hint="repeat the option for several: --object cat --object dog",
            )
    prompt = f"{task} " + " ; ".join(names)
    return replace(make_question(task, [literal(prompt)], max_new_tokens), objects=tuple(names))


def ocr(*, max_new_tokens: int | None = None) -> Question:
    """The text that stands in the picture."""
    return make_question("ocr", ["ocr"], max_new_tokens)


def make_question(
    task: Task, templates: Sequence[str] | None, max_new_tokens: int | None
) -> Question:
    """The question, with the task's own limit where none is given."""
    limit = MAX_NEW_TOKENS[task] if max_new_tokens is None else max_new_tokens
    if limit < 1:
        raise UsageError(f"an answer of {limit} tokens", hint="--max-new-tokens takes 1 or more")
    return Question(task, None if templates is None else tuple(templates), limit)


def literal(text: str) -> str:
    """The template that gives this very text."""
    return text.replace("{", "{{").replace("}", "}}")


def columns(question: Question) -> tuple[str, ...]:
    """The manifest columns that the prompts name, each once, in the order of their first use."""
    names = (
        match[1] for template in question.templates or () for match in BRACES.finditer(template)
    )
    return tuple(dict.fromkeys(name for name in names if name is not None))


def with_prompts(items: Iterable[Item], question: Question) -> Iterator[Item]:
    """The items, each with the prompts to be asked of it, as they are sent, and their choices.

    Prompts that two templates make alike for one item are asked once. Raises UsageError at an
    item that lacks a column its prompt names, or that lacks a prompt where it must bring one.
    """
    for item in items:
        if question.templates is None:
            prompts = item.prompts
        else:
            prompts = tuple(render(template, item) for template in question.templates)
        if not prompts:
            raise UsageError(
                f"{item.id} has no prompt",
                hint="write --prompt TEXT, or name the manifest's column with --prompt-column",
            )
        yield replace(
            item,
            prompts=tuple(dict.fromkeys(map(normalize, prompts))),
            choices=question.choices or tuple(map(normalize, item.choices)),
            region=question.region or item.region,
        )


def normalize(prompt: str) -> str:
    """The prompt as it goes to the model: outer blanks and newlines stripped, encodable."""
    return encodable(prompt).strip()


def render(template: str, item: Item) -> str:
    """The template with the item's values in it, as plain text: what a value spells is not read."""

    def put(match: re.Match[str]) -> str:
        if match[1] is None:
            return match[0][0]  # a doubled brace is one brace
        if match[1] not in item.fields:
            raise UsageError(
                f"the prompt names a column {match[1]!r} that {item.id} does not have",
                hint=f"it has: {', '.join(item.fields) or 'none'}; a literal brace is doubled",
            )
        return format_value(item.fields[match[1]], column=match[1], item=item)

    return BRACES.sub(put, template)


def format_value(value: Any, *, column: str, item: Item) -> str:
    """A manifest value as words in a prompt; an empty cell is empty text, as it is in CSV."""
    if value is None:
        return ""
    if isinstance(value, str | int | float | Decimal | date | time):
        return str(value)
    raise UsageError(
        f"the column {column!r} of {item.id} holds {type(value).__name__}, not text or a number",
        hint="a prompt can only be filled from plain columns",
    )
