"""The request and the input of an earlier run, from its record."""

from __future__ import annotations

import os
from dataclasses import replace

from pgcli.declare import Option, parse_keywords
from pgcli.errors import UsageError
from pgcli.run.checks import read_options
from pgcli.run.request import RunRequest
from pgcli.run.request.make import build_request, records_of
from pgcli.run.rows import RunRows
from pgcli.run.state.folder import State, load_inventory
from pgcli.run.state.record import RUN, RunRecord, read_record, state_location, why_no_record
from pgcli.stores import Reader, Store, open_folder

#: The sources of a record, checked like the sources of a command.
SOURCES = Option(help="", panel="", repeat=True)


def open_store(output: str) -> Store:
    """The state folder of an output. Raises UsageError if there is none."""
    if not output:
        raise UsageError("the name of the output is empty", hint="name a file or folder of a run")
    try:
        return open_folder(state_location(output))
    except FileNotFoundError:
        raise no_record(output, f"there is no {state_location(output)}") from None


def record_of(output: str, store: Store) -> RunRecord:
    """The record of an output's run.

    Raises the error of the run itself if it would refuse the output, and UsageError if there is
    nothing to resume.
    """
    record = read_record(store)
    if record is None:
        State(output, overwrite=False).check()
        raise no_record(output, why_no_record(store))
    return record


def no_record(output: str, why: str) -> UsageError:
    """The error for an output without a record of its run."""
    return UsageError(
        f"{output} has no record of a run: {why}",
        hint="name the output (<-o>) of an answering command",
    )


def reopened_request(output: str, record: RunRecord) -> RunRequest:
    """The request of a run, with the options that rows depend on. Raises UsageError."""
    values = record.input
    try:
        options = parse_keywords(records_of(values["command"]), dict(values["options"]))
        folder = os.path.realpath(values["folder"])
        return build_request(
            values["command"], SOURCES.read(values["sources"]), options, folder=folder
        )
    except (KeyError, TypeError, ValueError, UsageError) as problem:
        raise UsageError(
            f"{state_location(output)}/{RUN} is not the record of a run: {problem}",
            hint="<--overwrite> writes the output and its record again",
        ) from problem


def recorded_rows(store: Store, request: RunRequest, reader: Reader | None) -> RunRows | None:
    """The rows of a run with its recorded input; None if that is not recorded (standard input).

    The `reader` reads URLs; without it, a source at a URL raises UsageError.
    """
    if "-" in request.sources:
        return None
    options = replace(read_options(request), url_reader=reader)
    if (inventory := load_inventory(store, request.sources, options)) is None:
        return None
    return RunRows(inventory, request.question, request.input.limit)


def reopened_rows(output: str, reader: Reader | None) -> RunRows | None:
    """The rows of an output's run with its recorded input; None for standard input.

    The `reader` reads URLs. Raises UsageError.
    """
    store = open_store(output)
    request = reopened_request(output, record_of(output, store))
    return recorded_rows(store, request, reader)
