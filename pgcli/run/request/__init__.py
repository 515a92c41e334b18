"""The request of a run: everything that a user asks for on the command line or in Python."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from pgcli.errors import UsageError
from pgcli.run.request.options import (
    AnsweringOptions,
    InputOptions,
    ModelOptions,
    OutputOptions,
    RunningOptions,
)
from pgcli.run.request.questions import CommandOptions
from pgcli.tasks import AnyQuestion


def current_folder() -> str:
    """The folder in which the program was started. Raises UsageError if it no longer exists."""
    try:
        return os.getcwd()  # noqa: PTH109 - Path.cwd makes the same call
    except OSError as problem:
        raise UsageError(
            f"the current folder cannot be read: {problem.strerror}", hint="cd into one that exists"
        ) from problem


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A question, the sources of its items, and the options that both were made from.

    `ignored` has a line for each typed option without effect. Relative names are relative to
    `folder`. If a run from another folder is resumed, sources are relative to `sources_folder`, and
    rows name the model by `model_label`.
    """

    question: AnyQuestion
    sources: tuple[str, ...]
    command: CommandOptions
    model: ModelOptions
    input: InputOptions
    answering: AnsweringOptions
    output: OutputOptions
    running: RunningOptions
    ignored: tuple[str, ...] = ()
    folder: str = field(default_factory=current_folder)
    sources_folder: str = ""
    model_label: str = ""

    @property
    def mask_decoder(self) -> str | None:
        """The file with weights that turn mask codes into pixels, if one was named."""
        return getattr(self.command, "mask_decoder", None)

    @property
    def input_folder(self) -> str:
        """The folder for relative names of sources."""
        return self.sources_folder or self.folder
