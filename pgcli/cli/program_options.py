"""The options of every command, which act on the program and are not passed to the command."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, partial
from inspect import Signature
from pathlib import Path
from typing import Any, Literal

import typer

from pgcli.cli.options import parameter
from pgcli.cli.ui.console import StderrStyle
from pgcli.run.request.declare import opt, options_of

_running = partial(opt, panel="Running", affects_rows=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """What acts on the program and not on a run."""

    config: str | None = _running(
        "The configuration file, instead of ~/.config/pgcli/config.toml.", metavar="FILE"
    )
    log_format: Literal["text", "json"] = _running(
        "json: messages, progress and errors as one JSON object on each line.", default="text"
    )
    no_progress: bool = _running("Show no progress.", default=False)
    debug: bool = _running("Show tracebacks of errors.", default=False)


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


#: How Typer treats them: their values are stored before other options are read.
EAGER = {"is_eager": True, "expose_value": False}


@cache
def program_options() -> list[Any]:
    """The options, as Typer makes them of their declarations."""

    def declare(**options: Any) -> None:
        """Declares the options."""

    stores = {"config": store, "debug": store}
    parameters = [
        parameter(option, **EAGER, callback=stores.get(option.name, store_style))
        for option in options_of(ProgramOptions)
    ]
    declare.__annotations__ = {one.name: one.annotation for one in parameters}
    declare.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False)
    app.command()(declare)
    return list(typer.main.get_command(app).params)
