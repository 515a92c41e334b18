"""Says why a worker process could not start."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from pgcli.errors import NoUsableDevice

MAX_REASON_BYTES = 4096


def cannot_start(reason: str) -> NoUsableDevice:
    """The error of a process that could not start, for this reason."""
    return NoUsableDevice(
        f"a process that decodes images cannot start: {reason}",
        hint="free memory or processes of this machine or container, or start fewer with "
        "--workers; --workers 0 decodes in this process. The same command resumes the run",
    )


@contextmanager
def thread_errors() -> Iterator[None]:
    """Turn the RuntimeError of a thread that the system does not start into `cannot_start`."""
    try:
        yield
    except RuntimeError as problem:
        if "start new thread" not in str(problem):
            raise
        raise cannot_start(f"{problem} for it") from problem


def why_it_ended(exit_code: int | None, stderr: BinaryIO) -> str:
    """Why a process ended before it was ready: a signal, or the last line that it wrote."""
    if exit_code is None:
        return "it does not answer"
    if exit_code < 0:
        name = signal.Signals(-exit_code).name
        is_memory = exit_code == -signal.SIGKILL
        return f"it was killed by {name}" + (", as where memory runs out" if is_memory else "")
    stderr.seek(0, 2)
    stderr.seek(max(0, stderr.tell() - MAX_REASON_BYTES))
    lines = stderr.read().decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return last or f"it ended with exit code {exit_code}"
