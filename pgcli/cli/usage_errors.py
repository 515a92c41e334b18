"""Typer's complaints about a command line, in the house's words."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any

import typer

from pgcli.cli import config
from pgcli.errors import UsageError

#: What a value of an option may be that a command cannot do without.
VALUES = {"--object": "cat", "--to": "coco"}


def to_usage_error(problem: typer.TyperException, words: Sequence[str]) -> UsageError:
    """The complaint about a command line as an error of ours: what is wrong, where that was set,
    and what to type or to look at.
    """
    context, param = getattr(problem, "ctx", None), getattr(problem, "param", None)
    path = context.command_path if context else " ".join(["pgcli", *command_names(words)])
    hint = f"see {path} --help"
    if possible := getattr(problem, "possibilities", None):
        return UsageError(as_clause(str(problem)), hint=f"did you mean {' or '.join(possible)}?")
    if context and param and problem.message:
        said = problem.message.removeprefix("Value error, ")
        if "valid boolean" in said:  # of a flag that the environment sets
            said = "neither true nor false"
        return UsageError(f"{value_origin(context, param)}: {as_clause(said)}", hint=hint)
    said, _, meant = problem.format_message().partition(" Did you mean ")
    if context and param:
        hint = f"{example_command(context, param, words)}; {hint}"
    elif meant:
        names = meant.rstrip("?").replace("'", "")
        hint = f"did you mean pgcli {names}?"
    elif unnamed := [word for word in command_names(words) if os.path.exists(word)]:  # noqa: PTH110
        hint = f"name what is to be done with it: {shlex.join(['pgcli', 'caption', *unnamed])}"
    return UsageError(as_clause(said), hint=hint)


def command_names(words: Sequence[str]) -> Sequence[str]:
    """What stands where a command is named, if anything does."""
    return [word for word in words[:1] if not word.startswith("-")]


def example_command(context: Any, param: Any, words: Sequence[str]) -> str:
    """The command line with what it lacks; where that is what it is about, an example of one."""
    option = max(param.opts, key=len)
    if option not in VALUES:
        return f"for example: {context.command.examples[0].removeprefix('$ ')}"
    return f"for example: {shlex.join(['pgcli', *words, option, VALUES[option]])}"


def as_clause(sentence: str) -> str:
    """A sentence as a message has it, which follows a name and a colon."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def value_origin(context: typer.Context, param: Any) -> str:
    """Where a parameter got its value: an option, a variable of the environment, or a file."""
    source = context.get_parameter_source(param.name)
    key = max(param.opts, key=len)
    if source and source.name == "ENVIRONMENT":
        return str(param.envvar)
    if source and source.name == "DEFAULT_MAP":
        return f"{key.removeprefix('--')} in {config.config_path()}"
    return str(key)
