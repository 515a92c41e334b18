"""A run on a pseudo-terminal."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import Any

from tests.support.forkserver import ForkedRun
from tests.support.runs import PRETEND, ROOT


def on_terminal(*arguments, columns=80, stdout=None, program=PRETEND, **environment):
    """All output of a run to a terminal with so many columns."""
    terminal, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM")
    }
    environment = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environment}
    files: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": other_end if stdout is None else stdout,
        "stderr": other_end,
    }
    words, variables = [*map(str, arguments)], kept | environment
    if program is PRETEND and sys.platform == "linux":
        run: Any = ForkedRun(words, env=variables, **files)
    else:
        run = subprocess.Popen([*program, *words], env=variables, **files)
    os.close(other_end)
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # on Linux: the other end is closed
            chunk = b""
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    run.wait(timeout=60)
    return shown.decode()
