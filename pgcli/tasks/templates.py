"""Fills prompt templates with the columns of each item."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from typing import Any

from pgcli.errors import UsageError
from pgcli.records import Fault, Item
from pgcli.tasks.embedding import AnyQuestion
from pgcli.tasks.question import Question, normalize

BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}")
_EMPTY = Fault("no_prompt", "The prompt is empty.")


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
