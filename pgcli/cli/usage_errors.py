"""Typer's errors about a command line, converted to UsageError with a hint."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

import typer

from pgcli.cli.suggestions import suggest_option, suggest_value
from pgcli.errors import UsageError

#: Example values of required options.
EXAMPLE_VALUES = {"--object": "cat", "--to": "coco"}


def to_usage_error(problem: typer.TyperException, words: Sequence[str]) -> UsageError:
    """The error with a message that names the option, variable or file, and a hint that says what
    to type or to read.
    """
    context, param = getattr(problem, "ctx", None), getattr(problem, "param", None)
    path = context.command_path if context else " ".join(["pgcli", *command_names(words)])
    hint = f"see {path} --help"
    if (name := getattr(problem, "option_name", None)) and context:
        meant = suggest_option(name, context, words)
        return UsageError(as_clause(problem.message), hint=meant or hint)
    if context and param and problem.message:
        message = problem.message.removeprefix("Value error, ")
        if "valid boolean" in message:  # of a flag that the environment sets
            message = "neither true nor false"
        meant = suggest_value(param, message)
        where = value_origin(context, param)
        return UsageError(f"{where}: {as_clause(message)}", hint=meant or hint)
    message, _, suggestion = problem.format_message().partition(" Did you mean ")
    if context and param:
        hint = f"{example_command(context, param, words)}; {hint}"
    elif suggestion:
        names = suggestion.rstrip("?").replace("'", "")
        hint = f"did you mean pgcli {names}?"
    elif paths := [word for word in command_names(words) if os.path.exists(word)]:  # noqa: PTH110
        hint = f"name a command first: {shlex.join(['pgcli', 'caption', *paths])}"
    return UsageError(as_clause(message), hint=hint)


def command_names(words: Sequence[str]) -> Sequence[str]:
    """The first word if it is not an option: the name of a command."""
    return [word for word in words[:1] if not word.startswith("-")]


def example_command(context: Any, param: Any, words: Sequence[str]) -> str:
    """The command line with the missing option, or an example if an argument is missing."""
    option = max(param.opts, key=len)
    if option not in EXAMPLE_VALUES:
        return f"for example: {context.command.examples[0].removeprefix('$ ')}"
    return f"for example: {shlex.join(['pgcli', *words, option, EXAMPLE_VALUES[option]])}"


def as_clause(sentence: str) -> str:
    """The sentence without capital and full stop, to follow a name and a colon."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def value_origin(context: typer.Context, param: Any) -> str:
    """Where a parameter's value comes from: an option, a variable, or the configuration file."""
    source = context.get_parameter_source(param.name)
    key = max(param.opts, key=len)
    if source and source.name == "ENVIRONMENT":
        return str(param.envvar)
    if source and source.name == "DEFAULT_MAP":
        return f"{key.removeprefix('--')} in {context.obj.config_file}"
    return str(key)
