"""The configuration file: reads the options that it sets and checks that they exist."""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from pgcli.errors import UsageError
from pgcli.stores.files import read_text

#: The options that may be set, by the command's name and then by the key in the file.
Settable = Mapping[str, Mapping[str, "ConfigOption"]]


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """An option that the file may set: its parameter, and the kind of its value.

    `is_shared` says that it may stand at the top of the file, where it is set for all commands.
    """

    parameter: str
    is_flag: bool
    is_list: bool
    is_shared: bool

    @property
    def allowed(self) -> str:
        """The values that the file may give, in words."""
        if self.is_flag:
            return "true or false"
        return "one text or a list of texts" if self.is_list else "one text or number"

    def parse(self, value: object) -> object | None:
        """The value as on the command line; None for one of another kind."""
        if isinstance(value, bool) or self.is_flag:
            return value if isinstance(value, bool) and self.is_flag else None
        values = value if isinstance(value, list) and self.is_list else [value]
        if any(isinstance(one, bool) or not isinstance(one, str | int | float) for one in values):
            return None
        return [str(one) for one in values] if self.is_list else str(value)


class ConfigEntry(NamedTuple):
    """A line of the file: its full key, the commands it applies to, the option and its value."""

    key: str
    commands: tuple[str, ...]
    option: str
    value: object


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


def settable_options(commands: Mapping[str, Any]) -> Settable:
    """The options of these commands that the file may set: all but that of the file itself.

    At its top are those that the environment sets too, and repeatable ones.
    """
    return {name: dict(_options(command.params)) for name, command in commands.items()}


def _options(params: Iterable[Any]) -> Iterator[tuple[str, ConfigOption]]:
    for param in params:
        key = max(param.opts, key=len).removeprefix("--")
        is_option = param.param_type_name == "option" and key[:1] != "-"
        if key != "config" and (param.envvar or is_option):
            is_list = is_option and param.multiple
            is_flag = getattr(param, "is_flag", False)
            is_shared = bool(param.envvar) or is_list
            yield key, ConfigOption(param.name, is_flag, is_list, is_shared)


def read_config(file: Path, commands: Mapping[str, Any]) -> dict[str, dict[str, object]]:
    """Command -> parameter -> value, as the file sets them; empty if there is no file.

    Keys at the top apply to every command that has the option, those in a command's table to that
    command. The commands are looked up only if the file sets something, as that takes a while.
    Raises UsageError, which names file and key, for a key that is not an option.
    """
    found: dict[str, dict[str, object]] = {command: {} for command in commands}
    table = read_table(file)
    settable = settable_options(commands) if table else {}
    for key, named, option, value in sorted(_entries(table, settable), key=_is_narrow):
        affected = [
            command
            for command in named
            if (known := settable[command].get(option)) and (known.is_shared or len(named) == 1)
        ]
        if not affected:
            raise _unknown(file, key, settable)
        for command in affected:
            found[command] |= _set(file, key, settable[command][option], value)
    return found


def _entries(table: Mapping[str, object], settable: Settable) -> Iterator[ConfigEntry]:
    for key, value in table.items():
        if key in settable and isinstance(value, dict):
            yield from (
                ConfigEntry(f"{key}.{name}", (key,), name, own) for name, own in value.items()
            )
        else:
            yield ConfigEntry(key, tuple(settable), key, value)


def _is_narrow(entry: ConfigEntry) -> bool:
    return len(entry.commands) == 1


def _set(file: Path, key: str, setting: ConfigOption, value: object) -> dict[str, object]:
    """The value as on the command line: text, or true and false for a flag."""
    parsed = setting.parse(value)
    if parsed is None:
        raise UsageError(
            f"{file}: {key} must be {setting.allowed}, not {value!r}",
            hint="correct or remove that line",
        )
    return {setting.parameter: parsed}


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
