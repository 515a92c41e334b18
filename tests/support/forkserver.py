"""Runs of the pretended command line, forked from a process that has imported it already.

A start by fork takes milliseconds, an import of the command line half a second. The server has one
thread and never runs the command line itself, so that a fork copies nothing but modules.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATUS = struct.Struct("i")


def run(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    input: bytes | None = None,
    timeout: float = 120,
) -> subprocess.CompletedProcess[bytes]:
    """The outcome of the pretended command line, as from `subprocess.run(capture_output=True)`.

    Without `input`, standard input is this process's own. Raises subprocess.TimeoutExpired.
    """
    connection = _connect()
    readers, writers = zip(*(os.pipe() for _ in range(2)), strict=True)
    stdin, feed = os.pipe() if input is not None else (os.dup(0), None)
    request = {"arguments": list(arguments), "env": dict(env), "cwd": str(cwd or Path.cwd())}
    descriptors = array.array("i", [stdin, *writers])
    connection.sendmsg(
        [json.dumps(request).encode() + b"\n"],
        [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)],
    )
    for descriptor in descriptors:
        os.close(descriptor)
    outputs = [_Drained(reader) for reader in readers]
    if feed is not None:
        with contextlib.suppress(BrokenPipeError), open(feed, "wb") as file:
            file.write(input or b"")
    connection.settimeout(timeout)
    (pid,) = STATUS.unpack(connection.recv(STATUS.size))
    try:
        (code,) = STATUS.unpack(connection.recv(STATUS.size))
    except TimeoutError:
        os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(list(arguments), timeout) from None
    finally:
        connection.close()
    out, err = (output.result() for output in outputs)
    return subprocess.CompletedProcess(list(arguments), code, out, err)


class _Drained(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, descriptor: int):
        super().__init__(daemon=True)
        self._descriptor = descriptor
        self._data = b""
        self.start()

    def run(self) -> None:
        with open(self._descriptor, "rb") as file:
            self._data = file.read()

    def result(self) -> bytes:
        self.join(timeout=60)
        return self._data


def _connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_address())
    return connection


@cache
def _address() -> str:
    """The address of this process's server, which ends when this process does."""
    name = f"\0pgcli-tests-{os.getpid()}-{os.urandom(4).hex()}"  # abstract: no file to remove
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(64)
    alive, end = os.pipe()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forkserver", str(listener.fileno()), str(alive)],
        pass_fds=[listener.fileno(), alive],
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    listener.close()
    os.close(alive)
    atexit.register(server.wait)
    atexit.register(os.close, end)
    return name


def serve(listener: socket.socket, alive: int) -> None:
    """Fork a run for each connection, until the other end of `alive` is closed."""
    from select import POLLIN, poll

    from tests.support import pretend  # noqa: F401  # the command line and what it imports late
    from pgcli.cli.job import run  # noqa: F401  # isort: skip

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped without waiting
    gc.freeze()
    readable = poll()  # select takes no descriptor above 1023, and tests may have opened as many
    for descriptor in (listener.fileno(), alive):
        readable.register(descriptor, POLLIN)
    while alive not in dict(readable.poll()):
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(alive)
            _watch(connection)
        connection.close()


def _watch(connection: socket.socket) -> None:
    """In a child: run the command line in a child of its own and send its pid and exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    data, ancillary, _, _ = connection.recvmsg(2**20, socket.CMSG_SPACE(3 * 4))
    while not data.endswith(b"\n"):
        data += connection.recv(2**20)
    descriptors = array.array("i", ancillary[0][2])
    pid = os.fork()
    if pid == 0:
        connection.close()
        for target, descriptor in enumerate(descriptors):
            os.dup2(descriptor, target)
            os.close(descriptor)
        _run(json.loads(data))
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(STATUS.pack(pid))
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.send(STATUS.pack(os.waitstatus_to_exitcode(status)))
    os._exit(0)


def _run(request: dict[str, object]) -> None:
    """The command line, with the request's folder, environment and arguments."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            signum, signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
        )
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(request["env"])  # type: ignore[arg-type]
    os.chdir(str(request["cwd"]))
    sys.argv = ["pgcli", *request["arguments"]]  # type: ignore[misc]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    from tests.support.pretend import main

    code: object = 1
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  # as the interpreter does: a traceback and 1
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
