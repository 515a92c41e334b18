"""Runs on a terminal: Ctrl-C, Ctrl-Z, a closed window, slow readers."""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest

from pgcli.process_end import END_SECONDS, KILL_SECONDS
from pgcli.run.events import CLEANUP_SECONDS, GRACE_SECONDS
from tests.support.runs import (
    MANY,
    PRETEND,
    ROOT,
    ROWS,
    UNSHARE,
    has_namespaces,
    heed_signals,
    many,
    saved,
    send_inside,
    started,
    wait_until,
)

#: A run with a grace period of less than ten seconds after a signal.
IMPATIENT = "import sys; import pgcli.run.events as s; s.GRACE_SECONDS = 1.0; "
IMPATIENT += "from tests.support.pretend import main; sys.exit(main())"


class Terminal:
    """A pseudo-terminal with its process; a thread reads the output."""

    def __init__(self, command: list[str], **environment: str):
        self.end, other = pty.openpty()
        self.shown, self._closed = b"", False
        self.run = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            cwd=ROOT,
            env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(ROOT)} | environment,
            start_new_session=True,
            preexec_fn=lambda: control(0),
        )
        os.close(other)
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        with suppress(OSError):  # the other end is closed
            while not self._closed:  # no read is in progress when it is closed
                if select.select([self.end], [], [], 0.05)[0]:
                    self.shown += os.read(self.end, 65536)

    def type(self, keys: str) -> None:
        os.write(self.end, keys.encode())

    def wait_for(self, words: str) -> None:
        wait_until(lambda: words.encode() in self.shown)

    def close(self) -> None:
        """Close the window."""
        self._closed = True
        self._reading.join(timeout=10)
        os.close(self.end)

    def finished(self) -> str:
        """Wait for the process to end; return all its output."""
        self.run.wait(timeout=60)
        self._reading.join(timeout=10)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.shown.decode())


def control(descriptor: int) -> None:
    """Make this the controlling terminal, so that its keys and its closing send signals."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)


def shell(**environment: str) -> Terminal:
    """A shell with job control that a person types into."""
    quiet = {"PS1": "$ ", "HISTFILE": "/dev/null", **environment}
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], **quiet)
    terminal.wait_for("$ ")
    return terminal


def typed(*arguments: object) -> str:
    return shlex.join([*PRETEND, *map(str, arguments), "--model", "demo"])


def test_ctrl_c_ends_the_run_its_workers_and_the_loop_around_it(tmp_path):
    output = tmp_path / "1.jsonl"
    terminal = shell(PRETEND_SECONDS="0.05")
    command = typed("caption", *MANY, "--workers", 2)
    terminal.type(f"for n in 1 2 3; do {command} -o {tmp_path}/$n.jsonl; done\n")
    wait_until(lambda: len(saved(output)) > 3)
    terminal.type("\x03")
    terminal.wait_for("resumes the run")
    terminal.type("echo it was $?\n")
    terminal.wait_for("it was 130")
    terminal.type("exit\n")
    shown = terminal.finished()
    assert shown.count("finishing the rows in progress") == 1
    assert "Traceback" not in shown
    assert not (tmp_path / "2.jsonl").exists()
    assert 3 < len(saved(output)) < ROWS


@pytest.mark.nightly
def test_ctrl_z_pauses_a_run(tmp_path):
    output = tmp_path / "rows.jsonl"
    terminal = shell(PRETEND_SECONDS="0.03")
    terminal.type(f"{typed('caption', *MANY[:5], '--workers', 1, '-o', output)}\n")
    wait_until(lambda: len(saved(output)) > 3)
    terminal.type("\x1a")
    terminal.wait_for("Stopped")
    time.sleep(0.2)
    before = saved(output)
    time.sleep(2)
    assert saved(output) == before
    terminal.type("fg\n")
    terminal.wait_for("pgcli view")
    terminal.type("exit\n")
    terminal.finished()
    assert saved(output) == list(range(ROWS // 4))


def test_closed_terminal_window_ends_the_run_cleanly(tmp_path):
    """Later writes to the terminal fail."""
    output = tmp_path / "rows.jsonl"
    command = [*PRETEND, "caption", *MANY, "--model", "demo", "-o", str(output)]
    terminal = Terminal(command, PRETEND_SECONDS="0.05")
    wait_until(lambda: len(saved(output)) > 3)
    terminal.close()
    assert terminal.run.wait(timeout=30) == -signal.SIGHUP
    rows = saved(output)
    assert rows == list(range(len(rows)))
    assert 3 < len(rows) < ROWS


def test_run_that_ignores_hangup_survives_its_window(tmp_path):
    output = tmp_path / "rows.jsonl"
    command = typed("caption", *MANY[:2], "-o", output)
    terminal = Terminal(["bash", "-c", f"trap '' HUP; exec {command}"], PRETEND_SECONDS="0.03")
    wait_until(lambda: len(saved(output)) > 3)
    terminal.close()
    assert terminal.run.wait(timeout=60) == 0
    assert saved(output) == list(range(ROWS // 10))


@pytest.mark.slow
def test_rows_in_progress_get_only_the_grace_period(tmp_path):
    output = tmp_path / "rows.jsonl"
    begun = tmp_path / "begun"
    run = impatient("caption", *MANY, "-o", output, seconds=200, begun=begun)
    wait_until(begun.exists)
    began = time.monotonic()
    run.send_signal(signal.SIGTERM)
    stderr = run.communicate(timeout=100)[1]
    assert run.returncode == -signal.SIGTERM
    assert time.monotonic() - began > 0.8
    assert b"stopped before the first row" in stderr
    assert b"Traceback" not in stderr


@pytest.mark.slow
def test_blocked_pipe_does_not_keep_a_run_from_ending():
    run = impatient("caption", *many(100), seconds=0, stdout=subprocess.PIPE)
    assert run.stdout is not None
    wait_until(lambda: is_full(run.stdout))
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=30) == -signal.SIGTERM
    lines = run.stdout.read().split(b"\n")
    assert [json.loads(line)["index"] for line in lines[:-1]] == list(range(len(lines) - 1))
    assert run.stderr is not None
    assert b"Traceback" not in run.stderr.read()


@pytest.mark.nightly
def test_a_slow_reader_gets_every_row():
    run = started("caption", *many(100), seconds=0, stdout=subprocess.PIPE)
    assert run.stdout is not None
    wait_until(lambda: is_full(run.stdout))
    rows = []
    while line := run.stdout.readline():
        rows.append(json.loads(line)["index"])
        time.sleep(0.0005)
    run.communicate(timeout=60)
    assert run.returncode == 0
    assert rows == list(range(5 * ROWS))


LOADING = """
import os, sys, time
from tests.support import pretend

class Held:
    def __del__(self):
        time.sleep(1)  # Python drops exceptions here

def load_model(*values, **options):
    open(os.environ["PRETEND_BEGUN"], "w").close()
    {before}
    time.sleep(60)

pretend.load_model = load_model
sys.exit(pretend.main())
"""


@pytest.mark.parametrize("before", ["", "import slow", "Held()"])
def test_a_signal_while_the_model_is_loaded_ends_it_at_once(tmp_path, cli, before):
    (tmp_path / "slow.py").write_text("import time\ntry: time.sleep(1)\nexcept BaseException: pass")
    output = tmp_path / "rows" / "rows.jsonl"
    output.parent.mkdir()
    code = f"import sys; sys.path.append({str(tmp_path)!r})" + LOADING.format(before=before)
    run = program(code, "caption", *MANY, "-o", output, begun=tmp_path / "begun")
    wait_until((tmp_path / "begun").exists)
    time.sleep(0.3)
    run.send_signal(signal.SIGINT)
    stderr = run.communicate(timeout=50)[1]
    assert run.returncode == -signal.SIGINT
    assert b"unexpected" not in stderr
    assert [path.name for path in output.parent.iterdir()] == ["rows.jsonl.pgcli"]
    code, out, _ = cli("status", output, "--exit-code")
    assert (code, "exit code 130, SIGINT" in out) == (3, True)


#: What keeps Python from calling the handler of a signal.
STUCK = {
    "import": "import stuck",
    "C": "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
    "C that holds the GIL": "import collections as c, itertools as i; c.deque(i.repeat(0), 0)",
}


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("program_of", ["a shell", "a container"])
@pytest.mark.parametrize("stuck", STUCK)
def test_a_signal_ends_a_process_that_is_stuck(tmp_path, cli, stuck, program_of, signals):
    if program_of == "a container" and not has_namespaces():
        pytest.skip("no namespaces for this user")
    (tmp_path / "stuck.py").write_text("import time; time.sleep(60)")
    output, begun = tmp_path / "rows.jsonl", tmp_path / "begun"
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import pgcli.process_end as e; "
    code += f"e.END_SECONDS = {1.5 if signals == 1 else 30}; "
    code += LOADING.format(before=STUCK[stuck])
    before = UNSHARE if program_of == "a container" else []
    run = program(code, "caption", *MANY, "-o", output, begun=begun, before=before)
    wait_until(begun.exists)
    time.sleep(0.3)
    began = time.monotonic()
    for _ in range(signals):
        if program_of == "a container":
            send_inside(run, signal.SIGTERM)
        else:
            run.send_signal(signal.SIGTERM)
        time.sleep(0.2)
    stderr = run.communicate(timeout=20)[1]
    assert run.returncode == (143 if program_of == "a container" else -signal.SIGTERM)
    assert (time.monotonic() - began > 1.4) == (signals == 1)
    assert stderr == b""
    assert cli("status", output, "--exit-code")[0] == 3


def test_a_stuck_process_ends_within_eight_seconds():
    assert GRACE_SECONDS + CLEANUP_SECONDS < END_SECONDS < END_SECONDS + KILL_SECONDS < 8


def impatient(*arguments: object, **more: Any) -> subprocess.Popen[bytes]:
    return program(IMPATIENT, *arguments, **more)


def program(
    code: str,
    *arguments: object,
    seconds: float = 0,
    begun: object = "",
    before: Sequence[str] = (),
    **more: Any,
) -> Any:
    """A run of code other than the pretended command line."""
    pretend = {"PRETEND_SECONDS": str(seconds), "PRETEND_BEGUN": str(begun)}
    return subprocess.Popen(
        [*before, sys.executable, "-c", code, *map(str, arguments), "--model", "demo"],
        cwd=ROOT,
        env=os.environ | pretend | {"PYTHONPATH": str(ROOT)},
        **{"stderr": subprocess.PIPE, "preexec_fn": heed_signals} | more,
    )


def is_full(pipe: Any) -> bool:
    """Whether the pipe is full: a page may have no room for another whole write."""

    def held() -> int:
        return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]

    before = held()
    time.sleep(0.2)
    return before > 32_768 and held() == before
