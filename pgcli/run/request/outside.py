"""What the environment and the configuration file say of options, for runs from Python.

The command line reads the same names through Typer, and checks the whole file.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pgcli.errors import UsageError
from pgcli.run.request.declare import Option, options_of, parse_value
from pgcli.stores.files import read_text

FOLDER = "pgcli"


def config_path() -> Path:
    """The path of the user's configuration file: `~/.config/pgcli/config.toml` on Linux."""
    if sys.platform == "darwin":
        folder = "~/Library/Application Support"
    else:
        folder = os.environ.get("XDG_CONFIG_HOME", "")
        folder = folder if Path(folder).is_absolute() else "~/.config"
    return Path(os.path.expanduser(folder)) / FOLDER / "config.toml"  # noqa: PTH111 - Path needs a home


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


def outside_values(command: str, records: Iterable[type], config: str | None) -> dict[str, Any]:
    """The values that are set outside of a call, by the names of options.

    The environment comes first, then the command's table of the file, then its top. Raises
    UsageError for a wrong value, which names the variable, or the key and the file.
    """
    file = find_config(config or os.environ.get("PGCLI_CONFIG"))
    table = read_table(file)
    own = table.get(command, {})
    values = {}
    for option in (option for record in records for option in options_of(record)):
        if option.variable and (text := os.environ.get(option.variable)):
            values[option.name] = parse_value(option, text, option.variable)
        elif option.key in own:
            values[option.name] = from_file(
                option, own[option.key], f"{file}: {command}.{option.key}"
            )
        elif option.key in table and (option.variable or option.repeat):
            values[option.name] = from_file(option, table[option.key], f"{file}: {option.key}")
    return values


def from_file(option: Option, value: object, source: str) -> Any:
    """The value of a key. Raises UsageError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if isinstance(value, list):
        value = (
            [text for one in value for text in option.read(str(one))] if option.repeat else value
        )
    return parse_value(option, value, source)
