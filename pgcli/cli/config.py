"""The configuration file: reads the options that it sets and checks that they exist."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.stores.files import read_text

#: The options that the file may set, as Typer has them: by command, then by key.
Settable = Mapping[str, Mapping[str, Any]]


def config_path() -> Path:
    """The path of the user's configuration file: `~/.config/pgcli/config.toml` on Linux."""
    if sys.platform == "darwin":
        folder = "~/Library/Application Support"
    else:
        folder = os.environ.get("XDG_CONFIG_HOME", "")
        folder = folder if Path(folder).is_absolute() else "~/.config"
    return Path(os.path.expanduser(folder)) / "pgcli" / "config.toml"  # noqa: PTH111 - Path needs a home


def find_config(named: str | None) -> Path:
    """The path of the file that `--config` names, else of the user's own.

    Raises UsageError for a named file that does not exist.
    """
    if named is None:
        return config_path()
    if not Path(named).exists():
        raise UsageError(f"there is no configuration file {named}", hint="check --config")
    return Path(named)


def read_table(file: Path) -> dict[str, Any]:
    """What a configuration file says; empty if there is none. Raises UsageError."""
    try:
        return tomllib.loads(read_text(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"{file} cannot be read: {problem}", hint="correct or remove it"
        ) from problem


def read_config(file: Path, commands: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """Command -> parameter -> value, as the file sets them; empty if there is no file.

    Keys at the top apply to every command that has the option, those in a command's table to that
    command. The commands are looked up only if the file sets something, as that takes a while.
    Raises UsageError, which names file and key, for a key that is not an option.
    """
    values: dict[str, dict[str, object]] = {command: {} for command in commands}
    table = read_table(file)
    settable = {}
    if table:
        settable = {name: settable_options(command) for name, command in commands.items()}
    own = {name: table.pop(name) for name in settable if isinstance(table.get(name), dict)}
    for key, value in table.items():
        shared = {
            command: option
            for command, options in settable.items()
            if (option := options.get(key)) and (option.envvar or is_list(option))
        }
        if not shared:
            raise _unknown(file, key, settable)
        for command, option in shared.items():
            values[command][option.name] = _read(option, value, f"{file}: {key}")
    for command, settings in own.items():
        for key, value in settings.items():
            if key not in settable[command]:
                raise _unknown(file, f"{command}.{key}", settable)
            option = settable[command][key]
            values[command][option.name] = _read(option, value, f"{file}: {command}.{key}")
    return values


def settable_options(command: Any) -> dict[str, Any]:
    """The options of a command that the file may set, by key: all but that of the file itself."""
    keys = {max(param.opts, key=len).removeprefix("--"): param for param in command.params}
    return {
        key: param
        for key, param in keys.items()
        if key != "config"
        and (param.envvar or (param.param_type_name == "option" and key[:1] != "-"))
    }


def is_list(option: Any) -> bool:
    """Whether the option may be given repeatedly."""
    return option.param_type_name == "option" and bool(option.multiple)


def _read(option: Any, value: object, source: str) -> object:
    """The value as on the command line: a text or a list of them, or a truth value for a flag."""
    is_flag, takes_list = getattr(option, "is_flag", False), is_list(option)
    values = value if isinstance(value, list) and takes_list else [value]
    if all(isinstance(one, bool) if is_flag else is_text_or_number(one) for one in values):
        return value if is_flag else [str(one) for one in values] if takes_list else str(value)
    allowed = "one text or a list of texts" if takes_list else "one text or number"
    raise UsageError(
        f"{source} must be {'true or false' if is_flag else allowed}, not {value!r}",
        hint="correct or remove that line",
    )


def is_text_or_number(value: object) -> bool:
    """Whether the value is neither a truth value nor one of several parts."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def _unknown(file: Path, key: str, settable: Settable) -> UsageError:
    if owners := [f"[{command}]" for command in settable if key in settable[command]]:
        return UsageError(
            f"{file}: {key} is not an option of all commands",
            hint=f"write it below {' or '.join(owners)}",
        )
    possible = {*settable, *(option for options in settable.values() for option in options)}
    possible |= {f"{command}.{option}" for command in settable for option in settable[command]}
    close = get_close_matches(key, sorted(possible), n=1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(
        f"{file}: no option is called {key!r}",
        hint=f'{suggestion}keys are options without their dashes: model = "demo"',
    )
