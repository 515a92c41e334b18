"""Errors of calls from Python name keywords, where those of commands name options."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

from pgcli.declare import Option, options_of
from pgcli.errors import PgcliError
from pgcli.pipeline.request.options import RECORDS
from pgcli.pipeline.request.questions import COMMANDS

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: The keywords of an engine's methods that are not called as the options are.
OF_ENGINE = {
    "choice": "choices",
    "label": "labels",
    "object": "objects",
    "template": "templates",
    "text": "texts",
}
#: Commands, which stay as they are, and options, each with what may be its value.
OPTION = re.compile(
    r"`[^`]*`|\b(?:pgcli|hf|pip|torchrun|python) [^;,)]*"
    r"|(?<![\w\-'\"/=])(?:--(?P<name>[a-z][a-z-]*[a-z])|(?P<output>-o))\b"
    r"(?: (?P<value>\"[^\"]*\"|[\w.-]*[/.][\w./-]*\w/?|\w+/|[A-Z]+\b|\d[\w.%]*|[a-z]\w+))?"
)


def names_keywords(
    records: Iterable[type] = (), renamed: Mapping[str, str] | None = None
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Has the errors of a function, and of the generator that it returns, name keywords.

    These are the options of answering commands and of the `records`, some of them `renamed`.
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @contextmanager
        def naming() -> Iterator[None]:
            try:
                yield
            except PgcliError as problem:
                options = declared(records)
                texts = (str(problem), problem.hint)
                message, problem.hint = (in_keywords(t, options, renamed or {}) for t in texts)
                problem.args = (message,)
                raise

        def iterated(values: Generator[Any, None, None]) -> Iterator[Any]:
            with naming():
                yield from values

        @wraps(function)
        def call(*values: Arguments.args, **keywords: Arguments.kwargs) -> Result:
            with naming():
                result = function(*values, **keywords)
            return cast(Result, iterated(result)) if isinstance(result, Generator) else result

        return call

    return decorate


def declared(records: Iterable[type]) -> dict[str, Option]:
    """All options by their names."""
    known = (*COMMANDS.values(), *RECORDS, *records)
    return {option.name: option for record in known for option in options_of(record)}


def in_keywords(text: str, options: Mapping[str, Option], renamed: Mapping[str, str]) -> str:
    """The text with `dtype="bfloat16"` in place of `--dtype bfloat16`, and `overwrite=True`."""

    def keyword(match: re.Match[str]) -> str:
        name = "output" if match["output"] else (match["name"] or "").replace("-", "_")
        if name not in options:
            return match[0]
        option, word = options[name], renamed.get(name, name)
        value, choices = match["value"], option.choices
        suffix = "" if value is None else f" {value}"
        if option.kind is bool:
            return f"{word}=True{suffix}"
        is_choice = not callable(choices) and value in choices
        if value is None or (value.isalpha() and value.islower() and not is_choice):
            return word + suffix
        is_literal = value[0] == '"' or value.isupper() or re.fullmatch(r"\d+(\.\d+)?", value)
        return f"{word}={value}" if is_literal else f'{word}="{value}"'

    return OPTION.sub(keyword, text)
