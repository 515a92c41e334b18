"""Standard streams that are closed, full, or no longer read."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from pgcli.run.progress.shutdown import Interrupted


def open_closed_streams() -> None:
    """Open the standard streams that `2>&-` and the like closed, as /dev/null.

    The next file opened would take such a descriptor, and get what libraries write to the stream.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor, which is this one


def discard_output(descriptor: int) -> None:
    """Redirect a stream to /dev/null; the interpreter would fail again on what it buffers."""
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), descriptor)


@contextmanager
def raise_on_closed_pipe() -> Iterator[None]:
    """A block in which writing to a pipe without a reader raises Interrupted, as SIGPIPE would."""
    try:
        yield
    except BrokenPipeError:
        raise Interrupted(signal.SIGPIPE) from None
    except SystemExit as end:  # Rich, which prints the help, ends the program so
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        raise Interrupted(signal.SIGPIPE) from None
