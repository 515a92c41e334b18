"""The options of every command, which act on the program and are not passed to the command."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pgcli.cli.option import option
from pgcli.cli.ui.console import StderrStyle

program_option = partial(option, "Running", is_eager=True, expose_value=False)


@dataclass
class ProgramState:
    """The values of these options; known even if the rest of the command line is invalid.

    `arguments` are the words of the command line after the program's name.
    """

    config: str | None = None
    config_file: Path | None = None
    debug: bool = False
    style: StderrStyle = field(default_factory=StderrStyle)
    arguments: tuple[str, ...] = ()


def store(context: typer.Context, param: typer.CallbackParam, value: Any) -> None:
    """Store the value where the program finds it, also if a later option is invalid."""
    if isinstance(context.obj, ProgramState) and value is not None:
        setattr(context.obj, str(param.name), value)


def store_style(context: typer.Context, param: typer.CallbackParam, value: Any) -> None:
    """Store how messages and progress are written, as `store` does."""
    if isinstance(context.obj, ProgramState):
        setattr(context.obj.style, str(param.name), value)


ConfigFile = Annotated[
    str | None,
    program_option(
        "--config",
        metavar="FILE",
        callback=store,
        help="The configuration file, instead of ~/.config/pgcli/config.toml.",
    ),
]


def declare(
    config: ConfigFile = None,
    log_format: Annotated[
        Literal["text", "json"],
        program_option(
            "--log-format",
            callback=store_style,
            help="json: messages, progress and errors as one JSON object on each line.",
        ),
    ] = "text",
    no_progress: Annotated[
        bool, program_option("--no-progress", callback=store_style, help="Show no progress.")
    ] = False,
    debug: Annotated[
        bool, program_option("--debug", callback=store, help="Show tracebacks of errors.")
    ] = False,
) -> None:
    """Declares the options."""


@cache
def program_options() -> list[Any]:
    """The options, as Typer makes them of their declarations."""
    app = typer.Typer(add_completion=False)
    app.command()(declare)
    return list(typer.main.get_command(app).params)
