"""Typer's errors about a command line, converted to UsageError with a hint that can be pasted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from difflib import get_close_matches

import typer

from pgcli.cli.app import DECLARED
from pgcli.errors import UsageError

#: Options that a command is often given and another one has.
OWNERS = {"--prompt": "ask", "--object": "detect", "--text": "score", "--label": "classify"}
#: Example values of required options.
EXAMPLE_VALUES = {"--object": "cat", "--from": "coco", "--to": "txt", "--truth": "truth.csv"}
EXAMPLE_OUTPUTS = {"train": "runs/model"}


def to_usage_error(problem: typer.TyperException, words: Sequence[str]) -> UsageError:
    """The error with a message that names the option, and a hint that says what to type or read."""
    command = next(iter(words), "-")
    hint = help_command = f"see pgcli {f'{command} ' if command in DECLARED else ''}--help"
    message, _, suggestion = problem.format_message().partition(" Did you mean ")
    if name := getattr(problem, "option_name", None):
        message, known = problem.message, getattr(problem, "possibilities", None)
        if close := get_close_matches(name, known or (), n=1, cutoff=0.75):
            hint = f"did you mean {close[0]}?"
        elif known is None:  # an option of this command
            pass
        elif owned := get_close_matches(name, OWNERS, n=1, cutoff=0.75):
            owner = OWNERS[owned[0]]
            right = [word.replace(name, owned[0], 1) for word in words[1:]]
            hint = f"{owner} has {owned[0]}: {shlex.join(['pgcli', owner, *right])}"
    elif suggestion:
        hint = f"did you mean pgcli {suggestion.rstrip('?')}?".replace("'", "")
    elif getattr(problem, "param", None) and command in DECLARED:
        hint = f"for example: {DECLARED[command].example}; {help_command}"
    elif " " in command:
        hint = f"to ask a question: {shlex.join(['pgcli', 'ask', 'photos', '--prompt', command])}"
    elif os.path.exists(command):  # noqa: PTH110 - not a name that Path refuses
        hint = f"name a command first: {shlex.join(['pgcli', 'caption', command])}"
    return UsageError(as_clause(message), hint=hint)


def missing_options(flags: Sequence[str], command: str, words: Sequence[str]) -> UsageError:
    """The error of a command line without some options: the hint completes the line."""
    values = {"--output": EXAMPLE_OUTPUTS.get(command, "rows.jsonl"), **EXAMPLE_VALUES}
    example = ["pgcli", *words, *(word for flag in flags for word in (flag, values[flag]))]
    return missing(f"option {flags[0]!r}", command, shlex.join(example))


def missing(what: str, command: str, example: str = "") -> UsageError:
    """The error of a command line without something that the command needs."""
    example = example or DECLARED[command].example
    return UsageError(f"missing {what}", hint=f"for example: {example}; see pgcli {command} --help")


def as_clause(sentence: str) -> str:
    """The sentence without capital and full stop, to follow a name and a colon."""
    return sentence[:1].lower() + sentence[1:].removesuffix(".")
