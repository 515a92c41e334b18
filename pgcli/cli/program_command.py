"""A command of the program: its options beside its own, its defaults, and its help."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import typer
from typer.core import TyperCommand

from pgcli.cli import config
from pgcli.cli.program_name import with_program_name
from pgcli.cli.program_options import ProgramState, program_options
from pgcli.printable import printable

#: The panels that several commands have, in the order of every help page; before them come those of
#: the command alone.
SHARED_PANELS = ("Input", "Output", "Model", "Rows", "Boxes", "Images", "Text files", "Running")


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
        self.params = sorted((*self.params, *program_options()), key=panel_order)
        for param in self.params:
            if param.multiple and param.envvar:  # a text of several values, with commas
                setattr(param, "split_envvar_value", as_list)  # noqa: B010 - a method, to mypy
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
        remaining = super().parse_args(context, args)
        origin = context.get_parameter_source("revision")
        if origin is not None and origin.name != "COMMANDLINE":
            from pgcli.run.request.applies import is_on_hub  # not at the top: --help has to be fast

            if not is_on_hub(context.params.get("model")):
                context.params["revision"] = None  # of another model than this
        return remaining

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


def as_list(text: str) -> list[str]:
    """The text of a variable as the value of an option that may be repeated."""
    return [text]


def panel_order(param: Any) -> int:
    """Where a parameter's panel stands in the help."""
    panel = getattr(param, "rich_help_panel", None)
    return SHARED_PANELS.index(panel) if panel in SHARED_PANELS else -1


def negate(flag: str) -> str:
    """`--no-NAME` for `--NAME`, and the reverse."""
    name = flag.removeprefix("--no-")
    return f"--{name}" if name != flag else f"--no-{flag.removeprefix('--')}"


@contextmanager
def named_by_program(command: Any) -> Iterator[None]:
    """The name of the program in the examples of a command's help."""
    help = command.help
    command.help = with_program_name(help or "")
    try:
        yield
    finally:
        command.help = help
