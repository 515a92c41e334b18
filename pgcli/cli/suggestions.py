"""What was probably meant by an option or a value that does not exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

#: The least likeness of a name that is suggested: `--promt` is like `--prompt`, no less.
LIKE = 0.75
#: Other names of values.
ALIASES = {"bf16": "bfloat16", "fp32": "float32", "f32": "float32", "gpu": "cuda", "json": "jsonl"}


def suggest_option(name: str, context: Any, words: Sequence[str]) -> str:
    """Another command that has the option, or options with a like name; empty for none."""
    if owners := [] if context.parent is None else owners_of(name, context.parent.command):
        names = " and ".join(", ".join(owner.name for owner in owners).rsplit(", ", 1))
        have = f"{names} {'has' if len(owners) == 1 else 'have'} {name}"
        panel = context.command.rich_help_panel
        alike = [owner.name for owner in owners if owner.rich_help_panel == panel]
        return f"{have}: {shlex.join(['pgcli', alike[0], *words[1:]])}" if alike else have
    known = {option.removeprefix("--"): option for option in long_options(context.command)}
    if name.startswith("--no-"):
        known |= {f"no-{flag}": f"--no-{flag}" for flag in long_flags(context.command)}
    bare = name.lstrip("-")
    close = get_close_matches(bare, known, n=2, cutoff=LIKE)
    close = close or [one for one in known if bare in one.split("-")]
    return f"did you mean {' or '.join(known[one] for one in close[:3])}?" if close else ""


def owners_of(name: str, group: Any) -> list[Any]:
    """The commands that have the option."""
    return [command for command in group.commands.values() if name in long_options(command)]


def long_options(command: Any) -> list[str]:
    """The long names of a command's options."""
    return [name for param in command.params for name in param.opts if name.startswith("--")]


def long_flags(command: Any) -> list[str]:
    """The long names of a command's flags, without dashes: those that `--no-NAME` turns off."""
    flags = [param for param in command.params if getattr(param, "is_flag", False)]
    return [name.removeprefix("--") for flag in flags for name in flag.opts if name[:2] == "--"]


def suggest_value(param: Any, message: str) -> str:
    """The value that was probably meant, from a message that quotes the given one; empty for none.

    The choices are those that the help shows, as `[record|stop]`.
    """
    given = re.match(r"'(.+)' is ", message)
    if given is None or not (param.metavar or "").startswith("["):
        return ""
    meant = closest(given[1], param.metavar.strip("[]").split("|"))
    return f"did you mean {max(param.opts, key=len)} {meant}?" if meant else ""


def closest(given: str, choices: Sequence[str]) -> str | None:
    """The choice that is most like the given value, in whatever case."""
    value = given.lower()
    value = ALIASES.get(value, value)
    return next(iter(get_close_matches(value, choices, n=1, cutoff=LIKE)), None)
