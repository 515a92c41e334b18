"""The configuration file: reads the options that it sets and checks that they exist."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

import typer

from pgcli.errors import UsageError

#: The options that may be set, by the command's name and then by the key in the file.
Settable = Mapping[str, Mapping[str, "ConfigOption"]]


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """An option that the file may set: its parameter, and whether it is a flag."""

    parameter: str
    is_flag: bool


class ConfigEntry(NamedTuple):
    """A line of the file: its full key, the commands it applies to, the option and its value."""

    key: str
    commands: tuple[str, ...]
    option: str
    value: object


def config_path() -> Path:
    """The path of the configuration file: `~/.config/pgcli/config.toml` on Linux."""
    folder = Path(typer.get_app_dir("pgcli"))
    if not folder.is_absolute():  # an empty or relative XDG_CONFIG_HOME is ignored
        folder = Path(os.path.expanduser("~/.config/pgcli"))  # noqa: PTH111 - Path needs a home
    return folder / "config.toml"


def settable_options(commands: Mapping[str, Any]) -> Settable:
    """The options of these commands that the file may set: those that the environment may set."""
    return {
        name: {
            max(param.opts, key=len).removeprefix("--"): ConfigOption(
                param.name, is_flag=getattr(param, "is_flag", False)
            )
            for param in command.params
            if param.envvar
        }
        for name, command in commands.items()
    }


def read_config(file: Path, settable: Settable) -> dict[str, dict[str, object]]:
    """Command -> parameter -> value, as the file sets them; empty if there is no file.

    Keys at the top apply to every command that has the option, those in a command's table to that
    command. Raises UsageError, which names file and key, for a key that is not an option.
    """
    found: dict[str, dict[str, object]] = {command: {} for command in settable}
    for key, commands, option, value in sorted(_entries(_table(file), settable), key=_is_narrow):
        affected = [command for command in commands if option in settable[command]]
        if not affected:
            raise _unknown(file, key, settable)
        for command in affected:
            found[command] |= _set(file, key, settable[command][option], value)
    return found


def _table(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise UsageError(
            f"{file} cannot be read: {problem}", hint="correct or remove it"
        ) from problem


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
    if isinstance(value, bool) == setting.is_flag and isinstance(value, str | int | float):
        return {setting.parameter: value if setting.is_flag else str(value)}
    allowed = "true or false" if setting.is_flag else "one text or number"
    raise UsageError(
        f"{file}: {key} must be {allowed}, not {value!r}", hint="correct or remove that line"
    )


def _unknown(file: Path, key: str, settable: Settable) -> UsageError:
    possible = {*settable, *(option for options in settable.values() for option in options)}
    possible |= {f"{command}.{option}" for command in settable for option in settable[command]}
    close = get_close_matches(key, sorted(possible), n=1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(
        f"{file}: no option is called {key!r}",
        hint=f'{suggestion}keys are options without their dashes: model = "demo"',
    )
