"""A worker process as its parent has it: started, asked, given up on, started again."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgcli.records import DecodedImage, Fault, Item
from pgcli.workers.process import READY, TIME_LIMIT_SECONDS, Look, receive, send

START_LIMIT_SECONDS = 120

#: The parent's module path is passed on, so that a checkout works that is not installed; -P keeps
#: the current folder, where pictures may be, from becoming a place that modules come from.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from pgcli.workers.process import serve; serve()"
)

#: Large pictures take and free tens of megabytes each, and to have the system give, clear and take
#: back these every time costs a seventh of their time. A worker keeps this much instead, in bytes.
#: glibc reads them, other C libraries do not; whoever has set them otherwise is obeyed.
KEPT_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),  # above Pillow's blocks of 16 MiB
}


class WorkerDied(Exception):
    """The process ended in the middle of a picture."""


class TookTooLong(Exception):
    """The process was still at a picture when its time was over."""


class Worker:
    """A worker process, started when made and again whenever it has died."""

    def __init__(self, look: Look):
        self._look = look
        self._lock = threading.Lock()
        self._stopped = False
        self._ready = False
        self._start()

    def look(self, item: Item) -> DecodedImage:
        """The item's picture. One that the process dies of is tried once more, in a fresh one."""
        fault = Fault("worker_crashed", "The process that decodes the picture died of it, twice.")
        for _ in range(2):
            try:
                return self._answer(item)
            except WorkerDied:
                self._restart()
            except TookTooLong:
                self._restart()
                message = f"Decoding the picture takes longer than {TIME_LIMIT_SECONDS} seconds."
                fault = Fault("timeout", message)
                break
        return DecodedImage(replace(item, data=None), None, None, None, 0.0, fault)

    def stop(self) -> None:
        """End the process, and let no new one start."""
        with self._lock:
            self._stopped = True
            self._end()

    def _answer(self, item: Item) -> DecodedImage:
        self._wait_until_ready()
        try:
            # what only the output needs stays here
            send(self._requests, replace(item, fields={}, kept={}))
        except OSError as problem:
            raise WorkerDied from problem
        picture: DecodedImage = self._reply(TIME_LIMIT_SECONDS)
        return replace(picture, item=replace(item, data=None))

    def _wait_until_ready(self) -> None:
        """Keep the time that starting takes from counting as the first picture's."""
        if self._ready:
            return
        try:
            self._ready = self._reply(START_LIMIT_SECONDS) == READY
        except (WorkerDied, TookTooLong) as problem:
            if self._stopped:
                raise
            raise RuntimeError(f"A worker process did not start: {sys.executable}") from problem

    def _reply(self, seconds: float) -> Any:
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        if not poll.poll(seconds * 1000):
            raise TookTooLong
        reply = receive(self._replies)
        if reply is None:
            raise WorkerDied
        return reply

    def _start(self) -> None:
        home = str(Path(__file__).parents[2])
        path = [entry for entry in sys.path if entry]
        command = [sys.executable, "-P", f"-Xutf8={sys.flags.utf8_mode}", "-c", _PROGRAM]
        self._process = subprocess.Popen(
            [*command, *path, *([] if home in path else [home])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=KEPT_MEMORY | os.environ,
            process_group=0,  # the terminal's Ctrl-C is for the parent, also while this one starts
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._ready = False
        with suppress(OSError):  # one that died at once is noticed when it is not ready
            send(self._requests, self._look)

    def _restart(self) -> None:
        with self._lock:
            if self._stopped:
                raise WorkerDied
            self._end()
            self._start()

    def _end(self) -> None:
        self._process.kill()
        with suppress(OSError):  # bytes that were not taken any more
            self._requests.close()
        with suppress(subprocess.TimeoutExpired):  # it may hang in a dead disk, beyond signals
            self._process.wait(timeout=5)
