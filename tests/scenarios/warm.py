"""Starts `pgcli` by fork, from a process that has imported what its commands import.

`python -m tests.scenarios.warm SOCKET ALIVE` serves; `client.py` is the `pgcli` of scenarios. The
server imports no module of pgcli by name: it runs a few commands in forks, asks each which
modules it has imported, and imports these. It runs no command itself, so it has one thread.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: What a fork runs for the server to learn the modules of commands, in an empty folder.
LESSONS = (
    ["caption", str(ROOT / "examples/images/one.png"), "--model", "demo", "-o", "rows.parquet"],
    ["embed", str(ROOT / "examples/images/one.png"), "-o", "vectors.jsonl"],
    ["view", "rows.parquet"],
    ["check", "rows.parquet"],
)
#: Packages that read no variable of the environment when they are imported.
IMPORTED = ("pgcli", "torch", "numpy", "PIL", "pyarrow", "pandas", "tokenizers", "typer", "rich")


@cache
def address(**environment: str) -> str:
    """The name of this process's server, which ends when this process does."""
    name = f"pgcli-scenarios-{os.getpid()}-{os.urandom(4).hex()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")  # abstract: no file to remove
    listener.listen(64)
    alive, end = os.pipe()
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.scenarios.warm", str(listener.fileno()), str(alive)],
        pass_fds=[listener.fileno(), alive],
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=environment,
    )
    listener.close()
    os.close(alive)
    atexit.register(server.wait)
    atexit.register(os.close, end)
    return name


def serve(listener: socket.socket, alive: int) -> None:
    """Fork a command for each connection, until the other end of `alive` is closed."""
    from select import POLLIN, poll

    with tempfile.TemporaryDirectory() as folder:
        for lesson in LESSONS:
            learn(lesson, folder)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped without waiting
    gc.freeze()
    readable = poll()
    for descriptor in (listener.fileno(), alive):
        readable.register(descriptor, POLLIN)
    while alive not in dict(readable.poll()):
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            os.close(alive)
            attend(connection)
        connection.close()


def learn(lesson: list[str], folder: str) -> None:
    """Run a command in a fork and import the modules that it has imported."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        nothing = os.open(os.devnull, os.O_RDWR)
        for target in range(3):
            os.dup2(nothing, target)
        os.chdir(folder)
        run_command(lesson, lambda: os.write(writer, " ".join(sys.modules).encode()))
    os.close(writer)
    with open(reader, "rb") as file:
        names = file.read().decode().split()
    os.waitpid(pid, 0)
    for name in names:
        if name.partition(".")[0] in IMPORTED and name not in sys.modules:
            with contextlib.suppress(ImportError):  # names that are no files, as of torch.ops
                importlib.import_module(name)


def attend(connection: socket.socket) -> None:
    """In a child: run the command in a child of its own and send its exit code."""
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
        request = json.loads(data)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        run_command(request["arguments"])
    for descriptor in descriptors:
        os.close(descriptor)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):
        connection.send(b"%d" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def run_command(arguments: list[str], at_end: Any = None) -> None:
    """Run the program as `python -m pgcli` does, then end this process."""
    for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_IGN if signum == signal.SIGPIPE else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.setpgid(0, 0)
    sys.argv = ["pgcli", *arguments]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    code: object = 1
    try:
        code = importlib.import_module("pgcli.__main__").main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001  # as the interpreter does: a traceback and 1
        sys.excepthook(*sys.exc_info())
    finally:
        if at_end is not None:
            at_end()
        with contextlib.suppress(Exception):
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
