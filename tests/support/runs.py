"""Runs of the command line: in this process, in others, on a terminal, and within time limits."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, perf_counter, process_time
from typing import Any

import pytest

from pgcli.cli.main import main
from pgcli.run.state.owner import Owner
from pgcli.run.state.record import state_location
from pgcli.stores import LocalStore
from tests.support.forkserver import ForkedRun

ROOT = Path(__file__).parents[2]
PRETEND = [sys.executable, str(ROOT / "tests" / "support" / "pretend.py")]
EXAMPLES = ROOT / "examples" / "images"
#: Makes a command process 1 of a namespace.
UNSHARE = "unshare --user --map-root-user --pid --fork --mount-proc".split()


def many(count: int) -> list[str]:
    """So many copies of the examples under different names, as ids must be unique."""
    return [f"{EXAMPLES}/{'./' * number}" for number in range(count)]


MANY = many(20)
ROWS = 20 * len(list(EXAMPLES.iterdir()))


def started(*arguments: object, seconds: float = 0.02, begun: object = "", **more: Any) -> Any:
    """A run that takes `seconds` for a row, as a `ForkedRun` or a `subprocess.Popen`.

    It creates the file `begun` when the model has the first row.
    """
    words = [*map(str, arguments), "--model", "demo"]
    environment = os.environ | {"PRETEND_SECONDS": str(seconds), "PRETEND_BEGUN": str(begun)}
    more = {"stderr": subprocess.PIPE} | more
    if more.keys() <= {"cwd", "stdin", "stdout", "stderr"} and sys.platform == "linux":
        return ForkedRun(words, env=environment, **more)
    return subprocess.Popen(
        [*PRETEND, *words], **{"env": environment, "preexec_fn": heed_signals} | more
    )


def heed_signals() -> None:
    """Restore the default handlers of signals that the tests' parent may ignore."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def has_namespaces() -> bool:
    """Whether this user may make namespaces."""
    if shutil.which("unshare") is None:
        return False
    command = [*UNSHARE, "true"]
    return not subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


def send_inside(run: subprocess.Popen[bytes], signum: int) -> None:
    """Send a signal to the first process of the namespace, as `docker stop` does."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    wait_until(lambda: children.read_text().split())
    os.kill(int(children.read_text().split()[0]), signum)


def finished(*arguments: object, **more: Any) -> subprocess.CompletedProcess[bytes]:
    run = started(*arguments, seconds=0, **{"stdout": subprocess.PIPE} | more)
    out, err = run.communicate(timeout=120)
    return subprocess.CompletedProcess(run.args, run.returncode, out, err)


def wait_until(claim: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextmanager
def other_owner(output: str, shard: str = "") -> Iterator[None]:
    """A block in which another command owns the output, or a shard of it."""
    store = LocalStore(Path(state_location(output)), create=True)
    with Owner(store, output, shard=shard).holding(say=lambda text: None):
        yield


def saved(output: Path) -> list[int]:
    if not output.exists():
        return []
    return [json.loads(line)["index"] for line in output.read_bytes().splitlines()]


def run_python(code: str, *arguments: object, **options: Any) -> str:
    """The output of a program with these lines; if it fails, fails with its standard error."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=250, **options)
    assert run.returncode == 0, run.stderr
    return run.stdout


class Command:
    """Runs commands, given as words or as one line of a shell.

    Each returns its exit code, standard output and standard error.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys = capsys

    def __call__(self, *words: object) -> tuple[int, str, str]:
        self._capsys.readouterr()  # discards what came before
        code = main(shlex.split(str(words[0])) if len(words) == 1 else [*map(str, words)])
        out, err = self._capsys.readouterr()
        return code, out, err


def on_terminal(*arguments, columns=80, stdout=None, program=PRETEND, **environment):
    """All output of a run to a terminal with so many columns."""
    terminal, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "TERM")
    }
    environment = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environment}
    files: dict[str, Any] = {
        "stdin": subprocess.DEVNULL,
        "stdout": other_end if stdout is None else stdout,
        "stderr": other_end,
    }
    words, variables = [*map(str, arguments)], kept | environment
    if program is PRETEND and sys.platform == "linux":
        run: Any = ForkedRun(words, env=variables, **files)
    else:
        run = subprocess.Popen([*program, *words], env=variables, **files)
    os.close(other_end)
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # on Linux: the other end is closed
            chunk = b""
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    run.wait(timeout=60)
    return shown.decode()


REFERENCE_SECONDS = 0.05  # the loop's time on an idle core of an Intel Xeon from 2023
PATIENT_SECONDS = 60.0


def loop_seconds(clock: Callable[[], float] = process_time) -> float:
    """The time of a million additions, the unit of time in tests."""
    began = clock()
    total = 0
    for number in range(1_000_000):
        total += number
    return clock() - began


@contextmanager
def processor_time_below(loops: float) -> Iterator[None]:
    """Fail if the block computes for longer than so many loops of a million additions; time in
    which other processes run does not count.
    """
    began = process_time()
    yield
    assert process_time() - began < loops * loop_seconds()


@contextmanager
def ends_soon() -> Iterator[None]:
    """Fail if the block takes over a minute, as it does without the tested feature."""
    began = monotonic()
    yield
    assert monotonic() - began < PATIENT_SECONDS


def scaled(seconds: float) -> float:
    """`seconds` times the slowness of this machine relative to the reference, at least 1.

    For slow tests of speed: the machine may become busy after this.
    """
    return seconds * max(1.0, loop_seconds(perf_counter) / REFERENCE_SECONDS)
