"""The name by which the program was called: `pgcli`, or `paligemma-cli` beside another pgcli."""

from __future__ import annotations

import os
import re
import sys

DEFAULT, OTHER = "pgcli", "paligemma-cli"
#: The name at the beginning of a command, not in a path, an address or a sentence about it.
COMMAND = re.compile(rf"(?<![\w./-]){DEFAULT}(?= (?:[a-z]+\b|COMMAND|--|\[OPTIONS\]))")


def program_name() -> str:
    """The name of this process's program."""
    name = os.path.basename(sys.argv[0]) if sys.argv else DEFAULT  # noqa: PTH119 - a plain str
    return OTHER if name == OTHER else DEFAULT


def with_program_name(text: str) -> str:
    """The text with that name in its commands."""
    name = program_name()
    return text if name == DEFAULT else COMMAND.sub(name, text)
