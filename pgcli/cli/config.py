"""Options that are set outside of a command line: by variables and by the configuration file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pgcli.cli.app import HELP, PANELS, declaration, negated
from pgcli.declare import ENV_PREFIX, VARIABLES, Option, opt, options_of, parse_value
from pgcli.errors import UsageError
from pgcli.text import number_reason

COMMANDS = [name for summaries in PANELS.values() for name in summaries]
ALL = "--all"  # after --help
_running = partial(opt, panel="How to run", affects_rows=False, seldom=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOptions:
    """Options of every command, which affect the program and not a run."""

    config: str | None = _running(
        "Configuration file to use instead of ~/.config/pgcli/config.toml.", metavar="FILE"
    )
    log_format: Literal["text", "json"] = _running(
        "Format of messages, progress and errors; json prints JSON lines.", default="text"
    )
    no_progress: bool = _running("Hide the progress display.", default=False)
    debug: bool = _running("Show tracebacks of errors.", default=False, seldom=False)


@dataclass(frozen=True, slots=True)
class Program(ProgramOptions):
    """The options of a program, and the words of its command line; `shows_all` in the help."""

    arguments: tuple[str, ...] = ()
    shows_all: bool = False


def read_program(words: Sequence[str]) -> Program:
    """The program's options, before the command line is parsed: its errors are shown as they say.

    A wrong value is left to the command, which raises it.
    """
    if shows_all := ALL in words and any(word in HELP for word in words):
        words = [word for word in words if word != ALL]
    command = next((word for word in words if word[:1] != "-"), "")
    typed: dict[str, Any] = {}
    for option in options_of(ProgramOptions):
        for word, following in zip(words, (*words[1:], ""), strict=False):
            name, equals, text = word.partition("=")
            if word in (option.flag, negated(option.flag)) and option.kind is bool:
                typed[option.name] = word == option.flag
            elif name == option.flag:
                typed[option.name] = text if equals else following
    try:
        values = outside_values(command, [ProgramOptions], typed.get("config"))
    except UsageError:
        values = {}
    return Program(**values | typed, arguments=tuple(words), shows_all=shows_all)


def unknown_variables() -> list[str]:
    """The environment variables that start with the prefix and set no option."""
    names = {ENV_PREFIX + name.upper() for name in VARIABLES}
    return sorted(name for name in os.environ if name.startswith(ENV_PREFIX) and name not in names)


def outside_values(command: str, records: Iterable[type], config: str | None) -> dict[str, Any]:
    """The values of options that are set outside of a call of the command, by their names.

    The environment comes before the file, which `config` names, or else PGCLI_CONFIG. Keys at its
    top set the option of every command, keys in a command's table only its own. Raises UsageError
    for a wrong value or key, and names the variable, or the key and the file.
    """
    file = find_config(config or os.environ.get("PGCLI_CONFIG"))
    table = read_config_file(file)
    shared = {key: value for key, value in table.items() if not is_command_table(key, value)}
    own = {} if command in shared else table.get(command, {})
    values: dict[str, Any] = {}
    for option in (option for record in records for option in options_of(record)):
        if option.variable and (text := os.environ.get(option.variable)):
            values[option.name] = typed_value(option, text, option.variable)
        elif option.key in own:
            source = f"{file}: {command}.{option.key}"
            values[option.name] = typed_value(option, own[option.key], source)
        elif option.key in shared and not option.own:
            source = f"{file}: {option.key}"
            values[option.name] = typed_value(option, shared[option.key], source)
    return values


def typed_value(option: Option, value: Any, source: str) -> Any:
    """The value of an option as a person gives it: each text of a list may be several, with commas.

    Raises UsageError, which names the source.
    """
    if option.repeat and isinstance(value, list):
        return tuple(entry for text in value for entry in parse_value(option, text, source))
    return parse_value(option, value, source)


def find_config(named: str | None) -> Path:
    """The path of the configuration file that is named, else of the user's own.

    Raises UsageError for a named file that does not exist.
    """
    if named is not None:
        if not Path(named).exists():
            raise UsageError(f"there is no configuration file {named}", hint="check the spelling")
        return Path(named)
    if sys.platform == "darwin":
        folder = "~/Library/Application Support"
    else:
        folder = os.environ.get("XDG_CONFIG_HOME", "")
        folder = folder if Path(folder).is_absolute() else "~/.config"
    return Path(os.path.expanduser(folder)) / "pgcli" / "config.toml"  # noqa: PTH111 - Path needs a home


def read_config_file(file: Path) -> dict[str, Any]:
    """The content of a configuration file; empty if it does not exist.

    Raises UsageError for a file that cannot be read, and for a key that is no option.
    """
    if not os.path.lexists(file):
        return {}
    import tomllib

    from pgcli.stores.files import read_text  # takes 0.03 s

    try:
        table = tomllib.loads(read_text(file))
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"{file} cannot be read: {number_reason(problem)}", hint="correct or remove the file"
        ) from problem
    if table:
        check_keys(file, table)
    return table


def check_keys(file: Path, table: Mapping[str, Any]) -> None:
    """Raise UsageError for a key that sets no option, which imports all commands."""
    keys = {
        name: {
            option.key: option.own
            for record in declaration(name).records
            for option in options_of(record)
            if option.name != "config"
        }
        for name in COMMANDS
    }
    shared = {key for options in keys.values() for key, own in options.items() if not own}
    for name, value in table.items():
        is_command = is_command_table(name, value)
        allowed = {*keys[name]} if is_command else shared
        for key in value if is_command else [name]:
            if key not in allowed:
                shown, owner = (f"{name}.{key}", name) if is_command else (key, "all commands")
                if owners := [f"[{command}]" for command in keys if key in keys[command]]:
                    raise UsageError(
                        f"{file}: {shown} is not an option of {owner}",
                        hint=f"move it below {' or '.join(owners)}",
                    )
                close = get_close_matches(key, {*allowed, *keys}, n=1)
                raise UsageError(
                    f"{file}: no option is called {shown}",
                    hint=f"did you mean {close[0]}?"
                    if close
                    else 'keys are option names without the leading dashes: model = "demo"',
                )


def is_command_table(name: str, value: Any) -> bool:
    """Whether a key of the file is a command's table; `view` at the top may be the option, too."""
    return isinstance(value, dict) and name in COMMANDS
