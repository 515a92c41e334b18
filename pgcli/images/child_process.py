"""A process that reads foreign bytes within limits, and its messages: JSON headers, and bytes.

A process that a hostile file has taken over may send anything. Its messages are bounded in size
and in time, and nothing in them is executed or unpickled.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from math import inf
from pathlib import Path
from time import monotonic
from typing import IO, Any

import numpy

from pgcli.errors import PgcliError

START_LIMIT_SECONDS = 120
MAX_REASON_BYTES = 4096
MAX_HEADER_BYTES = 2**24
#: The socket buffers, as far as the system allows: 448 x 448 pixels are sent in one call.
BUFFER_BYTES = 2**20
AHEAD_BYTES = 4096
SIZES = struct.Struct("!II")

#: The parent's module path is passed on, so that a checkout works that is not installed. -P keeps
#: the current folder, which may hold images, off the module path.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    "from pgcli.images.child_process import serve; serve(*sys.argv[1:4])"
)

#: Decoding large images allocates and frees tens of megabytes each. Returning them to the system
#: every time costs a seventh of the time, so a process keeps this much, in bytes. Only glibc reads
#: these variables; values that the user has set take precedence.
MALLOC_SETTINGS = {
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),  # above Pillow's blocks of 16 MiB
}


class ProcessFailed(Exception):
    """The other process ended, took too long, or sent an invalid message."""

    @property
    def is_late(self) -> bool:
        """Whether it took too long."""
        return isinstance(self.__cause__, TimeoutError)


class Connection:
    """One end of a connection. Its methods raise ProcessFailed."""

    def __init__(self, end: socket.socket):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        self._socket = end
        self._ahead = b""

    def send(
        self, header: Mapping[str, Any], data: Any = b"", seconds: float | None = None
    ) -> None:
        """Send a JSON object and bytes, within so many seconds."""
        text = json.dumps(header).encode("ascii")
        start = SIZES.pack(len(text), len(data)) + text
        with process_errors():
            self._limit(seconds)
            sent = self._socket.sendmsg([start, data])  # at once: each call wakes the reader
            if sent < len(start) + len(data):
                self._socket.sendall(start[sent:])
                self._socket.sendall(memoryview(data)[max(0, sent - len(start)) :])

    def receive(
        self, max_bytes: int, seconds: float | None = None
    ) -> tuple[dict[str, Any], memoryview]:
        """A JSON object, and at most `max_bytes` of data.

        Waits at most so many seconds, or twice as long for bytes that trickle in.
        """
        deadline = inf if seconds is None else monotonic() + seconds
        with process_errors():
            self._limit(seconds)
            sizes = SIZES.unpack(self._read(SIZES.size, deadline))
            if sizes[0] > MAX_HEADER_BYTES or sizes[1] > max_bytes:
                raise ValueError("a message is too large")
            header = json.loads(str(self._read(sizes[0], deadline), "ascii"))
            if not isinstance(header, dict):
                raise ValueError("a header is not a JSON object")
            return header, self._read(sizes[1], deadline)

    def _limit(self, seconds: float | None) -> None:
        """Set the limit of each system call that follows. Setting it is a system call, too."""
        if self._socket.gettimeout() != seconds:
            self._socket.settimeout(seconds)

    def _read(self, size: int, deadline: float) -> memoryview:
        """Exactly so many bytes. Raises OSError and EOFError."""
        data, done = numpy.empty(size, numpy.uint8).data, 0  # a bytearray would be zeroed first
        while done < size:
            if not self._ahead and monotonic() > deadline:
                raise TimeoutError
            if not self._ahead and size - done >= AHEAD_BYTES:
                count = self._socket.recv_into(data[done:])
            else:
                ahead = self._ahead or self._socket.recv(AHEAD_BYTES)
                count = min(size - done, len(ahead))
                data[done : done + count], self._ahead = ahead[:count], ahead[count:]
            if not count:
                raise EOFError
            done += count
        return data


class ChildProcess(Connection):
    """The connection to a new process that runs the function `serve` of a module.

    The function gets the child's end and the `settings`. Starting does not wait for the process.
    The process ends with the thread that started it. Raises ProcessFailed.
    """

    def __init__(self, module: str, settings: Mapping[str, Any] | None = None):
        root = str(Path(__file__).parents[2])
        path = [entry for entry in sys.path if entry]
        parent_end, child_end = socket.socketpair()
        super().__init__(parent_end)
        command = [sys.executable, "-P", f"-Xutf8={sys.flags.utf8_mode}", "-c", _PROGRAM]
        command += [module, json.dumps(settings or {}), str(child_end.fileno())]
        self._is_ready = False
        with child_end:
            try:
                self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed once it is ready
                self._process = subprocess.Popen(
                    [*command, *path, *([] if root in path else [root])],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    pass_fds=[child_end.fileno()],
                    env=MALLOC_SETTINGS | os.environ,
                    process_group=0,  # Ctrl-C is for the parent, also while this starts
                )
            except OSError as problem:
                parent_end.close()
                raise ProcessFailed(problem.strerror or str(problem)) from problem

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Wait for the process to start. The message of the error says why it did not."""
        if not self._is_ready:
            try:
                self.receive(0, START_LIMIT_SECONDS)
            except ProcessFailed as problem:
                raise ProcessFailed(self._why_it_ended()) from problem
            self._is_ready = True

    def kill(self) -> None:
        """End the process. Another thread that waits for its reply gets an error."""
        self._process.kill()

    def close(self) -> int | None:
        """End the process for good; its exit code, or None if it does not end at once."""
        self.kill()
        self._socket.close()
        self._errors.close()
        with suppress(subprocess.TimeoutExpired):  # a hang on a dead disk ignores signals
            return self._process.wait(timeout=5)
        return None

    def _why_it_ended(self) -> str:
        """Why the process ended before it was ready: a signal, or the last line of its stderr."""
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "it does not answer"
        if code < 0:
            is_memory = code == -signal.SIGKILL
            name = signal.Signals(-code).name
            return f"it was killed by {name}" + ", probably for lack of memory" * is_memory
        self._errors.seek(max(0, self._errors.seek(0, 2) - MAX_REASON_BYTES))
        lines = self._errors.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return last or f"it ended with exit code {code}"


class ServedProcess:
    """A `ChildProcess` that starts with the first request, and again after it died.

    `what` it reads is named in the error if it cannot start; a reply has at most `max_bytes`.
    """

    def __init__(self, module: str, what: str, max_bytes: int):
        self._module, self._what, self._max_bytes = module, what, max_bytes
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._owner = 0
        atexit.register(self.close)

    def ask(
        self, request: Mapping[str, Any], seconds: float | None = None
    ) -> tuple[dict[str, Any], memoryview]:
        """The reply to a request. Raises ProcessFailed if the process dies twice, or once for lack
        of time.

        One death is no proof: the process also dies with the thread that started it, and of what it
        read ahead.
        """
        with self._lock:
            try:
                return self._ask(request, seconds)
            except ProcessFailed as problem:
                if problem.is_late:
                    raise
                return self._ask(request, seconds)

    def _ask(
        self, request: Mapping[str, Any], seconds: float | None
    ) -> tuple[dict[str, Any], memoryview]:
        if self._process is None or self._owner != os.getpid():
            try:
                self._process, self._owner = ChildProcess(self._module), os.getpid()
                self._process.wait_until_ready()
            except ProcessFailed as problem:
                self.close()
                message = f"the process that reads {self._what} cannot start: {problem}"
                raise PgcliError(message, hint="pgcli doctor shows what is missing") from problem
        try:
            self._process.send(request)
            return self._process.receive(self._max_bytes, seconds)
        except ProcessFailed as problem:
            if self.close() == -signal.SIGPROF:
                raise ProcessFailed from TimeoutError()
            raise problem from problem.__cause__

    def close(self) -> int | None:
        """End the process; its exit code, if it had one."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return None
        return process.close()


@contextmanager
def process_errors() -> Iterator[None]:
    """Turn the exceptions of sending and receiving into ProcessFailed."""
    try:
        yield
    except (OSError, EOFError, ValueError, RecursionError) as problem:
        raise ProcessFailed(str(problem)) from problem


def serve(module: str, settings: str, descriptor: str) -> None:
    """The main function of the process: run the module's `serve` until the connection ends."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # also from a supervisor: the parent decides
    with suppress(ProcessFailed), socket.socket(fileno=int(descriptor)) as end:
        import_module(module).serve(Connection(end), json.loads(settings))


_is_limited = False


def is_limited() -> bool:
    """Whether this process has a limit of memory, and may be ended by what it reads."""
    return _is_limited


def start_serving(connection: Connection) -> None:
    """Limit the memory of this process, after its imports, and report that it is ready."""
    global _is_limited
    limit_memory()
    _is_limited = True
    connection.send({})
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # until here, stderr explained failed starts


#: For one image: the largest that is decoded by default, 89 million pixels, takes one gigabyte.
MEMORY_LIMIT_BYTES = 4 * 2**30
#: An image that takes more memory is decoded while no other such image is.
UNCLAIMED_BYTES = 256 * 2**20
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have Linux kill this process when the parent's thread that started it has ended.

    On other systems the process ends at the end of its input, after its current item.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory(size: int | None = None) -> None:
    """Make allocations fail that exceed the current memory by `size` bytes (MEMORY_LIMIT_BYTES)."""
    with suppress(OSError, ValueError):
        allocated = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
        limit = allocated + (MEMORY_LIMIT_BYTES if size is None else size)
        if soft_limit == resource.RLIM_INFINITY or limit < soft_limit:
            resource.setrlimit(resource.RLIMIT_AS, (limit, hard_limit))


@contextmanager
def memory_limit(size: int) -> Iterator[None]:
    """A block in which allocations beyond `size` more bytes raise MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(size)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def limit_processor_time(seconds: float) -> None:
    """End this process by SIGPROF after so much processor time; 0 removes the limit."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)


_lock: IO[bytes] | None = None


def share_memory(lock: str) -> None:
    """Have `claim_memory` lock this file, for the rest of this process."""
    global _lock
    _lock = Path(lock).open("rb")  # noqa: SIM115 - open as long as the process


def claim_memory(size: int) -> None:
    """Wait until no other process of the pool decodes an image that takes much memory.

    The lock is held until `release_memory`, or the end of the process. Only processes of a pool
    wait.
    """
    if _lock is not None and size > UNCLAIMED_BYTES:
        fcntl.flock(_lock, fcntl.LOCK_EX)


def release_memory() -> None:
    """Let another process of the pool decode an image that takes much memory."""
    if _lock is not None:
        fcntl.flock(_lock, fcntl.LOCK_UN)
