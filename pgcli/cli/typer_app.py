"""The Typer app, the layout of its help, and commands that take their options in records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandInfo

from pgcli.cli import config
from pgcli.cli.command_list import COMMANDS
from pgcli.cli.program_name import with_program_name
from pgcli.cli.program_options import ProgramState, program_options
from pgcli.cli.streams import raise_on_closed_pipe
from pgcli.printable import printable


class ValueHelp:
    """Shows nothing after a flag, and choices as `[record|stop]`; Typer shows `<bool>` and
    `<record|stop>`.
    """

    def get_params(self, context: Any) -> Any:
        params = super().get_params(context)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
            elif param.metavar is None and "|" in (kind := param.display_type(context) or ""):
                param.metavar = f"[{kind.strip('<>')}]"
        return params


class PgcliCommand(ValueHelp, TyperCommand):
    """A command with the options of the program, and with `--help` in the panel Running.

    `epilog` holds its examples, one on each line, with which the help text ends.
    """

    reads_config = True

    def __init__(self, *given: Any, **more: Any):
        super().__init__(*given, **more)
        self.params += program_options()
        self.examples = (self.epilog or "").splitlines()
        self.help = "\n\n".join(filter(None, (self.help, "\n".join(self.examples))))
        self.epilog = None

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        """Parse the command line, with defaults from the configuration file."""
        if isinstance(context.obj, ProgramState) and not context.resilient_parsing:
            self.parse_program_options(context, args)
            if self.reads_config:
                self.read_config(context)
                self.parse_program_options(context, args)
        return super().parse_args(context, args)

    def parse_program_options(self, context: Any, args: Sequence[str]) -> None:
        """Store the program's options, also where the rest of the command line is invalid."""
        parser = self.make_parser(context)
        parser.ignore_unknown_options = True
        with suppress(typer.TyperException):  # parsing the whole raises it again
            given = parser.parse_args([*args])[0]
            for param in program_options():
                param.handle_parse_result(context, given, [])

    def read_config(self, context: Any) -> None:
        """Read the configuration file: its values are the defaults of all options."""
        context.obj.config_file = config.find_config(context.obj.config)
        commands = context.parent.command.commands
        defaults = config.read_config(context.obj.config_file, commands)
        context.default_map = defaults[context.info_name]

    def make_parser(self, context: Any) -> Any:
        """The parser, in which `--no-NAME` turns off a flag that a variable or the file turned on.

        The help does not list these names.
        """
        parser = super().make_parser(context)
        for param in self.get_params(context):
            names = [name for name in param.opts if name.startswith("--") and name != "--help"]
            if getattr(param, "is_flag", False) and names:
                off = [negate(name) for name in names]
                parser.add_option(param, off, param.name, action="store_const", const=False)
        return parser

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
        with named_by_program(self):
            super().format_help(context, formatter)


def negate(flag: str) -> str:
    """`--no-NAME` for `--NAME`, and the reverse."""
    name = flag.removeprefix("--no-")
    return f"--{name}" if name != flag else f"--no-{flag.removeprefix('--')}"


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


@contextmanager
def named_by_program(command: Any) -> Iterator[None]:
    """The name of the program in the examples of a command's help."""
    help = command.help
    command.help = with_program_name(help or "")
    try:
        yield
    finally:
        command.help = help


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
