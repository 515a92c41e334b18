"""Prints docs/reference/options.md from the declarations of options."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from html import escape

from pgcli.cli.app import PANELS, declaration
from pgcli.cli.config import ProgramOptions
from pgcli.cli.options import value_name
from pgcli.declare import Option, options_of
from pgcli.run.options import SHARED_OPTIONS
from pgcli.run.questions import COMMAND_OPTIONS

HEAD = """<!-- python docs/reference.py > docs/reference/options.md -->

# Options

`pgcli COMMAND --help` shows the most common options of a command, `--help --all` shows all of them.

- **Command line**: `--batch-size 8`. It overrides variables and the configuration file. `--no-NAME`
  turns off a flag that they turned on, such as `--no-quiet`. The opposite of `--no-timing` is
  `--timing`.
- **Environment variables** set options of a machine or a session: `PGCLI_BATCH_SIZE=8`. They
  override the configuration file. For a flag, use `1` or `0`, or `true` or `false`. pgcli warns
  about other variables that start with `PGCLI_`, and ignores them.
- **Configuration file**: `~/.config/pgcli/config.toml`, or the file that `--config` or
  `PGCLI_CONFIG` names. It may set any option: at the top, options that mean the same in several
  commands; in a table with the name of a command, the options of that command.
- **Python**: keyword arguments have `_` instead of `-`: `batch_size=8`.

```toml
model = "google/paligemma2-3b-mix-224"
log-format = "json"
object = ["cat", "red car"]

[view]
size = 640
```
"""


def reference() -> str:
    """The page."""
    return "\n".join([HEAD, *sections()])


def meanings() -> Mapping[str, Mapping[str, list[str]]]:
    """The help texts of each option, and the commands that have each of them."""
    helps: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in (name for summaries in PANELS.values() for name in summaries):
        for record in declaration(name).records:
            for option in options_of(record):
                helps[option.flag][option.help].append(name)
    return helps


def differences() -> Iterator[str]:
    """A section with the options that have several help texts."""
    yield "## Options that depend on the command\n"
    yield "All other options mean the same in every command that has them.\n"
    yield "| option | in | meaning |\n|---|---|---|"
    for flag, helps in sorted(meanings().items()):
        for help, commands in helps.items() if len(helps) > 1 else ():
            answering = {*COMMAND_OPTIONS} <= {*commands}
            rest = [name for name in commands if name not in COMMAND_OPTIONS]
            names = ["answering commands", *rest] if answering else commands
            yield f"| `{flag}` | {', '.join(names)} | {escaped(help)} |"
    yield ""


def sections() -> Iterator[str]:
    """The sections of the page: shared options, then the options of each command."""
    yield from table("Options of all commands", options_of(ProgramOptions))
    shared = [option for record in SHARED_OPTIONS for option in options_of(record)]
    yield from table(f"Options of {', '.join(COMMAND_OPTIONS)}", shared)
    yield from differences()
    for summaries in PANELS.values():
        for name in summaries:
            records = [
                record for record in declaration(name).records if record is not ProgramOptions
            ]
            if name in COMMAND_OPTIONS:
                records = [record for record in records if record not in SHARED_OPTIONS]
            own = [option for record in records for option in options_of(record)]
            yield from table(f"pgcli {name}", own)


def table(title: str, options: Iterable[Option]) -> Iterator[str]:
    """A section with a table of options, if there are any."""
    rows = [row(option) for option in options]
    if rows:
        yield f"## {title}\n"
        yield "| option | meaning | default | variable |\n|---|---|---|---|"
        yield "\n".join(rows) + "\n"


def row(option: Option) -> str:
    """The row of an option."""
    names = ", ".join(f"`{name}`" for name in (option.flag, *option.short))
    value = "" if option.kind is bool else f" <code>{escape(value_name(option))}</code>"
    variable = f"`{option.variable}`" if option.variable else ""
    cells = (names + value, option.help, option.shown_default, variable)
    return f"| {' | '.join(map(escaped, cells))} |"


def escaped(cell: str) -> str:
    """The text of a cell. Code with a `\\|` would show the backslash on the site."""
    return cell.replace("|", "&#124;")


if __name__ == "__main__":
    print(reference(), end="")  # noqa: T201 - what a script prints
