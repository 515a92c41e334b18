"""The Typer app and its commands, each imported when it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

from pgcli.cli.command_list import COMMANDS
from pgcli.cli.program_command import PgcliCommand, ValueHelp, named_by_program
from pgcli.cli.streams import raise_on_closed_pipe


class Commands(Mapping[str, Any]):
    """The commands by their names, each imported when it is looked up: --help has to be fast."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return imported_command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def imported_command(name: str) -> Any:
    """The command, as Typer makes it of its declaration."""
    import_module(f"pgcli.cli.commands.{name}{'_' if name in UNUSABLE_NAMES else ''}")
    return typer.main.get_command_from_info(
        DECLARED[name], pretty_exceptions_short=False, rich_markup_mode=app.rich_markup_mode
    )


class PgcliGroup(ValueHelp, TyperGroup):
    """All commands. Typer would exit with 1 when the reader of a pipe is gone."""

    def __init__(self, **given: Any):
        super().__init__(**given | {"commands": None})
        self.commands: Any = Commands()

    def list_commands(self, context: Any) -> list[str]:
        return [*self.commands]

    def invoke(self, context: Any) -> Any:
        with raise_on_closed_pipe():
            return super().invoke(context)

    def format_help(self, context: Any, formatter: Any) -> None:
        """Print the help, with the name of the program in its examples."""
        commands = self.commands
        self.commands = {
            name: TyperCommand(name, help=summary, rich_help_panel=panel)
            for name, (panel, summary) in COMMANDS.items()
        }
        try:
            with named_by_program(self):
                super().format_help(context, formatter)
        finally:
            self.commands = commands


app = typer.Typer(
    cls=PgcliGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


#: The declarations of the commands that were imported, by their names.
DECLARED: dict[str, CommandInfo] = {}
UNUSABLE_NAMES = ("import", "eval")  # of modules, as Python has other meanings for them
Function = TypeVar("Function", bound=Callable[..., None])


def command(
    name: str, details: str, *, cls: type[PgcliCommand] = PgcliCommand, **more: Any
) -> Callable[[Function], Function]:
    """Declares a command of `COMMANDS`; in its help, the details follow the sentence there."""
    panel, summary = COMMANDS[name]

    def declare(callback: Function) -> Function:
        DECLARED[name] = CommandInfo(
            name,
            cls=cls,
            callback=callback,
            help=f"{summary}\n\n{details}",
            rich_help_panel=panel,
            **more,
        )
        return callback

    return declare
