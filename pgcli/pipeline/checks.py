"""What is checked of a request before its input is opened and its model is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from glob import has_magic, iglob
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgcli.errors import OutputFailed, UsageError
from pgcli.images import ImageLimits
from pgcli.inputs import ReadOptions
from pgcli.output import FOLDER, TEXT, output_format
from pgcli.pipeline.request import current_folder
from pgcli.pipeline.request.shard import Shard, parse_shard
from pgcli.pipeline.rows import RunRows
from pgcli.pipeline.task import KNOWS, check_model, default_model
from pgcli.stores.files import parse_path
from pgcli.stores.urls import has_credentials, is_in_object_store, url_scheme, without_credentials
from pgcli.tasks import template_columns

if TYPE_CHECKING:
    from pgcli.pipeline.request import RunRequest

#: The most images that a built-in model answers unless it is named: it exists to be tried out.
DEMO_IMAGES = 100


def is_stream(request: RunRequest) -> bool:
    """Whether rows go to standard output or are text: no later run resumes them.

    Raises UsageError if the name of the output chooses no format.
    """
    output = request.output
    return output.output == "-" or output_format(output.output, output.format) == TEXT


def is_folder(request: RunRequest) -> bool:
    """Whether the output is a folder of files."""
    return request.output.output.endswith(FOLDER)


def shard_of(request: RunRequest) -> Shard | None:
    """The part of the rows that this process computes."""
    name = request.input.shard
    return None if name is None else parse_shard(name, os.environ)


def image_limits(request: RunRequest) -> ImageLimits:
    """The largest images that are decoded."""
    most = request.input.max_pixels
    return ImageLimits() if most is None else ImageLimits(max_pixels=most)


def read_options(
    request: RunRequest, track: Callable[[int], object] | None = None, *, spool: bool = False
) -> ReadOptions:
    """How the sources are read for the question; `track` gets numbers of counted items."""
    question, options = request.question, request.input
    more: dict[str, Any] = {} if track is None else {"track": track}
    return ReadOptions(
        image_column=options.image_column,
        id_column=options.id_column,
        prompt_column=question.text_column or options.prompt_column,
        prompt_noun="prompt" if question.text_column is None else "text",
        keep=options.keep,
        fields=template_columns(question),
        requires_prompts=question.templates is None and not question.embeds_texts,
        refuses_prompts=question.refuses_prompts,
        refuses_regions=question.region is not None,
        choices_column=question.choices_column,
        null_separated=options.null,
        names=options.names,
        allow_outside_root=options.allow_outside_root,
        url_reader=options.url_reader,
        fixes_types=is_folder(request),
        folder="" if request.input_folder == current_folder() else request.input_folder,
        spool=spool,
        **more,
    )


def check_request(request: RunRequest) -> None:
    """Raise for what is wrong with a request by itself; only the model's configuration is read.

    Options that contradict each other were refused when the request was made.
    """
    check_model(request)
    shard_of(request)
    check_output(request)
    if request.model.ray is not None and find_spec("ray") is None:
        raise UsageError(
            "--ray needs Ray, which is not installed", hint="pip install 'paligemma-cli[ray]'"
        )
    check_not_a_source(request.output.output, request.sources)


def check_output(request: RunRequest) -> None:
    """Raise UsageError or OutputFailed for an output that no run writes."""
    output = request.output.output
    if is_stream(request) and output == "-" and sys.stdout is None:
        raise OutputFailed("standard output is closed", hint="name a file: -o rows.jsonl")
    if url_scheme(output) is not None:
        bucket, _, path = output.partition("://")[2].partition("/")
        is_folder = bucket.rpartition("@")[2] and path.strip("/") and output.endswith(FOLDER)
        if not is_in_object_store(output) or not is_folder or has_credentials(output):
            raise UsageError(
                f"rows cannot be written to {without_credentials(output)}",
                hint="name a file, a folder, or a folder in an object store: -o s3://bucket/rows/, "
                "gs:// or az://",
            )


def check_not_a_source(output: str, sources: Iterable[str], option: str = "-o") -> None:
    """Raise UsageError if the output is one of the input files, under whatever name."""
    if output == "-" or url_scheme(output) or not os.path.exists(output):  # noqa: PTH110 - long names
        return
    for source in sources:
        path = parse_path(source)
        is_file = url_scheme(source) is None and os.path.exists(path)  # noqa: PTH110
        is_pattern = not is_file and url_scheme(source) is None and has_magic(os.fsdecode(path))
        if is_pattern and not os.path.lexists(f"{output}.pgcli/run.json"):  # else it is not read
            is_file = path_matches(path, output)
            path = output
        if is_file and Path(path).samefile(output):
            raise UsageError(
                f"{output} is an input and would be overwritten", hint=f"choose another {option}"
            )


def path_matches(pattern: str | bytes, output: str) -> bool:
    """Whether a pattern names the output."""
    names = iglob(os.fsdecode(pattern), recursive=True)
    return any(os.path.samefile(name, output) for name in names if os.path.exists(name))  # noqa: PTH110, PTH121


def check_demo_limit(request: RunRequest, images: int | None) -> None:
    """Raise UsageError for more images than a built-in model that was not named answers."""
    if request.model.model is not None or (images or 0) <= DEMO_IMAGES:
        return
    name = default_model(request)
    knows, option = KNOWS[name]
    unit = "texts" if request.question.embeds_texts else "images"
    raise UsageError(
        f"more than {DEMO_IMAGES} {unit} for {name}, the built-in model, which knows only {knows}",
        hint=f"name a real one: {option}; or write --model {name} if you mean it",
    )


def check_addressable(request: RunRequest, rows: RunRows) -> None:
    """Raise UsageError for an input of which no part can be read alone, where that is needed."""
    names = {
        "--shard": request.input.shard,
        "--ray": request.model.ray,
        "--retry-changed": request.running.retry_changed,
    }
    option = next((name for name, value in names.items() if value), None)
    if rows.is_addressable or option is None:
        return
    if rows.inventory.total is None:
        why, hint = "", "name folders or manifests in place of standard input"
    else:
        why = ": of several prompts that name columns, equal ones of an image are one row"
        hint = "ask one prompt that names columns in each run"
    raise UsageError(
        f"{option} needs an input whose rows are known before it is read{why}", hint=hint
    )
