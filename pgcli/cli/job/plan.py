"""The plan of a run: what the user asks for, checked as far as the input is not needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex

from pgcli.checkpoints.find import folder_of
from pgcli.cli.find_model import check_revision
from pgcli.cli.job.run_task import RunTask
from pgcli.cli.options import JobOptions
from pgcli.errors import UsageError
from pgcli.images import ImageLimits
from pgcli.remote.urls import is_in_object_store
from pgcli.sources.paths import parse_path, url_scheme
from pgcli.sources.patterns import expand_source
from pgcli.state.shard import Shard, claimed_chunk_rows, fair_chunk_rows, parse_shard
from pgcli.state.state_folder import state_folder
from pgcli.tasks import AnyQuestion


@dataclass(frozen=True)
class Plan:
    """A task, the sources of its items, and the options of the command line."""

    task: RunTask
    sources: tuple[str, ...]
    options: JobOptions
    #: Tells processes apart that share an output.
    token: str = field(default_factory=lambda: token_hex(4))

    @property
    def question(self) -> AnyQuestion:
        """What is asked about each item."""
        return self.task.question

    @property
    def model(self) -> str:
        """The name of the model."""
        return self.options.model.model or self.task.default_model

    @property
    def prompts_per_image(self) -> int:
        """The number of prompts for each image; 1 where a manifest brings them."""
        return 1 if self.question.templates is None else len(self.question.templates)

    @property
    def shard(self) -> Shard | None:
        """The part of the rows that this process computes."""
        name = self.options.input.shard
        return None if name is None else parse_shard(name, os.environ)

    @property
    def claims_chunks(self) -> bool:
        """Whether whole chunks of the output are computed, each by the process that claims it."""
        return self.shares_chunks or self.is_stored

    @property
    def shares_chunks(self) -> bool:
        """Whether the chunks of the output are divided while it is written."""
        return self.options.model.join or self.options.model.ray is not None

    @property
    def is_stored(self) -> bool:
        """Whether the output is in an object store."""
        return is_in_object_store(self.options.output.output)

    @property
    def part(self) -> str:
        """The suffix of the file names of this process's state; empty for the whole output."""
        if self.shares_chunks:
            name = "-join" if self.options.model.ray is None else "-ray"
            # without --join, a second driver of the same output is refused
            return f"{name}-{self.token}" if self.options.model.join else name
        return self.shard.part if self.shard else ""

    def chunk_rows(self, total: int | None) -> int:
        """The number of rows in a chunk of a new output of `total` rows."""
        wanted = self.options.output.rows_per_file
        if self.claims_chunks:
            return wanted or claimed_chunk_rows(total)
        return wanted or fair_chunk_rows(total, self.shard.count if self.shard else 1)

    @property
    def uses_default_model(self) -> bool:
        """Whether the built-in model answers because no model was named."""
        return self.options.model.model is None

    @property
    def image_limits(self) -> ImageLimits:
        """The largest images that are decoded."""
        max_pixels = self.options.input.max_pixels
        return ImageLimits() if max_pixels is None else ImageLimits(max_pixels=max_pixels)


def make_plan(sources: Sequence[str], task: RunTask, options: JobOptions) -> Plan:
    """The plan for these sources. Nothing is read but the model's configuration.

    Raises UsageError, ModelUnavailable and InvalidCheckpoint for what is wrong with the current
    folder, or with model files that are on this machine.
    """
    plan = Plan(task, tuple(sources), options)
    check_revision(plan.model, options.model.revision)
    check_current_folder()
    task.check(options.model, folder_of(plan.model))
    check_not_an_input(options.output.output, sources)
    return plan


def claiming_option(plan: Plan) -> str:
    """What makes the run claim chunks, for messages."""
    if plan.shares_chunks:
        return "--join" if plan.options.model.ray is None else "--ray"
    return "an output in an object store"


def check_current_folder() -> str:
    """The folder in which the program was started. Raises UsageError if it no longer exists."""
    try:
        return os.getcwd()  # noqa: PTH109 - Path.cwd makes the same call
    except OSError as problem:
        raise UsageError(
            f"the current folder cannot be read: {problem.strerror}", hint="cd into one that exists"
        ) from problem


def check_not_an_input(
    output: str, sources: Iterable[str], *, globs: bool | None = None, option: str = "-o"
) -> None:
    """Raise UsageError if the output is one of the input files, under whatever name.

    Expanding a glob takes as long as the folder is large, so globs are left to a second call with
    `globs`, once the output is locked. An output without a state folder was not made by a run
    and may be replaced at once, so its globs are expanded in the first call.
    """
    if output == "-" or not os.path.exists(output):  # noqa: PTH110 - Path raises for a long name
        return
    if globs is None:
        globs = not os.path.exists(state_folder(Path(output)))  # noqa: PTH110
    for source in sources:
        paths = expand_source(source) if globs or url_scheme(source) else [parse_path(source)]
        for path in paths:
            if os.path.exists(path) and Path(path).samefile(output):  # noqa: PTH110
                raise UsageError(
                    f"{output} is an input and would be overwritten",
                    hint=f"choose another {option}",
                )
