"""Typer's complaints about a command line, in the house's words."""

from __future__ import annotations

from typing import Any

import typer

from pgcli.cli import settings
from pgcli.errors import UsageError


def in_our_words(problem: typer.TyperException) -> UsageError:
    """The complaint as an error of ours: what is wrong, where that was set, and what to look at."""
    context, param = getattr(problem, "ctx", None), getattr(problem, "param", None)
    hint = f"see {context.command_path if context else 'pgcli'} --help"
    if possible := getattr(problem, "possibilities", None):
        return UsageError(lowered(str(problem)), hint=f"did you mean {' or '.join(possible)}?")
    if context and param and problem.message:
        said = problem.message.removeprefix("Value error, ")
        if "valid boolean" in said:  # of a flag that the environment sets
            said = "neither true nor false"
        return UsageError(f"{origin(context, param)}: {lowered(said)}", hint=hint)
    said, _, meant = problem.format_message().partition(" Did you mean ")
    return UsageError(lowered(said), hint=f"did you mean {meant}" if meant else hint)


def lowered(sentence: str) -> str:
    """A sentence as a message has it, which follows a name and a colon."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def origin(context: typer.Context, param: Any) -> str:
    """Where a parameter got its value: an option, a variable of the environment, or a file."""
    source = context.get_parameter_source(param.name)
    key = max(param.opts, key=len)
    if source and source.name == "ENVIRONMENT":
        return str(param.envvar)
    if source and source.name == "DEFAULT_MAP":
        return f"{key.removeprefix('--')} in {settings.file()}"
    return str(key)
