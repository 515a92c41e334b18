"""Make the request of a run from the values of options, by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pgcli.declare import build
from pgcli.errors import PgcliError
from pgcli.run.request import RunRequest
from pgcli.run.request.applies import applying
from pgcli.run.request.options import (
    SHARED_OPTIONS,
    AnsweringOptions,
    InputOptions,
    ModelOptions,
    OutputOptions,
    RunningOptions,
)
from pgcli.run.request.questions import (
    COMMAND_OPTIONS,
    LINES_OF,
    WITHOUT_ANSWERS,
    CommandOptions,
    lines_of_file,
)
from pgcli.tasks import Question, with_region


def records_of(command: str) -> tuple[type, ...]:
    """The option records of a command, its own first."""
    is_answering = command not in WITHOUT_ANSWERS
    shared = (record for record in SHARED_OPTIONS if is_answering or record is not AnsweringOptions)
    return (COMMAND_OPTIONS[command], *shared)


def make_request(
    command: str,
    sources: Iterable[str],
    values: Mapping[str, Any],
    *,
    typed: Collection[str] = (),
) -> RunRequest:
    """The request of a command with parsed values of options.

    Options that do not apply are dropped. Raises UsageError for values that make no question or
    contradict each other.
    """
    sources, values = tuple(sources), with_lines(values)
    texts = command == "embed" and not values.keys().isdisjoint(("text", "texts_file"))
    if "model" not in typed and not is_able(command, values.get("model"), texts=texts):
        for name in {"model", "revision"}.difference(typed):  # the variable is for other commands
            values.pop(name, None)
    values, ignored = applying(command, sources, values, typed)
    return build_request(command, sources, values, ignored=ignored)


def with_lines(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, with the lines of text files added to the options that they extend."""
    values = {**values}
    for name, option in LINES_OF.items():
        if lines := lines_of_file(values.pop(name, None), noun=option):
            values[option] = (*values.get(option, ()), *lines)
    return values


def build_request(
    command: str, sources: tuple[str, ...], values: Mapping[str, Any], **more: Any
) -> RunRequest:
    """The request with these values of options, which all apply; `more` are its other fields.

    It reads no file, so that the request of an earlier run stays the same. Raises UsageError for
    values that make no question.
    """
    answering = build(AnsweringOptions, values)
    own: CommandOptions = build(COMMAND_OPTIONS[command], values)
    question = own.question(answering, sources)
    if isinstance(question, Question):
        question = with_region(question, answering.region)
    return RunRequest(
        question=question,
        sources=sources,
        command=own,
        model=build(ModelOptions, values),
        input=build(InputOptions, values),
        answering=answering,
        output=build(OutputOptions, values),
        running=build(RunningOptions, values),
        **more,
    )


def is_able(command: str, model: str | None, *, texts: bool = False) -> bool:
    """Whether a model can answer a command; True if that is unknown without a download.

    With `texts` the command embeds texts in place of images.
    """
    from pgcli.checkpoints.find import find_local  # not at the top: --help has to be fast
    from pgcli.checkpoints.model_description import read_description
    from pgcli.towers.abilities import ABILITIES

    try:
        checkpoint = None if model is None else find_local(model)
        if checkpoint is None:
            return True
        kind = read_description(checkpoint.folder).kind
        return command in ABILITIES[kind] and (kind == "two_towers" or not texts)
    except PgcliError:  # the checks of the run raise it
        return True
