"""Commands of the program, and their options, made of the declarations of records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import CommandInfo

from pgcli.cli.app import DECLARED, PANELS, Declared, PgcliCommand, missing
from pgcli.cli.config import Program, ProgramOptions, outside_values, typed_value, unknown_variables
from pgcli.declare import REQUIRED, Option, opt, options_of, same
from pgcli.errors import UsageError
from pgcli.run.options import Dtype, InputOptions, ModelOptions, RunningOptions

if TYPE_CHECKING:
    from pgcli.cli.console import Screen
    from pgcli.stores import Reader

Record = TypeVar("Record")
Function = TypeVar("Function", bound=Callable[..., None])

#: The panels of options that several commands have, in the order of every help page; the
#: panels of a single command come before them.
SHARED_PANELS = (
    *("What to ask", "Which model", "Which images", "Where to"),
    *("Rows", "Boxes", "Images", "Text files", "How to run"),
)
MORE = "--help --all shows all options."

# hidden: the panel would show Python's type; the text of the help explains it
Sources = Annotated[list[str] | None, typer.Argument(metavar="SOURCE", hidden=True)]
FileArgs = Annotated[list[str], typer.Argument(metavar="RESULTS", hidden=True)]


@dataclass(frozen=True, slots=True)
class CliCall:
    """One call of a command: the `values` of its options, the names of the `typed` ones, and the
    words of the command line as `arguments`.
    """

    values: Mapping[str, Any]
    typed: frozenset[str]
    arguments: tuple[str, ...]

    def build(self, record: type[Record], **more: Any) -> Record:
        """The record, made of the values that it has fields for, and of `more`."""
        names = {field.name for field in fields(record)}  # type: ignore[arg-type]
        return record(**{k: v for k, v in self.values.items() if k in names} | more)

    @property
    def quiet(self) -> bool:
        """Whether only errors are printed."""
        return bool(self.values.get("quiet"))

    def report_unused(self, names: Collection[str], where: str, screen: Screen) -> None:
        """Say of each of these options that was typed that it has no effect there."""
        for name in sorted(self.typed & {*names}):
            flag = "-" * (1 + (len(name) > 1)) + name.replace("_", "-")
            screen.info(f"ignored: {flag} has no effect {where}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """The result file that a command writes."""

    output: str = opt(
        "File to write: .jsonl or .parquet.",
        panel="Where to",
        default=REQUIRED,
        metavar="FILE",
        short=("-o",),
        own=True,
    )
    overwrite: bool = opt("Replace an existing file.", panel="Where to", default=False, own=True)
    quiet: bool = same(RunningOptions, "quiet")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a model is found and loaded."""

    revision: str | None = same(ModelOptions, "revision")
    device: str = same(ModelOptions, "device")
    dtype: Dtype = same(ModelOptions, "dtype")


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressOptions:
    """Options for reading URLs."""

    allow_urls: bool = same(InputOptions, "allow_urls")
    allow_private_hosts: bool = same(InputOptions, "allow_private_hosts")

    @property
    def url_reader(self) -> Reader | None:
        """The URL reader; None without --allow-urls."""
        from pgcli.stores import make_reader

        return make_reader(allow_urls=self.allow_urls, allow_private_hosts=self.allow_private_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietOptions:
    """The option that silences a command."""

    quiet: bool = same(RunningOptions, "quiet")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonOptions:
    """The option to print JSON."""

    json: bool = opt("Print one JSON object.", panel="Where to", default=False)


def command(
    name: str,
    details: str,
    *records: type,
    examples: str,
    reads_config: bool = True,
    unused: Collection[str] = (),
    defaults: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Function], Function]:
    """Declares a command of `PANELS`; in its help, the details follow the sentence there.

    Its function has the arguments as parameters, and `call`, the options of the records. The help
    omits `unused` options, which do not apply to this command. `defaults` replace the defaults of
    the records in the help.
    """
    records = (*records, ProgramOptions)
    options = [option for record in records for option in options_of(record)]
    order = SHARED_PANELS.index
    options.sort(key=lambda option: order(option.panel) if option.panel in SHARED_PANELS else -1)
    panel = next(panel for panel, summaries in PANELS.items() if name in summaries)

    def declare(function: Function) -> Function:
        def callback(context: typer.Context, **values: Any) -> None:
            words = {option.name: values.pop(option.name) for option in options}
            call = read_call(name, words, context.obj, reads_config)
            check_surroundings(call, values)
            function(**values, call=call)

        hints = get_type_hints(function, include_extras=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("context", keyword, annotation=typer.Context),
            *(
                argument.replace(kind=keyword, annotation=hints[argument.name])
                for argument in inspect.signature(function).parameters.values()
                if argument.name != "call"
            ),
            *(
                parameter(option, defaults.get(option.name, ""), is_used=option.name not in unused)
                for option in options
            ),
        ]
        callback.__annotations__ = {argument.name: argument.annotation for argument in parameters}
        callback.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        DECLARED[name] = Declared(
            CommandInfo(
                name,
                cls=PgcliCommand,
                callback=callback,
                help=f"{PANELS[panel][name]}\n\n{details}\n\n{examples}",
                epilog=MORE if any(option.seldom for option in options) else None,
                rich_help_panel=panel,
            ),
            records,
            examples.splitlines()[0].removeprefix("$ "),
            frozenset(option.name for option in options if option.seldom),
        )
        return function

    return declare


def check_surroundings(call: CliCall, arguments: Mapping[str, Any]) -> None:
    """Name unknown variables. Raise UsageError for an empty argument, as of an unset variable."""
    if names := unknown_variables():
        from pgcli.cli.console import Screen  # imports Rich

        Screen(quiet=call.quiet).info(f"ignored unknown variables: {', '.join(names)}")
    for value in arguments.values():
        if "" in (value if isinstance(value, list | tuple) else [value]):
            hint = "name a file, folder or model; is a variable of the shell not set?"
            raise UsageError("an argument is empty", hint=hint)


def parameter(option: Option, default: str = "", *, is_used: bool = True) -> inspect.Parameter:
    """The parameter from which Typer makes the option; its words are parsed later. The help shows
    `default` if the command has its own.
    """
    help, choices = option.help, option.choices
    if default := default or option.shown_default:
        help += rf" [dim]\[{'' if option.default is REQUIRED else 'default: '}{default}][/]"
    is_flag = option.kind is bool
    kind: Any = bool if is_flag else list[str] if option.repeat else str
    declared = typer.Option(
        option.flag,
        *option.short,
        help=help,
        rich_help_panel=option.panel,
        metavar=None if is_flag else value_name(option),
        autocompletion=choices if callable(choices) else lambda: [*choices],
        hidden=not is_used,
        show_default=False,
    )
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[kind | None, declared],
    )


def value_name(option: Option) -> str:
    """The placeholder for the value in the help."""
    if option.metavar is not None:
        return option.metavar
    if option.choices and not callable(option.choices):
        return f"[{'|'.join(option.choices)}]"
    return {int: "N", float: "X"}.get(option.kind, "TEXT")


def read_call(
    command: str, words: Mapping[str, Any], program: Program, reads_config: bool
) -> CliCall:
    """The values of the options that are set: on the command line, or else outside of it.

    Raises UsageError for a wrong value, and where a required option is not given.
    """
    records = DECLARED[command].records
    options = [option for record in records for option in options_of(record)]
    typed = {
        option.name: typed_value(option, words[option.name], option.shown_flag)
        for option in options
        if words[option.name] not in (None, [])
    }
    values = typed
    if reads_config:
        values = outside_values(command, records, program.config) | typed
    for option in options:
        if option.default is REQUIRED and option.name not in values:
            raise missing(f"option {option.flag!r}", command)
    return CliCall(values, frozenset(typed), program.arguments)
