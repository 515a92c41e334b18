"""The user's configuration file: the options it sets, checked against those that exist."""

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

#: What may be set, by the command's name and then by the key in the file.
Known = Mapping[str, Mapping[str, "ConfigOption"]]


@dataclass(frozen=True, slots=True)
class ConfigOption:
    """An option that the file may set: its parameter, and whether it is on or off."""

    parameter: str
    is_flag: bool


class ConfigEntry(NamedTuple):
    """A line of the file: its full key, the commands it is meant for, the option and its value."""

    key: str
    commands: tuple[str, ...]
    option: str
    value: object


def config_path() -> Path:
    """Where the configuration file is, if there is one: `~/.config/pgcli/config.toml` on Linux."""
    folder = Path(typer.get_app_dir("pgcli"))
    if not folder.is_absolute():  # an empty or relative XDG_CONFIG_HOME counts for nothing
        folder = Path(os.path.expanduser("~/.config/pgcli"))  # noqa: PTH111 - Path needs a home
    return folder / "config.toml"


def settable_options(commands: Mapping[str, Any]) -> Known:
    """What may be set for these commands of Typer's: what the environment may set too."""
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


def read_config(file: Path, known: Known) -> dict[str, dict[str, object]]:
    """Command -> parameter -> value, as the file sets them; nothing where there is no file.

    Keys at the top hold for every command that has the option, those in a command's table for it
    alone. Raises UsageError, naming file and key, for a key that is no option.
    """
    found: dict[str, dict[str, object]] = {command: {} for command in known}
    for key, commands, option, value in sorted(_entries(_table(file), known), key=_is_narrow):
        concerned = [command for command in commands if option in known[command]]
        if not concerned:
            raise _unknown(file, key, known)
        for command in concerned:
            found[command] |= _set(file, key, known[command][option], value)
    return found


def _table(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise UsageError(f"{file} cannot be read: {problem}", hint="mend or remove it") from problem


def _entries(table: Mapping[str, object], known: Known) -> Iterator[ConfigEntry]:
    for key, value in table.items():
        if key in known and isinstance(value, dict):
            yield from (
                ConfigEntry(f"{key}.{name}", (key,), name, own) for name, own in value.items()
            )
        else:
            yield ConfigEntry(key, tuple(known), key, value)


def _is_narrow(entry: ConfigEntry) -> bool:
    return len(entry.commands) == 1


def _set(file: Path, key: str, setting: ConfigOption, value: object) -> dict[str, object]:
    """The value as the command line would have it: text, or true and false for a flag."""
    if isinstance(value, bool) == setting.is_flag and isinstance(value, str | int | float):
        return {setting.parameter: value if setting.is_flag else str(value)}
    wanted = "true or false" if setting.is_flag else "one text or number"
    raise UsageError(
        f"{file}: {key} must be {wanted}, not {value!r}", hint="mend that line, or remove it"
    )


def _unknown(file: Path, key: str, known: Known) -> UsageError:
    possible = {*known, *(option for options in known.values() for option in options)}
    possible |= {f"{command}.{option}" for command in known for option in known[command]}
    close = get_close_matches(key, sorted(possible), n=1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(
        f"{file}: no option is called {key!r}",
        hint=f'{meant}keys are options without their dashes: model = "demo"',
    )
