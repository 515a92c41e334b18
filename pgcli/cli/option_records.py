"""Commands that take their options in records: each field of a record is an option."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_type_hints

import typer


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each field of its parameter `options` as an option of the command line."""
    from pgcli.cli.options import PANELS  # not at the top: --help has to be fast

    kind: Any = get_type_hints(command)["options"]
    fields_of_kind = get_type_hints(kind)
    records = {name: fields_of_kind[name] for name in PANELS if name in fields_of_kind}

    def spread(*, context: typer.Context, **given: Any) -> None:
        built = {
            name: record(**{field.name: given.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        command(**given, options=kind(**built, arguments=context.obj.arguments))

    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    ]
    parameters += [p for p in _parameters(command) if p.name != "options"]
    parameters += [p for record in records.values() for p in _parameters(record)]
    spread.__name__, spread.__doc__ = command.__name__, command.__doc__
    spread.__annotations__ = {p.name: p.annotation for p in parameters}
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return spread


def with_records(command: Callable[..., None], records: dict[str, Any]) -> Callable[..., None]:
    """The command with each field of the records, its parameters by name, as an option."""

    def spread(**given: Any) -> None:
        built = {
            name: record(**{field.name: given.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        command(**given, **built)

    parameters = [p for p in _parameters(command) if p.name not in records]
    parameters += [p for record in records.values() for p in _parameters(record)]
    spread.__name__, spread.__doc__ = command.__name__, command.__doc__
    spread.__annotations__ = {p.name: p.annotation for p in parameters}
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return spread


def _parameters(function: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """The parameters of a function, or of the constructor of a record."""
    hints = get_type_hints(function, include_extras=True)
    for parameter in inspect.signature(function).parameters.values():
        yield parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
