"""Runs of the command line, forked from a process that has already imported it.

A fork takes milliseconds, importing the command line half a second, and torch another half. A
server has one thread and never runs the command line itself, so that forks copy only modules.
There is one server for each kind of run: with the pretended model, with a real one, and of
stub_runs.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

ROOT = Path(__file__).parents[2]
STATUS = struct.Struct("i")
#: The folders that runs import late; with the pretended model, only those without torch.
ROOMS = {"pretended": "cli inputs stores images output run results"}
ROOMS["real"] = f"{ROOMS['pretended']} device engine towers model checkpoints"
ROOMS["stub"] = ROOMS["pretended"]
#: Modules that no run imports, that need a GPU, or that read the environment on import.
NOT_IMPORTED = (
    "pgcli.run.workers.engine_imports",
    "pgcli.model.cuda",
    "pgcli.checkpoints.hub",
)
#: The module of each kind, whose `main` is called.
PROGRAMS = {
    "pretended": "tests.support.pretend",
    "real": "pgcli.__main__",
    "stub": "tests.support.stub_runs",
}
Kind = Literal["pretended", "real", "stub"]


def run(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | os.PathLike[str] | None = None,
    input: bytes | str | None = None,
    timeout: float = 120,
    kind: Kind = "pretended",
    text: bool = False,
) -> subprocess.CompletedProcess[Any]:
    """The result of the command line, as from `subprocess.run(capture_output=True)`.

    Without `input`, standard input is this process's own. Raises subprocess.TimeoutExpired.
    """
    stdin = None if input is None else subprocess.PIPE
    both = subprocess.PIPE
    files = {"stdin": stdin, "stdout": both, "stderr": both}
    with ForkedRun(arguments, env=env, cwd=cwd, kind=kind, **files) as started:
        try:
            data = input.encode() if isinstance(input, str) else input
            out, err = started.communicate(data, timeout=timeout)
        except BaseException:
            started.kill()
            raise
    if text:
        out, err = (out or b"").decode(), (err or b"").decode()
    return subprocess.CompletedProcess(list(arguments), started.returncode, out, err)


def install(folder: Path, kind: Kind = "real") -> dict[str, str]:
    """The variables that make shells find a forked `pgcli`, which is written into the folder."""
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    command = folder / "pgcli"
    if sys.platform != "linux":
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pgcli "$@"\n')
    else:
        client = Path(__file__).with_name("forked_command.py").read_text()
        command.write_text(f"#!{sys.executable} -IS\n{client}")
    command.chmod(0o755)
    server = _address(kind).removeprefix("\0") if sys.platform == "linux" else ""
    return {"PATH": path, "FORKSERVER": server}


class ForkedRun:
    """A run of the command line, with the interface of `subprocess.Popen`.

    It leads its own process group.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        kind: Kind = "pretended",
    ):
        self.args = list(arguments)
        self.returncode: int | None = None
        files = [0, 0, 0]
        files[0], self.stdin = _ends(stdin, own=0)
        files[1], self.stdout = _ends(stdout, own=1)
        files[2], self.stderr = _ends(files[1] if stderr == subprocess.STDOUT else stderr, own=2)
        self._connection = _connect(kind)
        request = {"arguments": self.args, "env": dict(env), "cwd": str(cwd or Path.cwd())}
        self._connection.sendmsg(
            [json.dumps(request).encode() + b"\n"],
            [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))],
        )
        for descriptor in files:
            os.close(descriptor)
        self._connection.settimeout(60)
        (self.pid,) = STATUS.unpack(self._connection.recv(STATUS.size))

    def __enter__(self) -> ForkedRun:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdout, self.stderr, self.stdin):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()
        self.wait(timeout=60)

    def poll(self) -> int | None:
        """The exit code; None during the run."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout=0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                (self.returncode,) = STATUS.unpack(self._connection.recv(STATUS.size))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._connection.close()
        assert self.returncode is not None
        return self.returncode

    def communicate(
        self, input: bytes | None = None, timeout: float | None = None
    ) -> tuple[bytes | None, bytes | None]:
        """Write `input`, read all output, and wait. Raises subprocess.TimeoutExpired."""
        drained = [None if file is None else _Drained(file) for file in (self.stdout, self.stderr)]
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(input or b"")
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        self.wait(timeout)
        out, err = (None if one is None else one.result() for one in drained)
        return out, err

    def send_signal(self, signum: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signum)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _ends(given: int | IO[Any] | None, *, own: int) -> tuple[int, IO[bytes] | None]:
    """A descriptor for the run, from the given file or this process; and the pipe's other end."""
    if given == subprocess.PIPE:
        reader, writer = os.pipe()
        return (reader, open(writer, "wb")) if own == 0 else (writer, open(reader, "rb"))
    if given == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    number = given if isinstance(given, int) else own if given is None else given.fileno()
    return os.dup(number), None


class _Drained(threading.Thread):
    """Reads a file to its end."""

    def __init__(self, file: IO[bytes]):
        super().__init__(daemon=True)
        self._file = file
        self._data = b""
        self.start()

    def run(self) -> None:
        with self._file:
            self._data = self._file.read()

    def result(self) -> bytes:
        self.join(timeout=60)
        return self._data


def _connect(kind: Kind) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(_address(kind))
    return connection


@cache
def _address(kind: Kind) -> str:
    """The address of this process's server of a kind; the server ends with this process."""
    name = f"\0pgcli-tests-{os.getpid()}-{os.urandom(4).hex()}"  # abstract: no file to remove
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(name)
    listener.listen(64)
    alive, end = os.pipe()
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.support.forkserver",
            kind,
            str(listener.fileno()),
            str(alive),
        ],
        pass_fds=[listener.fileno(), alive],
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    listener.close()
    os.close(alive)
    atexit.register(server.wait)
    atexit.register(os.close, end)
    return name


def serve(kind: Kind, listener: socket.socket, alive: int) -> None:
    """Fork a run for each connection, until the other end of `alive` is closed."""
    from select import POLLIN, poll

    _import_program(kind)
    gc.freeze()
    readable = poll()  # select allows no descriptor above 1023
    for descriptor in (listener.fileno(), alive):
        readable.register(descriptor, POLLIN)
    runs: dict[int, socket.socket] = {}  # still running, by the process's descriptor
    while alive not in (ready := dict(readable.poll())):
        for ended in ready.keys() & runs.keys():
            readable.unregister(ended)
            status = os.waitid(os.P_PIDFD, ended, os.WEXITED)
            os.close(ended)
            is_exit = status.si_code == os.CLD_EXITED
            _send(runs.pop(ended), status.si_status if is_exit else -status.si_status)
        if listener.fileno() not in ready:
            continue
        connection, _ = listener.accept()
        if (request := _receive(connection)) is None:
            continue
        files, words = request
        if (pid := os.fork()) == 0:
            for descriptor in (alive, *runs):
                os.close(descriptor)
            for other in (listener, connection, *runs.values()):
                other.close()
            for target, descriptor in enumerate(files):
                os.dup2(descriptor, target)
                os.close(descriptor)
            _run(kind, words)
        for descriptor in files:
            os.close(descriptor)
        run = os.pidfd_open(pid)
        readable.register(run, POLLIN)
        runs[run] = connection
        _send(connection, pid)


def _import_program(kind: Kind) -> None:
    """Import the late imports of a kind, and prepare the options of all commands."""
    importlib.import_module(PROGRAMS[kind])
    for room in ROOMS[kind].split():
        package = importlib.import_module(f"pgcli.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(NOT_IMPORTED):
                importlib.import_module(module.name)
    for name in ("pandas", "pyarrow.parquet"):
        importlib.import_module(name)
    group = importlib.import_module("pgcli.cli.main").command_group()
    make_command = importlib.import_module("pgcli.cli.app").typer_command
    for command in (group, *map(make_command, group.commands)):
        for param in command.params:
            if get_type := getattr(param, "get_runtime_param", None):  # like Typer on first use
                get_type()
    for finalizer in weakref.finalize._registry:  # torch's would unregister all of its operators
        finalizer.atexit = False
    assert ("torch" in sys.modules) == (kind == "real")
    assert "huggingface_hub" not in sys.modules


def _receive(connection: socket.socket) -> tuple[list[int], dict[str, object]] | None:
    """The three descriptors and the request of a client; None if it has ended."""
    data, ancillary, _, _ = connection.recvmsg(2**20, socket.CMSG_SPACE(3 * 4))
    while not data.endswith(b"\n"):
        if not (more := connection.recv(2**20)):
            return None
        data += more
    return list(array.array("i", ancillary[0][2])), json.loads(data)


def _send(connection: socket.socket, number: int) -> None:
    """Send a pid or an exit code to a client, which may have ended."""
    with contextlib.suppress(BrokenPipeError):
        connection.send(STATUS.pack(number))


def _run(kind: Kind, request: dict[str, object]) -> None:
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
    lines = {"buffering": 1, "errors": "backslashreplace"}
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, **lines)  # noqa: SIM115
    code: object = 1
    for name, seconds in json.loads(os.environ.get("LEASE", "{}")).items():
        setattr(importlib.import_module("pgcli.run.state.owner"), name, seconds)
    try:
        code = importlib.import_module(PROGRAMS[kind]).main()
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
    serve(sys.argv[1], socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))  # type: ignore[arg-type]
