"""Runs of the command line in separate processes, with the pretended model."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
