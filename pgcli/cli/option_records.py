"""Commands that take their options in records: each field of a record is an option."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each field of its records as an option of the command line.

    Its parameters that are records are replaced by their fields. A parameter `options` is a record
    of records, which also holds the words of the command line.
    """
    kind = get_type_hints(command).get("options")
    hints = get_type_hints(command if kind is None else kind)
    records: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    def spread(*, context: typer.Context, **given: Any) -> None:
        built: dict[str, Any] = {
            name: record(**{field.name: given.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        if kind is not None:
            built = {"options": kind(**built, arguments=context.obj.arguments)}
        command(**given, **built)

    parameters = [
        inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    ]
    parameters += [p for p in _parameters(command) if p.name not in {"options", *records}]
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
