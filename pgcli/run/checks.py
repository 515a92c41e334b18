"""Checks of a request before its input is opened and its model is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pgcli.errors import OutputFailed, UsageError
from pgcli.images import ImageLimits
from pgcli.inputs import ReadOptions
from pgcli.output import FOLDER, PLAIN_TEXT, output_format
from pgcli.run.request import current_folder
from pgcli.run.request.shard import Shard, parse_shard
from pgcli.run.rows import RunRows
from pgcli.run.task import KNOWS, built_in_model, check_model
from pgcli.stores.writing import Target
from pgcli.tasks import AnyQuestion, template_columns

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest

#: The most images for a built-in model that is not named: it exists for first trials.
DEMO_IMAGES = 100


def is_stream(request: RunRequest) -> bool:
    """Whether rows go to standard output or are text, which cannot be resumed.

    Raises UsageError if the output's name has no known format.
    """
    output = request.output
    return output.output == "-" or output_format(output.output, output.format) == PLAIN_TEXT


def is_folder(request: RunRequest) -> bool:
    """Whether the output is a folder of files."""
    return request.output.output.endswith(FOLDER)


def shard_of(request: RunRequest) -> Shard | None:
    """The shard of this command; None for a run of all rows."""
    name = request.input.shard
    return None if name is None else parse_shard(name, os.environ)


def image_limits(request: RunRequest) -> ImageLimits:
    """The size limits of images."""
    most = request.input.max_pixels
    return ImageLimits() if most is None else ImageLimits(max_pixels=most)


def read_options(
    request: RunRequest, track: Callable[[int], object] | None = None, *, spool: bool = False
) -> ReadOptions:
    """The options for reading the sources; `track` gets the numbers of counted items."""
    options = request.input
    more: dict[str, Any] = {} if track is None else {"track": track}
    return replace(
        question_options(request.question, options.prompt_column),
        image_column=options.image_column,
        id_column=options.id_column,
        keep=options.keep,
        null_separated=options.null,
        names=options.names,
        allow_outside_root=options.allow_outside_root,
        url_reader=options.url_reader,
        folder="" if request.input_folder == current_folder() else request.input_folder,
        spool=spool,
        **more,
    )


def question_options(question: AnyQuestion, prompt_column: str) -> ReadOptions:
    """The options for reading items that follow from a question about them."""
    return ReadOptions(
        prompt_column=question.text_column or prompt_column,
        prompt_noun="prompt" if question.text_column is None else "text",
        fields=template_columns(question),
        requires_prompts=question.templates is None and not question.embeds_texts,
        refuses_prompts=question.refuses_prompts,
        refuses_regions=question.region is not None,
        choices_column=question.choices_column,
    )


def check_request(request: RunRequest) -> None:
    """Raise if a request is invalid; only the model's configuration is read.

    `make_request` has already refused contradicting options.
    """
    check_model(request)
    shard_of(request)
    check_output(request)
    if request.model.ray is not None and find_spec("ray") is None:
        raise UsageError(
            "<--ray=> needs Ray, which is not installed", hint="pip install 'paligemma-cli[ray]'"
        )


def check_output(request: RunRequest) -> None:
    """Raise UsageError, OutputExists or OutputFailed for an unusable output.

    An output must not overwrite an input. Files of a run to resume are accepted.
    """
    output = request.output
    if output.output == "-":
        if sys.stdout is None:
            raise OutputFailed("standard output is closed", hint="name a file: <-o rows.jsonl>")
        return
    Target(
        name=output.output,
        kind="folder" if is_folder(request) else "file",
        overwrite=output.overwrite or not is_stream(request),
        inputs=request.sources,
        is_run=True,
    ).check()


def check_demo_limit(request: RunRequest, images: int | None) -> None:
    """Raise UsageError for more than DEMO_IMAGES images with a built-in model that is not named."""
    if request.model.model is not None or (images or 0) <= DEMO_IMAGES:
        return
    name = built_in_model(request)
    knows, option = KNOWS[name]
    unit = "texts" if request.question.embeds_texts else "images"
    raise UsageError(
        f"no model is named, and the built-in {name}, which knows only {knows}, processes at most "
        f"{DEMO_IMAGES} {unit} by default",
        hint=f"name a model: {option}; or write <--model {name}> if you mean it",
    )


def check_addressable(request: RunRequest, rows: RunRows) -> None:
    """Raise UsageError for an option that needs rows to be known before the input is read."""
    names = {
        "<--shard=>": request.input.shard,
        "<--ray=>": request.model.ray,
        "<--retry-changed>": request.running.retry_changed,
    }
    option = next((name for name, value in names.items() if value), None)
    if rows.is_addressable or option is None:
        return
    if rows.inventory.total is None:
        why, hint = "", "name folders or manifests in place of standard input"
    else:
        why = ": equal prompts of an image are one row, and several prompts name columns"
        hint = "ask only one prompt that names columns in each run"
    raise UsageError(f"{option} needs an input with a known number of rows{why}", hint=hint)
