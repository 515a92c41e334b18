"""Typer's commands made ours: the app they join, their look, options that come in records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from pgcli.cli.job import shutdown
from pgcli.cli.options import Options
from pgcli.printable import printable


class FlagHelp:
    """Leaves out the `<bool>` that Typer's help writes beside what is on or off."""

    def get_params(self, context: Any) -> Any:
        params = super().get_params(context)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class PgcliCommand(FlagHelp, TyperCommand):
    """One command. Its `--help` stands with the other options, not in a panel of its own.

    `epilog` has its examples, a line each, which are shown before the options.
    """

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.examples = (self.epilog or "").splitlines()
        summary, _, rest = (self.help or "").partition("\n\n")
        self.help = "\n\n".join(filter(None, (summary, "\n".join(self.examples), rest)))
        self.epilog = None

    def collect_usage_pieces(self, context: Any) -> list[str]:
        """What follows the name in the usage: what the command is about, then its options."""
        options, *arguments = super().collect_usage_pieces(context)
        return [*(piece.replace("{", "").replace("}", "") for piece in arguments), options]

    def get_help_option(self, context: Any) -> Any:
        option = super().get_help_option(context)
        if option is not None:
            option.rich_help_panel = "Running"
        return option

    def format_help(self, context: Any, formatter: Any) -> None:
        """Show the help, in which defaults that the settings file sets are printable."""
        defaults = context.default_map or {}
        context.default_map = {
            name: printable(value) if isinstance(value, str) else value
            for name, value in defaults.items()
        }
        super().format_help(context, formatter)


class PgcliGroup(FlagHelp, TyperGroup):
    """The commands together. Typer would end with 1 where the reader of a pipe has gone."""

    def invoke(self, context: Any) -> Any:
        with shutdown.readers_watched():
            return super().invoke(context)


app = typer.Typer(
    cls=PgcliGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with each field of its parameter `options` as an option on the command line."""
    records = get_type_hints(Options)

    def spread(**given: Any) -> None:
        made = {
            name: record(**{field.name: given.pop(field.name) for field in fields(record)})
            for name, record in records.items()
        }
        command(**given, options=Options(**made))

    parameters = [p for p in _parameters(command) if p.name != "options"]
    parameters += [p for record in records.values() for p in _parameters(record)]
    spread.__name__, spread.__doc__ = command.__name__, command.__doc__
    spread.__annotations__ = {p.name: p.annotation for p in parameters}
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return spread


def _parameters(made_by: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """What is to be given, by name, to call a function or to make a record."""
    hints = get_type_hints(made_by, include_extras=True)
    for parameter in inspect.signature(made_by).parameters.values():
        yield parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
