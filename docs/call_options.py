"""Prints `CallOptions` of pgcli/api/arguments.py, made of the declarations of options."""

from __future__ import annotations

from collections.abc import Iterator

from pgcli.cli.config import ProgramOptions
from pgcli.declare import Option, options_of
from pgcli.run.options import SHARED_OPTIONS
from pgcli.run.questions import COMMAND_OPTIONS

HEAD = '''class CallOptions(TypedDict, total=False):
    """Keyword arguments of `pgcli.run`, `pgcli.load` and the methods of `pgcli.Engine`.

    Each is the option of the command line with this name; `progress` shows it on stderr.
    """
'''


def call_options() -> str:
    """The text of the class."""
    return "\n".join([HEAD, *lines(), "    progress: bool", ""])


def lines() -> Iterator[str]:
    """A field for each option, first the options of single commands."""
    records = (*COMMAND_OPTIONS.values(), *SHARED_OPTIONS, ProgramOptions)
    options = {option.name: option for record in records for option in options_of(record)}
    del options["output"]  # a parameter of its own
    yield from (f"    {option.name}: {hint(option)}" for option in options.values())


def hint(option: Option) -> str:
    """The type of an option's values."""
    if option.parse is not None:
        return "Any"
    if option.repeat:
        return "str | Sequence[str] | None"
    if option.kind in (bool, int, float):
        return f"{option.kind.__name__} | None"
    if option.choices and not callable(option.choices):
        return f"Literal[{', '.join(f'{choice!r}' for choice in option.choices)}] | None".replace(
            "'", '"'
        )
    return "str | os.PathLike[str] | None"


if __name__ == "__main__":
    print(call_options(), end="")  # noqa: T201 - what a script prints
