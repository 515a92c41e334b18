"""The parent's side of a worker process: starts it, decodes with it, restarts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic

from pgcli.records import DecodedImage, Fault, Item
from pgcli.workers.decoder import Decoder, describe_decoder
from pgcli.workers.message_pipe import MalformedMessage, Message, MessagePipe
from pgcli.workers.messages import image_from_message, item_to_message
from pgcli.workers.start_errors import cannot_start, why_it_ended
from pgcli.workers.worker_main import PROCESSOR_SECONDS, TIME_LIMIT_SECONDS

START_LIMIT_SECONDS = 120
#: Of one decoded image; 896 x 896 RGB pixels are 2.4 MB.
MAX_PIXEL_BYTES = 64 * 2**20

#: The parent's module path is passed on, so that a checkout works that is not installed. -P keeps
#: the current folder, which may hold images, off the module path.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from pgcli.workers.worker_main import serve; serve()"
)

#: Decoding large images allocates and frees tens of megabytes each. Returning them to the system
#: every time costs a seventh of the time, so a worker keeps this much, in bytes. Only glibc reads
#: these variables; values that the user has set take precedence.
MALLOC_SETTINGS = {
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),  # above Pillow's blocks of 16 MiB
}


class WorkerDied(Exception):
    """The process ended, or sent something else than a decoded image."""


class WorkerTimeout(Exception):
    """The process did not answer within the time limit, which is the argument."""


class Worker:
    """A worker process, started with the object and restarted whenever it has died."""

    def __init__(self, decoder: Decoder):
        self._decoder = decoder
        self._lock = threading.Lock()
        self._stopped = False
        self._ready = False
        self._start()

    def decode(self, item: Item) -> DecodedImage:
        """The decoded item. An item whose process dies is tried once more, in a new process."""
        if item.fault is not None:
            return failed(item, item.fault)
        fault = Fault("worker_crashed", "The process that decodes the image crashed, twice.")
        for _ in range(2):
            try:
                return self._request(item)
            except WorkerDied:
                self._restart()
            except WorkerTimeout as problem:
                self._restart()
                fault = Fault("timeout", f"Decoding the image takes longer than {problem}.")
                break
        return failed(item, fault)

    def stop(self) -> None:
        """Kill the process for good. A thread that waits for its reply gets WorkerDied."""
        with self._lock:
            self._stopped = True
            self._process.kill()

    def close(self) -> None:
        """Release the pipes, once no thread uses them any more."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._stderr.close()
        with suppress(subprocess.TimeoutExpired):  # it may hang on a dead disk, beyond signals
            self._process.wait(timeout=5)

    def _request(self, item: Item) -> DecodedImage:
        self._wait_until_ready()
        deadline = monotonic() + TIME_LIMIT_SECONDS
        try:
            with pipe_errors():
                self._pipe.send(item_to_message(item), deadline)
                return image_from_message(self._pipe.receive(deadline), item, self._decoder)
        except WorkerDied as problem:
            if isinstance(problem.__cause__, EOFError) and self._exit_code() == -signal.SIGPROF:
                limit = f"{PROCESSOR_SECONDS} seconds of processor time"
                raise WorkerTimeout(limit) from problem
            raise

    def _wait_until_ready(self) -> None:
        """Wait for the process to start, so that its first image has all of the time limit."""
        if self._ready:
            return
        try:
            with pipe_errors():
                self._pipe.receive(monotonic() + START_LIMIT_SECONDS)
        except (WorkerDied, WorkerTimeout) as problem:
            if self._stopped:
                raise
            raise cannot_start(why_it_ended(self._exit_code(), self._stderr)) from problem
        self._ready = True
        self._stderr.close()

    def _exit_code(self) -> int | None:
        """The exit code of a process that has ended; None if it does not end."""
        try:
            return self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return None

    def _start(self) -> None:
        root = str(Path(__file__).parents[2])
        path = [entry for entry in sys.path if entry]
        command = [sys.executable, "-P", f"-Xutf8={sys.flags.utf8_mode}", "-c", _PROGRAM]
        try:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it is ready
            self._process = subprocess.Popen(
                [*command, *path, *([] if root in path else [root])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                bufsize=0,
                env=MALLOC_SETTINGS | os.environ,
                process_group=0,  # Ctrl-C in the terminal is for the parent, also while this starts
            )
        except OSError as problem:
            raise cannot_start(problem.strerror or str(problem)) from problem
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        stdin, stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(stdin, False)  # so that deadlines hold for writes too
        self._pipe = MessagePipe(stdout, stdin, max_data_bytes=MAX_PIXEL_BYTES)
        self._ready = False
        with suppress(OSError):  # a process that died at once is noticed when it is not ready
            limit = {"processor_seconds": PROCESSOR_SECONDS}
            self._pipe.send(Message(describe_decoder(self._decoder) | limit))

    def _restart(self) -> None:
        with self._lock:
            if self._stopped:
                raise WorkerDied
            self.close()
            self._start()


def failed(item: Item, fault: Fault) -> DecodedImage:
    """The item with its fault instead of pixels."""
    return DecodedImage(replace(item, data=None), None, None, None, 0.0, fault)


@contextmanager
def pipe_errors() -> Iterator[None]:
    """Raise what goes wrong with the pipe as WorkerDied or WorkerTimeout."""
    try:
        yield
    except TimeoutError as problem:
        raise WorkerTimeout(f"{TIME_LIMIT_SECONDS} seconds") from problem
    except (OSError, EOFError, MalformedMessage) as problem:
        raise WorkerDied from problem
