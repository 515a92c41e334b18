"""The parent's side of a decoding process: starts it, decodes with it, restarts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic

from pgcli.errors import NoUsableDevice
from pgcli.images.limits import UNCLAIMED_BYTES, Budget
from pgcli.images.messages import (
    MAX_PIXEL_BYTES,
    Decoder,
    MalformedMessage,
    claim_of,
    describe_decoder,
    image_from,
    item_header,
    receive,
    send,
    without_data,
)
from pgcli.images.worker_main import PROCESSOR_SECONDS, TIME_LIMIT_SECONDS
from pgcli.records import DecodedImage, Fault, Item

START_LIMIT_SECONDS = 120
MAX_REASON_BYTES = 4096
#: Of a connection, as far as the system allows: the pixels of 448 x 448 pass in one call.
BUFFER_BYTES = 2**20
#: Of an image: for its file, and for its pixels.
MAX_CLAIMS = 2
CRASHED = Fault("worker_crashed", "The process that decodes the image crashed, twice.")

#: The parent's module path is passed on, so that a checkout works that is not installed. -P keeps
#: the current folder, which may hold images, off the module path.
_PROGRAM = (
    "import sys; descriptor = int(sys.argv[1]); sys.path[:] = sys.argv[2:]; "
    "from pgcli.images.worker_main import serve; serve(descriptor)"
)

#: Decoding large images allocates and frees tens of megabytes each. Returning them to the system
#: every time costs a seventh of the time, so a worker keeps this much, in bytes. Only glibc reads
#: these variables; values that the user has set take precedence.
MALLOC_SETTINGS = {
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),  # above Pillow's blocks of 16 MiB
}


class Worker:
    """A decoding process, restarted whenever it has died. One thread at a time decodes with it.

    Another thread calls `kill_if_late` now and then: no read or write has a time limit of its own.
    """

    def __init__(self, decoder: Decoder, memory: Budget):
        self._decoder, self._memory = decoder, memory
        self._lock = threading.Lock()
        self._deadline = inf
        self._is_ready = self._is_late = self._stopped = False
        self._start()

    def decode(self, item: Item) -> DecodedImage:
        """The decoded item. An item whose process dies is tried once more, in a new process."""
        if item.fault is not None:
            return failed(item, item.fault)
        for _ in range(2):
            self._wait_until_ready()
            try:
                return self._request(item)
            except (OSError, EOFError, MalformedMessage):
                limit = self._exceeded_limit()
                self._restart()
                if limit:
                    message = f"Decoding the image takes longer than {limit}."
                    return failed(item, Fault("timeout", message))
        return failed(item, CRASHED)

    def kill_if_late(self) -> None:
        """Kill the process if what it does takes longer than it may."""
        with self._lock:
            if monotonic() > self._deadline:
                self._is_late, self._deadline = True, inf
                self._process.kill()

    def stop(self) -> None:
        """Kill the process for good. A thread that waits for its reply gets EOFError."""
        with self._lock:
            self._stopped = True
            self._process.kill()

    def close(self) -> None:
        """Release what the process held, once no thread uses it any more."""
        self._process.kill()
        self._connection.close()
        self._stderr.close()
        with suppress(subprocess.TimeoutExpired):  # it may hang on a dead disk, beyond signals
            self._process.wait(timeout=5)

    def _request(self, item: Item) -> DecodedImage:
        size = len(item.data or b"")
        claimed = size if size > UNCLAIMED_BYTES else 0
        if not self._memory.take(claimed):
            raise EOFError
        try:
            self._allow(TIME_LIMIT_SECONDS)
            send(self._connection, item_header(item), item.data or b"")
            for _ in range(MAX_CLAIMS + 1):
                header, data = receive(self._connection, MAX_PIXEL_BYTES)
                if "claim" not in header:
                    return image_from(header, data, item, self._decoder)
                self._deadline = inf  # it waits for others, not they for it
                self._memory.give(claimed)
                claimed = claim_of(header)
                if not self._memory.take(claimed):
                    raise EOFError
                self._allow(TIME_LIMIT_SECONDS)
                send(self._connection, {})
            raise MalformedMessage("too many claims")
        finally:
            self._deadline = inf
            self._memory.give(claimed)

    def _allow(self, seconds: float) -> None:
        """Let the process be late after so many seconds from now."""
        with self._lock:
            self._deadline, self._is_late = monotonic() + seconds, False

    def _exceeded_limit(self) -> str | None:
        """The time limit that the process exceeded before it ended, if it did."""
        if self._is_late:
            return f"{TIME_LIMIT_SECONDS} seconds"
        self._process.kill()  # one that sent nonsense lives on
        is_limit = self._exit_code() == -signal.SIGPROF
        return f"{PROCESSOR_SECONDS} seconds of processor time" if is_limit else None

    def _exit_code(self) -> int | None:
        """The exit code of a process that has ended; None if it does not end."""
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return None

    def _wait_until_ready(self) -> None:
        """Wait for the process to start, so that its first image has all of the time limit."""
        if self._is_ready:
            return
        try:
            self._allow(START_LIMIT_SECONDS)
            receive(self._connection, 0)
        except (OSError, EOFError, MalformedMessage) as problem:
            if self._stopped:
                raise
            reason = "it does not answer" if self._is_late else self._why_it_ended()
            raise cannot_start(reason) from problem
        finally:
            self._deadline = inf
        self._is_ready = True
        self._stderr.close()

    def _start(self) -> None:
        root = str(Path(__file__).parents[2])
        path = [entry for entry in sys.path if entry]
        command = [sys.executable, "-P", f"-Xutf8={sys.flags.utf8_mode}", "-c", _PROGRAM]
        ours, theirs = socket.socketpair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._connection = Connection(ours.detach())
        try:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it is ready
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), *path, *([] if root in path else [root])],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                env=MALLOC_SETTINGS | os.environ,
                process_group=0,  # Ctrl-C in the terminal is for the parent, also while this starts
            )
        except OSError as problem:
            self._connection.close()
            raise cannot_start(problem.strerror or str(problem)) from problem
        finally:
            theirs.close()
        self._is_ready = False
        with suppress(OSError):  # a process that died at once is noticed when it is not ready
            limit = {"processor_seconds": PROCESSOR_SECONDS}
            send(self._connection, {**describe_decoder(self._decoder), **limit})

    def _restart(self) -> None:
        with self._lock:
            if self._stopped:
                raise EOFError
            self.close()
            self._start()

    def _why_it_ended(self) -> str:
        """Why the process ended before it was ready: a signal, or the last line that it wrote."""
        code = self._exit_code()
        if code is None:
            return "it does not answer"
        if code < 0:
            is_memory = code == -signal.SIGKILL
            name = signal.Signals(-code).name
            return f"it was killed by {name}" + (", as where memory runs out" if is_memory else "")
        self._stderr.seek(max(0, self._stderr.seek(0, 2) - MAX_REASON_BYTES))
        lines = self._stderr.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return last or f"it ended with exit code {code}"


def failed(item: Item, fault: Fault) -> DecodedImage:
    """The item with its fault instead of pixels."""
    return DecodedImage(without_data(item), None, None, None, 0.0, fault)


def cannot_start(reason: str) -> NoUsableDevice:
    """The error of a process or thread that could not start, for this reason."""
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
