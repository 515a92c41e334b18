"""The program as the first process of a container, as a user without a name or a home."""

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import EXAMPLES, PRETEND, heed_signals, saved, wait_until

ROOT = Path(__file__).parents[2]
UNSHARE = "unshare --user --map-root-user --pid --fork --mount-proc".split()


def has_namespaces() -> bool:
    if shutil.which("unshare") is None:
        return False
    command = [*UNSHARE, "true"]
    return not subprocess.run(command, capture_output=True, check=False, timeout=60).returncode


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "TMPDIR")}
    return kept | {"PGCLI_MODEL": "demo", "PYTHONPATH": str(ROOT)} | more


def first_process(*words: object, **more: Any) -> subprocess.Popen[bytes]:
    """A run of the pretended model as process 1 of a namespace."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    options = {"env": environment(PRETEND_SECONDS="0.05"), "preexec_fn": heed_signals}
    command = [*UNSHARE, *PRETEND, *map(str, words)]
    return subprocess.Popen(command, **pipes, **options | more)  # type: ignore[call-overload, no-any-return]


def send(run: subprocess.Popen[bytes], signum: int) -> None:
    """Send a signal to the first process of the namespace, as `docker stop` does."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children")
    wait_until(lambda: children.read_text().split())
    os.kill(int(children.read_text().split()[0]), signum)


needs_namespaces = pytest.mark.skipif(not has_namespaces(), reason="no namespaces for this user")


@needs_namespaces
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
@pytest.mark.parametrize("source", ["folder", "stdin"])
def test_first_process_of_a_container_ends_by_the_signal(tmp_path, name, source):
    output, signum = tmp_path / "rows.jsonl", signal.Signals[name]
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(300):
        os.link(shutil.copy(EXAMPLES / "one.png", tmp_path / "one.png"), photos / f"{number}.png")
    run = first_process("caption", photos if source == "folder" else "-", "-o", output)
    assert run.stdin is not None
    run.stdin.write(f"{EXAMPLES / 'one.png'}\n".encode() * 3)
    run.stdin.flush()
    wait_until(lambda: len(saved(output)) > 1)
    send(run, signum)
    assert run.wait(timeout=60) == 128 + signum
    assert run.stderr is not None
    err = run.stderr.read().decode()
    assert "Traceback" not in err
    assert "finishing the rows in progress" in err
    assert f"stopped after {len(saved(output))} rows, saved" in err


@needs_namespaces
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_first_process_of_a_container_ends_before_the_first_row(tmp_path, name):
    """While modules are imported and while the command waits for its input, in the same way."""
    run = first_process("caption", "-", "-o", tmp_path / "rows.jsonl")
    wait_until(lambda: (tmp_path / "rows.jsonl.pgcli").exists())
    send(run, signal.Signals[name])
    assert run.wait(timeout=60) == 128 + signal.Signals[name]
    assert run.stderr is not None
    assert b"Traceback" not in run.stderr.read()


@needs_namespaces
@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["caption", "none"], 2)])
def test_first_process_of_a_container_has_the_exit_code(words, code):
    run = first_process(*words)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == code
    assert bool(out) == (code == 0)
