"""What is checked of a request before its input is opened and its model is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from glob import has_magic, iglob
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pgcli.checkpoints.find import builtin_models
from pgcli.errors import OutputFailed, UsageError
from pgcli.images import ImageLimits
from pgcli.inputs import ReadOptions
from pgcli.inputs.paths import parse_path, url_scheme
from pgcli.output import OutputFormat, output_format
from pgcli.run.request.shard import Shard, parse_shard
from pgcli.run.rows import RunRows
from pgcli.run.task import KNOWS, check_model, default_model, model_name
from pgcli.stores.urls import has_credentials, is_in_object_store, without_credentials
from pgcli.tasks import template_columns

if TYPE_CHECKING:
    from pgcli.run.request import RunRequest

#: Where rows go; `stream` is standard output.
Format = Literal["stream"] | OutputFormat
#: The most images that a built-in model answers unless it is named: it exists to be tried out.
DEMO_IMAGES = 100
#: Hints for what one process alone does, where there is another way to it.
ALONE = {
    "--draw": "once the rows are there, pgcli view rows/ --draw DIR draws them",
    "--view": "once the rows are there, pgcli view rows/ writes the page",
    "--retry-errors": "one process asks them again: leave out --join, --ray and --shard",
}


def format_of(request: RunRequest) -> Format:
    """The format of the output, by its name or `--format`. Raises UsageError."""
    output = request.output
    return "stream" if output.output == "-" else output_format(output.output, output.format)


def is_resumable(request: RunRequest) -> bool:
    """Whether a later run can resume the output: not standard output, nor text."""
    return format_of(request) not in ("stream", "text")


def shard_of(request: RunRequest) -> Shard | None:
    """The part of the rows that this process computes."""
    name = request.input.shard
    return None if name is None else parse_shard(name, os.environ)


def shares_output(request: RunRequest) -> bool:
    """Whether several commands may write the output at one time."""
    model = request.model
    return model.join or model.ray is not None or request.input.shard is not None


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
        spool=spool,
        **more,
    )


def check_request(request: RunRequest) -> None:
    """Raise for what is wrong with a request by itself; only the model's configuration is read."""
    check_revision(request)
    check_model(request)
    shard_of(request)
    check_output(request)
    check_shared(request)
    check_not_a_source(request.output.output, request.sources)


def check_revision(request: RunRequest) -> None:
    """Raise UsageError for a revision of a model on this machine, which has none."""
    name, revision = model_name(request), request.model.revision
    is_here = name in builtin_models() or Path(name).expanduser().is_dir()
    if revision and is_here and "--revision" in request.typed:
        raise UsageError(
            f"{name} has no revisions to choose from", hint="--revision goes with a name on the Hub"
        )


def check_output(request: RunRequest) -> None:
    """Raise UsageError or OutputFailed for an output that no run writes."""
    output, format = request.output.output, format_of(request)
    if format == "stream" and sys.stdout is None:
        raise OutputFailed("standard output is closed", hint="name a file: -o rows.jsonl")
    if url_scheme(output) is not None:
        bucket, _, path = output.partition("://")[2].partition("/")
        is_folder = bucket.rpartition("@")[2] and path.strip("/") and format == "folder"
        if not is_in_object_store(output) or not is_folder or has_credentials(output):
            raise UsageError(
                f"rows cannot be written to {without_credentials(output)}",
                hint="name a file, a folder, or a folder in an object store: -o s3://bucket/rows/, "
                "gs:// or az://",
            )
    if request.running.retry_errors and format in ("stream", "text"):
        raise UsageError(
            "--retry-errors goes through all rows of an output that can be resumed",
            hint="name the output with the errors: -o rows.jsonl",
        )


def check_shared(request: RunRequest) -> None:
    """Raise UsageError for what does not go with `--shard`, `--join` and `--ray`."""
    model, output = request.model, request.output
    if model.ray is not None and find_spec("ray") is None:
        raise UsageError(
            "--ray needs Ray, which is not installed", hint="pip install 'paligemma-cli[ray]'"
        )
    names = {"--shard": request.input.shard, "--join": model.join, "--ray": model.ray}
    given = [name for name, value in names.items() if value]
    is_stored = is_in_object_store(output.output)
    if not given and not is_stored:
        return
    option = given[0] if given else "an output in an object store"
    if given and format_of(request) != "folder":
        raise UsageError(
            f"{option} needs a folder of Parquet files as output",
            hint="name it with a slash at its end: -o rows/",
        )
    if "--shard" in given and len(given) > 1:
        raise UsageError(f"--shard does not go with {given[-1]}", hint="leave one of them out")
    if output.overwrite and ("--shard" in given or "--join" in given):
        raise UsageError(
            f"--overwrite does not go with {option}: each process would remove the rows of the "
            "others",
            hint="name another -o, or remove the output and its folder .pgcli first",
        )
    alone = {
        "--retry-errors": request.running.retry_errors,
        "--draw": output.draw,
        "--view": output.view,
        "--sidecar": output.sidecar,
    }
    for name, value in alone.items():
        if value:
            leave_out = f"leave one of them out: a run without {option} has {name}"
            hint = ALONE.get(name, leave_out) if given else "name a folder of this machine with -o"
            raise UsageError(f"{name} does not go with {option}", hint=hint)


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
    found = iglob(os.fsdecode(pattern), recursive=True)
    return any(os.path.samefile(name, output) for name in found if os.path.exists(name))  # noqa: PTH110, PTH121


@dataclass(frozen=True)
class DemoLimit:
    """The limit of 100 images for a built-in model that was not named."""

    request: RunRequest

    @property
    def applies(self) -> bool:
        """Whether no model is named."""
        return self.request.model.model is None

    def check(self, rows: RunRows) -> None:
        """Raise UsageError for an input of more images."""
        images = rows.images or 0
        if self.applies and images > DEMO_IMAGES:
            unit = "texts" if self.request.question.embeds_texts else "images"
            raise self.error(f"{images:,} {unit}")

    def error(self, images: str) -> UsageError:
        """The error for so many images."""
        name = default_model(self.request)
        knows, other = KNOWS[name]
        return UsageError(
            f"{images} for {name}, the built-in model, which knows only {knows}",
            hint=f"name a real one: {other}; or write --model {name} if you mean it",
        )


def check_addressable(request: RunRequest, rows: RunRows) -> None:
    """Raise UsageError for an input of which no part can be read alone, where that is needed."""
    if rows.is_addressable or not shares_output(request):
        return
    names = {"--shard": request.input.shard, "--join": request.model.join, "--ray": True}
    option = next(name for name, value in names.items() if value)
    raise UsageError(
        f"{option} needs an input whose rows are known before it is read",
        hint="name folders or manifests in place of standard input, and one prompt where prompts "
        "name columns",
    )
