"""Errors that the user can fix, and their exit codes.

PgcliError                 1   the base class, not raised itself
├── UsageError             2   an invalid option, source or prompt
│   └── ManifestError      2   a manifest that cannot be read
├── NoInputError           4   no image matched
├── Difference             5   a comparison found a difference
├── ModelUnavailable      10   gated, offline or unknown model
├── OutputInUse           12   another run writes the output
├── OutputExists          13   the output exists, or has other settings or another input
├── OutputFailed          14   the output could not be written
├── TooManyErrors         15   too many error rows
├── TrainingDiverged      15   a loss or a gradient is not finite
├── InvalidCheckpoint     16   invalid, unsafe or unsupported model files
└── NoUsableDevice        17   the device, its dtypes or its memory do not suffice

The number is the exit code of the process. An error of a single image is not an exception but a
`records.Fault`, which its row records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

#: The exit code of a command that did its work, but for rows with errors.
INCOMPLETE = 3


#: An option in a message or a hint: `<--overwrite>` for a flag, `<--shard=>` for an option with a
#: value, `<--device cpu>` with this value.
OPTION = re.compile(r"<(?P<flag>--[a-z][a-z-]*|-o|-k)(?P<no_value>=)?(?: (?P<value>[^<>]+))?>")
SHORT = {"-o": "output", "-k": "k"}


def in_flags(text: str) -> str:
    """The text with options as on the command line: `--device cpu`."""
    return OPTION.sub(lambda option: option[0][1:-1].removesuffix("="), text)


def in_keywords(text: str) -> str:
    """The text with options as in Python: `device="cpu"`."""

    def keyword(option: re.Match[str]) -> str:
        flag, value = option["flag"], option["value"]
        name = SHORT.get(flag) or flag[2:].replace("-", "_")
        if value is None:
            return name if option["no_value"] or flag in SHORT else f"{name}=True"
        is_literal = value[0] == '"' or value.isupper() or re.fullmatch(r"\d+(\.\d+)?", value)
        return f"{name}={value}" if is_literal else f'{name}="{value}"'

    return OPTION.sub(keyword, text)


class PgcliError(Exception):
    """A known error: the message says what happened, `hint` says what to do.

    Both name options as `OPTION` describes. They are spelled as on the command line, and as
    keywords in errors that leave a function that is `called_from_python`, whose
    tracebacks show the hint.
    """

    exit_code = 1
    spell: Callable[[str], str] = staticmethod(in_flags)

    def __init__(self, message: str, *, hint: str = ""):
        super().__init__(message)
        self._hint = hint

    def __str__(self) -> str:
        return self.spell(super().__str__())

    @property
    def hint(self) -> str:
        """What to do."""
        return self.spell(self._hint)


@contextmanager
def naming_keywords() -> Iterator[None]:
    """Errors name keywords of Python, and tracebacks show their hints."""
    try:
        yield
    except PgcliError as problem:
        problem.spell = in_keywords
        if problem.hint and not hasattr(problem, "__notes__"):
            problem.add_note(f"hint: {problem.hint}")
        raise


def called_from_python(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Has the errors of a function, and of the answers that it returns, name keywords."""

    @wraps(function)
    def call(*values: Arguments.args, **keywords: Arguments.kwargs) -> Result:
        with naming_keywords():
            return function(*values, **keywords)

    return call


class UsageError(PgcliError):
    exit_code = 2


class ManifestError(UsageError):
    """The manifest cannot be read; an image in it that cannot be read is an error row instead."""

    def __init__(self, message: str, *, hint: str = "correct it there, or remove the row"):
        super().__init__(message, hint=hint)


class NoInputError(PgcliError):
    exit_code = 4


class Difference(PgcliError):
    exit_code = 5


class ModelUnavailable(PgcliError):
    exit_code = 10


class OutputInUse(PgcliError):
    exit_code = 12


class OutputExists(PgcliError):
    exit_code = 13


class OutputFailed(PgcliError):
    exit_code = 14


class OutputChanged(OutputFailed):
    """Another program changed the output: how many of its rows are left is not known."""


class SourceUnavailable(PgcliError):
    exit_code = 14


class TooManyErrors(PgcliError):
    exit_code = 15


class TrainingDiverged(PgcliError):
    exit_code = 15


class InvalidCheckpoint(PgcliError):
    exit_code = 16

    def __init__(
        self,
        message: str,
        *,
        hint: str = "download it again if it is damaged, or name another model: pgcli supports "
        "PaliGemma, PaliGemma 2 and their LoRA adapters, SigLIP, CLIP and image classifiers",
    ):
        super().__init__(message, hint=hint)


class NoUsableDevice(PgcliError):
    exit_code = 17
