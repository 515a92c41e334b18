"""Runs of the command line in processes of their own, with the pretended model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support import forkserver

ROOT = Path(__file__).parents[2]


PRETEND = [sys.executable, str(ROOT / "tests" / "support" / "pretend.py")]


EXAMPLES = ROOT / "examples" / "images"


MANY = [str(EXAMPLES)] * 20


ROWS = 20 * len(list(EXAMPLES.iterdir()))


def started(*arguments: object, seconds: float = 0.02, **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*PRETEND, *map(str, arguments), "--model", "demo"],
        env=os.environ | {"PRETEND_SECONDS": str(seconds)},
        **{"stderr": subprocess.PIPE, "preexec_fn": heed_signals} | more,
    )


def heed_signals() -> None:
    """Restore the default handlers of signals that the parent of the tests may ignore."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)


def finished(*arguments: object, **more: Any) -> subprocess.CompletedProcess[bytes]:
    if more.keys() <= {"cwd", "stdout"} and sys.platform == "linux":
        words = [*map(str, arguments), "--model", "demo"]
        return forkserver.run(words, env=os.environ | {"PRETEND_SECONDS": "0"}, cwd=more.get("cwd"))
    run = started(*arguments, seconds=0, **more)
    out, err = run.communicate(timeout=120)
    return subprocess.CompletedProcess(run.args, run.returncode, out, err)


def wait_until(claim: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not claim():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def saved(output: Path) -> list[int]:
    if not output.exists():
        return []
    return [json.loads(line)["index"] for line in output.read_bytes().splitlines()]
