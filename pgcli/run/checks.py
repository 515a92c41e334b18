"""Checks of a request before its input is opened: its output, its shard, and its plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from pgcli.declare import options_of
from pgcli.errors import OutputFailed, UsageError
from pgcli.inputs import ReadOptions
from pgcli.output import FOLDER, PLAIN_TEXT, output_format
from pgcli.run.input_rows import PAGE_FILE_ROWS, RunRows
from pgcli.run.model import KNOWS, check_model, page_bytes
from pgcli.run.request import Shard, current_folder, parse_shard
from pgcli.stores.writing import Target
from pgcli.tasks import AnyQuestion, Question, template_columns
from pgcli.text import byte_count

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
    name = request.built_in_model
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


def plan_facts(request: RunRequest, rows: RunRows) -> list[tuple[str, str]]:
    """The facts of the plan that `--dry-run` and `--verbose` print."""
    per_item = rows.per_item or 1
    of_each = f", {per_item} for each image" if per_item > 1 else ""
    images = "unknown, from standard input" if rows.images is None else f"{rows.images:,}"
    facts = [("images", images)]
    if kinds := sorted(rows.inventory.kinds.items(), key=lambda kind: (-kind[1], kind[0])):
        facts.append(("kinds", ", ".join(f"{count:,} {kind}" for kind, count in kinds)))
    facts += rows.inventory.notes
    facts.append(("rows", ("unknown" if rows.total is None else f"{rows.total:,}") + of_each))
    if request.question.pages:
        each, total = page_bytes(request), rows.total or 0
        logged = total if not is_folder(request) else min(total, PAGE_FILE_ROWS)
        facts.append(
            (
                "disk",
                f"{byte_count(each)} a page, {byte_count(each * total)} in all; during the run "
                f"{byte_count(each * logged * 4 // 3)} more for the log",
            )
        )
    if isinstance(request.question, Question):
        prompts = request.question.templates or ("the manifest's own",)
        facts += (("prompt", prompt) for prompt in prompts)
    named = request.model.model or f"{request.model_name}, the built-in one"
    facts.append(("model", named))
    if request.output.output == "-":
        facts.append(("output", "standard output"))
    return [*facts, *option_facts(request)]


def option_facts(request: RunRequest) -> Iterator[tuple[str, str]]:
    """The given options by name, except those of the question that are prompts, and the model."""
    for record in (
        request.command,
        request.input,
        request.answering,
        request.model,
        request.output,
    ):
        for option in options_of(type(record)):
            value = getattr(record, option.name)
            if value == option.default or option.name in ("model", "prompt", "object", "lang"):
                continue
            if option.name == "shard":
                value = shard_of(request)
            if option.name == "region" and value is not None:
                value = ",".join(map("{:g}".format, value))
            values = value if option.repeat else [value]
            yield from ((option.key, "yes" if text is True else str(text)) for text in values)
