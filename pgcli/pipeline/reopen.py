"""The request of an earlier run, read from its record, and its input."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pgcli.box_filter import BoxFilter
from pgcli.declare import Option, options_of
from pgcli.errors import UsageError
from pgcli.inputs import Inventory
from pgcli.pipeline.checks import read_options
from pgcli.pipeline.request import RunRequest
from pgcli.pipeline.request.options import InputOptions
from pgcli.pipeline.rows import RunRows
from pgcli.pipeline.state.folder import recorded_inputs
from pgcli.pipeline.state.record import RUN, RunRecord, read_record, state_folder, why_no_record
from pgcli.stores import Reader, Store, open_folder
from pgcli.tasks import AnyQuestion, EmbeddingQuestion, Question
from pgcli.tasks.embedding import EmbeddingTask

Kind = TypeVar("Kind")


#: The sources of a record, which are checked as those of a command are.
SOURCES = Option(help="", panel="", repeat=True)


def parse_question(values: Mapping[str, Any]) -> AnyQuestion:
    """The question of a record. Raises TypeError and ValueError for anything else."""
    known = dict(values)
    if known.get("task") in get_args(EmbeddingTask):
        return checked(EmbeddingQuestion, known)
    box_filter = checked(BoxFilter, known.get("box_filter", {}))
    return checked(Question, known | {"box_filter": box_filter})


def checked(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """A record with values of JSON. Raises TypeError for a name or a type that it does not have."""
    hints, known = get_type_hints(kind), as_tuples(dict(values))
    for name, value in known.items():
        if not fits(value, hints.get(name)):
            raise TypeError(f"{name} is {value!r}")
    return kind(**known)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of the type of a field."""
    kinds = get_args(hint)
    if get_origin(hint) is Literal:
        return value in kinds
    if get_origin(hint) is tuple:
        each = repeat(kinds[0]) if Ellipsis in kinds else kinds
        return isinstance(value, tuple) and all(map(fits, value, each))
    if kinds:  # of a union
        return any(fits(value, kind) for kind in kinds)
    return hint is not None and type(value) in ((int, float) if hint is float else (hint,))


def as_tuples(value: Any) -> Any:
    """The value with tuples in place of lists."""
    if isinstance(value, dict):
        return {name: as_tuples(inner) for name, inner in value.items()}
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value


def open_store(output: str) -> Store:
    """The state folder of an output. Raises UsageError if there is none."""
    try:
        return open_folder(state_folder(output))
    except FileNotFoundError:
        raise no_record(output, f"there is no {state_folder(output)}") from None


def record_of(output: str, store: Store) -> RunRecord:
    """The record of an output's run. Raises UsageError if there is none."""
    record = read_record(store)
    if record is None:
        raise no_record(output, why_no_record(store))
    return record


def no_record(output: str, why: str) -> UsageError:
    """The error for an output without a record of its run."""
    return UsageError(
        f"{output} has no record of a run: {why}",
        hint="name an output of a command that answers, as it was given to -o",
    )


def reopened_request(output: str, record: RunRecord) -> RunRequest:
    """The request of a run, as far as its input depends on it. Raises UsageError."""
    values = dict(record.input)
    try:
        options = {
            option.name: option.read(values[option.name])
            for option in options_of(InputOptions)
            if values.get(option.name, option.default) != option.default
        }
        return RunRequest(
            question=parse_question(values["question"]),
            sources=SOURCES.read(values["sources"]),
            input=InputOptions(**options),
            folder=os.path.realpath(values["folder"]),
        )
    except (KeyError, TypeError, ValueError) as problem:
        raise UsageError(
            f"{state_folder(output)}/{RUN} is not the record of a run: {problem}",
            hint="--overwrite writes the output and its record again",
        ) from problem


def recorded_rows(store: Store, request: RunRequest, reader: Reader | None) -> RunRows | None:
    """The rows of a run, with the input as it is recorded; None if it is not, as standard input.

    Addresses are read by the `reader`, and refused without one.
    """
    files = recorded_inputs(store)
    if "-" in request.sources or not files:
        return None
    options = replace(read_options(request), url_reader=reader)
    inventory = Inventory.load(files, request.sources, options)
    return RunRows(inventory, request.question, request.input.limit)


def reopened_rows(output: str, reader: Reader | None) -> RunRows | None:
    """The rows of an output's run, with the input as the run recorded it.

    Addresses are read by the `reader`. None if the input was standard input. Raises UsageError.
    """
    store = open_store(output)
    request = reopened_request(output, record_of(output, store))
    return recorded_rows(store, request, reader)
