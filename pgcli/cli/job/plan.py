"""The plan of a run: what the user asks for, checked as far as the input is not needed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pgcli.checkpoints.config import read_config
from pgcli.checkpoints.find import DEMO, FETCH_DECODER, folder_of
from pgcli.cli.find_model import check_revision
from pgcli.cli.options import ModelOptions, Options
from pgcli.errors import ModelUnavailable, UsageError
from pgcli.images import ImageLimits
from pgcli.sources.paths import parse_path, url_scheme
from pgcli.sources.patterns import expand_source
from pgcli.state.shard import Shard, fair_chunk_rows, parse_shard
from pgcli.state.state_folder import state_folder
from pgcli.tasks import Question, check_max_new_tokens


@dataclass(frozen=True)
class Plan:
    """A question, the sources it is asked about, and the options of the command line."""

    question: Question
    sources: tuple[str, ...]
    options: Options
    mask_decoder: str | None = None

    @property
    def prompts_per_image(self) -> int:
        """The number of prompts for each image; 1 where a manifest brings them."""
        return 1 if self.question.templates is None else len(self.question.templates)

    @property
    def shard(self) -> Shard | None:
        """The part of the rows that this process computes."""
        name = self.options.input.shard
        return None if name is None else parse_shard(name, os.environ)

    def chunk_rows(self, total: int | None) -> int:
        """The number of rows in a chunk of a new output of `total` rows."""
        wanted = self.options.output.rows_per_file
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


def make_plan(
    sources: Sequence[str], question: Question, options: Options, *, mask_decoder: str | None = None
) -> Plan:
    """The plan for these sources. Nothing is read but the model's configuration.

    Raises UsageError, ModelUnavailable and InvalidCheckpoint for what is wrong with the current
    folder, or with model files that are on this machine.
    """
    check_revision(options.model.model or DEMO, options.model.revision)
    check_current_folder()
    check_model(question, options.model)
    check_mask_decoder(mask_decoder)
    check_not_an_input(options.output.output, sources)
    return Plan(question, tuple(sources), options, mask_decoder)


def check_current_folder() -> str:
    """The folder in which the program was started. Raises UsageError if it no longer exists."""
    try:
        return os.getcwd()  # noqa: PTH109 - Path.cwd makes the same call
    except OSError as problem:
        raise UsageError(
            f"the current folder cannot be read: {problem.strerror}", hint="cd into one that exists"
        ) from problem


def check_model(question: Question, options: ModelOptions) -> None:
    """Raise for a model or an adapter folder that cannot be used; the Hub is not asked."""
    folder = folder_of(options.model or DEMO)
    if folder is not None:
        check_max_new_tokens(question, read_config(folder).max_answer_tokens)
    if options.adapter is not None:
        folder_of(options.adapter, "adapter")


def check_mask_decoder(file: str | None) -> None:
    """Raise UsageError or ModelUnavailable if the mask decoder is not a file on this machine."""
    if file is None:
        return
    if "://" in file:
        raise UsageError(f"{file} is an address", hint=f"download it first: {FETCH_DECODER}")
    if not Path(file).is_file():
        raise ModelUnavailable(f"there is no file {file}", hint=f"fetch it: {FETCH_DECODER}")


def check_not_an_input(output: str, sources: Iterable[str], *, globs: bool | None = None) -> None:
    """Raise UsageError if the output is one of the input files, under whatever name.

    Expanding a glob takes as long as the folder is large, so globs are left to a second call with
    `globs`, once the output is locked. An output without a state folder was not made by a run
    and may be replaced at once, so its globs are expanded in the first call.
    """
    if output == "-" or not os.path.exists(output):  # noqa: PTH110 - Path raises for a long name
        return
    if globs is None:
        globs = not state_folder(Path(output)).exists()
    for source in sources:
        paths = expand_source(source) if globs or url_scheme(source) else [parse_path(source)]
        for path in paths:
            if os.path.exists(path) and Path(path).samefile(output):  # noqa: PTH110
                raise UsageError(
                    f"{output} is an input and would be overwritten", hint="choose another -o"
                )
