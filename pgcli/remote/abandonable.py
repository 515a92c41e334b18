"""Waits for calls that no signal interrupts, and leaves them behind when they take too long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from pgcli.remote.deadline import Deadline

POLL_SECONDS = 0.1

Result = TypeVar("Result")


def run_abandonable(call: Callable[[], Result], *deadlines: Deadline) -> Result:
    """What the call returns or raises. Raises TimeoutError, and RemoteError once it is stopped.

    The call runs in a thread, which is abandoned then, or when a signal raises an exception here.
    """
    found: Future[Result] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again where the call is waited for
            found.set_exception(error)

    threading.Thread(target=run, name="pgcli-remote", daemon=True).start()
    while not found.done():
        wait([found], min(deadline.remaining(POLL_SECONDS) for deadline in deadlines))
    return found.result()
