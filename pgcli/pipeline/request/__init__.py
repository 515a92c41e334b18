"""The request of a run: everything that the user asks for, from the command line or Python."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from pgcli.errors import UsageError
from pgcli.pipeline.request.options import (
    AnsweringOptions,
    InputOptions,
    ModelOptions,
    OutputOptions,
    RunningOptions,
)
from pgcli.pipeline.request.questions import CommandOptions
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

    `arguments` are the words of the command line, or what they would be of a call from Python;
    `ignored` has a line for each of the options that were typed there without effect. Relative
    names are of the `folder`; those of sources of `sources_folder`, where a run that was begun in
    another folder is resumed, whose rows call the model by `model_label`.
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
        """The folder that the names of sources, and of the file with texts, are of."""
        return self.sources_folder or self.folder
