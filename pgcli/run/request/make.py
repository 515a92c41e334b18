"""Make the request of a run from the values of options, by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pgcli.run.request import RunRequest
from pgcli.run.request.applies import with_applying
from pgcli.run.request.declare import Option, build, options_of
from pgcli.run.request.options import (
    AnsweringOptions,
    InputOptions,
    ModelOptions,
    OutputOptions,
    RunningOptions,
)
from pgcli.run.request.questions import COMMANDS, WITHOUT_ANSWERS, CommandOptions
from pgcli.tasks import AnyQuestion, Question, with_extras, with_region


def records_of(command: str) -> tuple[type, ...]:
    """The records that have the options of a command, its own first."""
    answering = () if command in WITHOUT_ANSWERS else (AnsweringOptions,)
    return (
        COMMANDS[command],
        InputOptions,
        OutputOptions,
        ModelOptions,
        *answering,
        RunningOptions,
    )


def make_request(
    command: str,
    sources: Iterable[str],
    values: Mapping[str, Any],
    *,
    typed: Collection[str] = (),
    arguments: Iterable[str] = (),
) -> RunRequest:
    """The request of a command with these values of options, which are parsed.

    Options that do not apply are left out. Raises UsageError for values that make no question, and
    for those that contradict each other.
    """
    sources, answering = tuple(sources), build(AnsweringOptions, values)
    own: CommandOptions = build(COMMANDS[command], values)
    request = with_applying(
        RunRequest(
            question=own.question(answering, sources, typed),
            sources=sources,
            model=build(ModelOptions, values),
            input=build(InputOptions, values),
            answering=answering,
            output=build(OutputOptions, values),
            running=build(RunningOptions, values),
            mask_decoder=values.get("mask_decoder"),
            arguments=tuple(arguments),
            typed=frozenset(typed),
        )
    )
    return replace(request, question=completed(request))


def completed(request: RunRequest) -> AnyQuestion:
    """The question with its region, and what rows have beside the answer."""
    question, answering = request.question, request.answering
    if not isinstance(question, Question):
        return question
    return with_extras(
        with_region(question, answering.region),
        alternatives=answering.alternatives,
        token_logprobs=answering.token_logprobs,
    )


def command_words(
    command: str, sources: Sequence[str], values: Mapping[str, object]
) -> tuple[str, ...]:
    """The words of the command line with these values: what a run from Python records and shows."""
    options = {
        option.name: option for record in records_of(command) for option in options_of(record)
    }
    words = [
        word
        for name, value in values.items()
        if name in options
        for word in option_words(options[name], value)
    ]
    return (command, *words, "--", *sources)


def option_words(option: Option, value: Any) -> list[str]:
    """The words that give an option this value."""
    if isinstance(value, bool):
        return [option.flag] if value else []
    if option.repeat:
        return [f"{option.flag}={text}" for text in value]
    if option.name == "max_errors":
        most, share = value
        value = most if share is None else f"{share * 100:g}%"
    if option.name == "region":
        value = ",".join(f"{side:g}" for side in value)
    return [f"{option.flag}={value}"]
