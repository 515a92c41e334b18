"""What applies where: options that are without effect in a run, and those that exclude each other.

An option that was typed and does not apply is ignored with one line, or refused where rows or files
would not be what was asked for. One that the environment or the configuration file sets is ignored
in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pgcli.checkpoints.find import DEMO, DEMO_TOWERS, builtin_models
from pgcli.errors import UsageError
from pgcli.run.request import RunRequest
from pgcli.run.request.declare import changed, with_defaults
from pgcli.tasks import Question

RECORDS = ("model", "input", "answering", "output", "running")
#: The endings of names that choose a format, which --format cannot change.
ENDINGS = {".jsonl": "jsonl", ".parquet": "parquet"}
OBJECT_STORES = ("s3://", "gs://", "az://")


@dataclass(frozen=True, slots=True)
class Rule:
    """Where all of these options are given, they go together only if `applies` holds.

    Otherwise the first that was not typed is left out; if all were typed, they are refused with
    the message and its hint, or the first is ignored with the message if there is no hint. In both,
    `{flag}` is the first option, `{other}` the second.
    """

    options: tuple[str, ...]
    applies: Callable[[RunRequest], bool]
    message: str
    hint: str = ""


Rules = list[Rule]


def answers_with_text(request: RunRequest) -> bool:
    """Whether a PaliGemma answers."""
    return isinstance(request.question, Question)


def has_choices(request: RunRequest) -> bool:
    """Whether answers are picked among choices."""
    return isinstance(request.question, Question) and request.question.has_choices


def is_folder(request: RunRequest) -> bool:
    """Whether the output is a folder of Parquet files."""
    return request.output.output.endswith("/")


def is_saved(request: RunRequest) -> bool:
    """Whether the output can be resumed: not standard output, nor text."""
    output = request.output.output
    by_name = is_folder(request) or Path(output).suffix.lower() in ENDINGS
    return output != "-" and (by_name or request.output.format == "jsonl")


def format_agrees(request: RunRequest) -> bool:
    """Whether --format does not contradict the name of the output."""
    ending = Path(request.output.output).suffix.lower()
    by_name = "folder" if is_folder(request) else ENDINGS.get(ending)
    return by_name in (None, request.output.format)


def is_on_hub(model: str | None) -> bool:
    """Whether a model is named and neither built in nor a folder, which have no revisions."""
    return model is not None and not (
        model in builtin_models() or Path(model).expanduser().is_dir()
    )


def is_stored(request: RunRequest) -> bool:
    """Whether the output is in an object store."""
    return request.output.output.lower().startswith(OBJECT_STORES)


def has_one_prompt(request: RunRequest) -> bool:
    """Whether an image has a single row."""
    return len(request.question.templates or ("",)) == 1


def has_device_for_each(request: RunRequest) -> bool:
    """Whether several engines have more than one device to run on."""
    return (request.model.engines or 1) == 1 or request.model.device in ("auto", "cpu", "cuda")


def embeds_images(request: RunRequest) -> bool:
    """Whether items are images, not texts."""
    return not request.question.embeds_texts


def never(request: RunRequest) -> bool:
    """The options exclude each other."""
    return False


def each(names: str, applies: Callable[[RunRequest], bool], message: str, hint: str = "") -> Rules:
    """A rule for each of these options."""
    return [Rule((name,), applies, message, hint) for name in names.split()]


def either(names: str, others: str, message: str, hint: str) -> Rules:
    """A rule for each pair of options that exclude each other."""
    pairs = [(name, other) for name in names.split() for other in others.split()]
    return [Rule(pair, never, message, hint) for pair in pairs]


def alone(names: str, hint: str) -> Rules:
    """The rules of what only a single process can do, into an output of this machine."""
    stored = "{flag} does not go with an output in an object store"
    return [
        *either(names, "join ray", "{flag} does not go with {other}", hint),
        *each(names, lambda r: not is_stored(r), stored, "name a folder of this machine with -o"),
    ]


LEAVE_OUT = "leave {flag} out"
LEAVE_ONE_OUT = "leave one of them out: a run without {other} has {flag}"
NO_COLUMN = ", and the rows of {task} have none"

#: In this order: what is left out by a rule is so for those after it.
APPLIES: Rules = [
    *each(
        "adapter quantize",
        answers_with_text,
        "{flag} is for models that answer with text",
        LEAVE_OUT,
    ),
    *each(
        "revision",
        lambda r: is_on_hub(r.model.model),
        "{model} has no revisions to choose from",
        "{flag} goes with a name on the Hub",
    ),
    *each(
        "join ray shard",
        is_folder,
        "{flag} needs a folder of Parquet files as output",
        "name it with a slash at its end: -o rows/",
    ),
    *each("ray_gpus ray_cpus", lambda r: r.model.ray is not None, "{flag} applies to --ray"),
    *either("shard", "join ray", "{flag} does not go with {other}", LEAVE_ONE_OUT),
    *either(
        "overwrite",
        "shard join",
        "{flag} does not go with {other}: each process would remove the rows of the others",
        "name another -o, or remove the output and its folder .pgcli first",
    ),
    *each(
        "retry_errors",
        is_saved,
        "{flag} goes through all rows of an output that can be resumed",
        "name the output with the errors: -o rows.jsonl",
    ),
    *alone("retry_errors", "one process asks rows with errors again: leave out --join and --ray"),
    *alone("draw view", "once the rows are there, pgcli view rows/ draws them and writes pages"),
    *alone("sidecar", LEAVE_ONE_OUT),
    Rule(
        ("engines", "device"),
        has_device_for_each,
        "{flag} {engines} needs a device for each, and {other} {device} is one",
        "leave out {other}",
    ),
    *each(
        "format",
        format_agrees,
        "{output} is the name of a {kind}, and {flag} says {format}",
        "leave out one of the two",
    ),
    *each("rows_per_file", is_folder, "{flag} applies to a folder of Parquet files"),
    *each(
        "draw",
        lambda r: "boxes" in r.question.columns,
        "{flag} draws boxes" + NO_COLUMN,
        LEAVE_OUT,
    ),
    *each(
        "sidecar",
        lambda r: "answer" in r.question.columns,
        "{flag} writes answers" + NO_COLUMN,
        LEAVE_OUT,
    ),
    *each(
        "view",
        lambda r: "image" in r.question.columns,
        "{flag} shows images" + NO_COLUMN,
        LEAVE_OUT,
    ),
    *each(
        "sidecar",
        has_one_prompt,
        "{flag} writes one answer for each image, and there are {prompts} prompts",
        "ask one prompt in each run, with different endings: {flag} .one, .two",
    ),
    *each(
        "prepend append",
        lambda r: r.output.sidecar is not None,
        "{flag} applies to the texts of --sidecar",
    ),
    *each(
        "include exclude",
        embeds_images,
        "{flag} chooses images by their names, and these are texts",
        LEAVE_OUT,
    ),
    *each(
        "alternatives token_logprobs",
        lambda r: not has_choices(r),
        "{flag} is for generated answers, and this one is picked among choices",
        "leave out {flag}: the column choices has every candidate's log-probability",
    ),
    *each(
        "temperature max_new_tokens",
        lambda r: not has_choices(r),
        "{flag} does not apply to choices",
    ),
    *each(
        "top_p top_k",
        lambda r: r.answering.temperature > 0 or r.answering.alternatives > 0,
        "{flag} applies where a --temperature is given",
    ),
]


def with_applying(request: RunRequest) -> RunRequest:
    """The request without the options that do not apply, and the lines about those typed.

    Raises UsageError for options that were typed and contradict what else was.
    """
    lines = list(request.ignored)
    for rule in APPLIES:
        given = {name for record in RECORDS for name in changed(getattr(request, record))}
        if not given.issuperset(rule.options) or rule.applies(request):
            continue
        untyped = [name for name in rule.options if name not in request.typed]
        flags = [f"--{name.replace('_', '-')}" for name in rule.options]
        known = words(request) | {"flag": flags[0], "other": flags[-1]}
        message = rule.message.format_map(known)
        if not untyped and rule.hint:
            raise UsageError(message, hint=rule.hint.format_map(known))
        if not untyped:
            lines.append(f"ignored: {message}")
        request = without(request, (untyped or rule.options)[:1])
    return replace(request, ignored=tuple(lines))


def ignored(request: RunRequest, typed: Collection[str]) -> list[str]:
    """A line for each option that is ignored although it was typed."""
    return [*with_applying(replace(request, typed=frozenset(typed), ignored=())).ignored]


def without(request: RunRequest, names: Collection[str]) -> RunRequest:
    """The request with the defaults of these options."""
    records: dict[str, Any] = {name: getattr(request, name) for name in RECORDS}
    return replace(
        request, **{name: with_defaults(record, names) for name, record in records.items()}
    )


def words(request: RunRequest) -> dict[str, object]:
    """What messages say of the request."""
    model, output = request.model, request.output
    return {
        "model": model.model or (DEMO if answers_with_text(request) else DEMO_TOWERS),
        "engines": model.engines,
        "device": model.device,
        "output": output.output,
        "format": output.format,
        "kind": "folder"
        if is_folder(request)
        else f"{Path(output.output).suffix[1:].lower()} file",
        "task": request.question.task,
        "prompts": len(request.question.templates or ()),
    }
