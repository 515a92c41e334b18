"""The exit codes of the program, in words."""

from __future__ import annotations

import signal

from pgcli.errors import INCOMPLETE

EXIT_CODES = {
    0: "every row answered",
    1: "a bug",
    2: "wrong usage",
    INCOMPLETE: "some rows have errors",
    4: "no image",
    5: "a difference found",
    10: "model not available",
    12: "output in use",
    13: "output of another run",
    14: "output not written",
    15: "too many errors",
    16: "model files not usable",
    17: "no device or memory",
}


def exit_code_text(code: int) -> str:
    """The exit code with its meaning; codes above 128 are signals."""
    if code > 128:
        try:
            return f"{code}, {signal.Signals(code - 128).name}"
        except ValueError:
            return str(code)
    return f"{code}, {EXIT_CODES[code]}" if code in EXIT_CODES else str(code)
