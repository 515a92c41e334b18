"""The Typer app, the layout of its help, and commands that take their options in records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from pgcli.cli.options import Options
from pgcli.cli.streams import raise_on_closed_pipe
from pgcli.printable import printable


class FlagHelp:
    """Removes the `<bool>` that Typer's help prints after flags."""

    def get_params(self, context: Any) -> Any:
        params = super().get_params(context)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class PgcliCommand(FlagHelp, TyperCommand):
    """A command whose `--help` is in the panel Running.

    `epilog` holds its examples, one on each line, with which the help text ends.
    """

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.examples = (self.epilog or "").splitlines()
        self.help = "\n\n".join(filter(None, (self.help, "\n".join(self.examples))))
        self.epilog = None

    def collect_usage_pieces(self, context: Any) -> list[str]:
        """What follows the name in the usage line: the arguments, then the options."""
        options, *arguments = super().collect_usage_pieces(context)
        return [*(piece.replace("{", "").replace("}", "") for piece in arguments), options]

    def get_help_option(self, context: Any) -> Any:
        option = super().get_help_option(context)
        if option is not None:
            option.rich_help_panel = "Running"
        return option

    def format_help(self, context: Any, formatter: Any) -> None:
        """Print the help, in which defaults from the configuration file are printable."""
        defaults = context.default_map or {}
        context.default_map = {
            name: printable(value) if isinstance(value, str) else value
            for name, value in defaults.items()
        }
        super().format_help(context, formatter)


class PgcliGroup(FlagHelp, TyperGroup):
    """All commands. Typer would exit with 1 when the reader of a pipe is gone."""

    def invoke(self, context: Any) -> Any:
        with raise_on_closed_pipe():
            return super().invoke(context)


app = typer.Typer(
    cls=PgcliGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each field of its parameter `options` as an option of the command line."""
    records = get_type_hints(Options)

    def spread(**given: Any) -> None:
        built = {
            name: record(**{field.name: given.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        command(**given, options=Options(**built))

    parameters = [p for p in _parameters(command) if p.name != "options"]
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
