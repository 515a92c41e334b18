"""Options of the command line, made of their declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

from pgcli.run.request.declare import REQUIRED, Option, option_named, options_of


@dataclass(frozen=True, slots=True)
class Given:
    """The options of a command line: the values of those that are set, and the names of those that
    were typed. `arguments` are its words.
    """

    values: Mapping[str, Any]
    typed: frozenset[str]
    arguments: tuple[str, ...]


def option(
    panel: str, *names: str, help: str, once: bool = True, own: bool = False, **more: Any
) -> Any:
    """An option. One with a long name can also be set by `PGCLI_<NAME>` and at the top of the
    configuration file, unless it is repeatable (not `once`) or `own`: it means something else in
    other commands. The file's table of a command sets all of its options.
    """
    long = [name.removeprefix("--") for name in names if name.startswith("--")]
    if long and once and not own:
        more["envvar"] = "PGCLI_" + long[0].replace("-", "_").upper()
    if choices := more.pop("choices", ()):
        more["autocompletion"] = choices if callable(choices) else lambda: list(choices)
    if default := more.pop("default", ""):  # in words, where the value is not readable
        more["show_default"] = False
        help += rf" [dim]\[default: {default}][/]"
    return typer.Option(*names, help=help, rich_help_panel=panel, show_envvar=False, **more)


def typer_option(declaration: Option, **more: Any) -> Any:
    """The option that a declaration describes; `more` is passed to Typer."""
    is_flag = declaration.kind is bool
    if not is_flag:
        more["parser"] = parser(declaration)
        more["metavar"] = value_name(declaration)
    settings: dict[str, Any] = {
        "help": declaration.help,
        "once": declaration.variable is not None,
        "default": declaration.default_text,
        "choices": declaration.choices,
    }
    names = (declaration.flag, *declaration.short)
    return option(declaration.panel, *names, **settings | more)


def declared(record: type, name: str, **more: Any) -> Any:
    """The option of a field of a record, for a command that has no such record."""
    return typer_option(option_named(record, name), **more)


def parser(declaration: Option) -> Callable[[Any], Any]:
    """The reader of a value, as Typer calls it; that of a repeated option returns a tuple."""

    def read(text: Any) -> Any:
        try:
            return declaration.read(text)
        except ValueError as problem:
            raise typer.BadParameter(str(problem)) from None

    return read


def value_name(declaration: Option) -> str | None:
    """What the help shows in place of the value."""
    if declaration.metavar is not None:
        return declaration.metavar
    if declaration.choices and not callable(declaration.choices):
        return f"[{'|'.join(declaration.choices)}]"
    return {int: "N", float: "X"}.get(declaration.kind)


def number_option(
    panel: str,
    *names: str,
    least: float,
    most: float | None = None,
    above: bool = False,
    **more: Any,
) -> Any:
    """An option whose value is a number from `least` (or above it) to `most`, a whole one if
    `least` is.
    """
    kind = int if isinstance(least, int) else float
    number = Option(help="", panel=panel, min=least, max=most, above=above, kind=kind)
    more = {"metavar": value_name(number), "parser": parser(number)} | more
    return option(panel, *names, **more)


def parameter(declaration: Option, **more: Any) -> inspect.Parameter:
    """The parameter of a function that Typer makes the option of."""
    default: Any = declaration.default
    kind: Any = list[str] if declaration.repeat else str
    if declaration.kind is bool:
        kind = bool
    elif default is REQUIRED:
        default = inspect.Parameter.empty
    else:
        kind = kind | None
        default = None if declaration.default_text or declaration.repeat else default
    return inspect.Parameter(
        declaration.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, typer_option(declaration, **more)],
    )


def with_options(*records: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the options of records to a command, whose parameter `given` has their values."""
    declarations = [one for record in records for one in options_of(record)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def spread(*, context: typer.Context, **values: Any) -> None:
            raw = {one.name: values.pop(one.name) for one in declarations}
            command(**values, given=read_given(context, declarations, raw))

        hints = get_type_hints(command, include_extras=True)
        own = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name])
            for one in inspect.signature(command).parameters.values()
            if one.name != "given"
        ]
        context = inspect.Parameter(
            "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )
        parameters = [context, *own, *map(parameter, declarations)]
        spread.__name__, spread.__doc__ = command.__name__, command.__doc__
        spread.__annotations__ = {one.name: one.annotation for one in parameters}
        spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return spread

    return decorate


def read_given(context: typer.Context, declarations: list[Option], raw: Mapping[str, Any]) -> Given:
    """The values that are set, wherever; Typer has parsed them, of repeated options one by one."""
    origins = {one.name: context.get_parameter_source(one.name) for one in declarations}
    values = {}
    for one in declarations:
        origin = origins[one.name]
        if origin is not None and origin.name != "DEFAULT" and raw[one.name] is not None:
            value = raw[one.name]
            values[one.name] = tuple(x for part in value for x in part) if one.repeat else value
    typed = {name for name, origin in origins.items() if origin and origin.name == "COMMANDLINE"}
    return Given(values, frozenset(typed), tuple(context.obj.arguments))
