"""Memory limits of worker processes, and retries of file reads."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pgcli.images import files
from pgcli.images.errors import ImageError
from pgcli.images.image_spec import ImageLimits

ALLOCATE = """
import numpy
from pgcli.workers import process_limits
process_limits.MEMORY_LIMIT_BYTES = 256 * 2**20
process_limits.limit_memory()
try:
    numpy.ones(2**30, dtype=numpy.uint8)
except MemoryError:
    print("refused")
numpy.ones(64 * 2**20, dtype=numpy.uint8)
print("granted")
"""


def test_memory_limit_makes_large_allocations_fail() -> None:
    run = subprocess.run(
        [sys.executable, "-c", ALLOCATE], capture_output=True, text=True, check=True, timeout=100
    )
    assert run.stdout.split() == ["refused", "granted"]


@pytest.fixture
def flaky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file whose first `failures` attempts to open fail."""
    monkeypatch.setattr(files, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    file = tmp_path / "a.png"
    file.write_bytes(b"bytes")
    return file


@pytest.mark.parametrize("problem", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("failures", [1, 3])
def test_transient_read_error_is_retried(
    flaky: Path, monkeypatch: pytest.MonkeyPatch, problem: int, failures: int
) -> None:
    opened = failing(monkeypatch, problem, failures)
    assert files.read_file(str(flaky), ImageLimits()) == b"bytes"
    assert len(opened) == failures + 1


def test_persistent_read_error_is_an_io_error(flaky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = failing(monkeypatch, errno.EIO, 99)
    with pytest.raises(ImageError) as refused:
        files.read_file(str(flaky), ImageLimits())
    assert refused.value.fault.code == "io_error"
    assert len(opened) == 4


def test_permanent_read_error_is_not_retried(flaky: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = failing(monkeypatch, errno.EACCES, 99)
    with pytest.raises(ImageError):
        files.read_file(str(flaky), ImageLimits())
    assert len(opened) == 1


def failing(monkeypatch: pytest.MonkeyPatch, problem: int, failures: int) -> list[str]:
    opened: list[str] = []
    real = os.open

    def opening(path: str, *given: int) -> int:
        if path.startswith("/proc/self/fd/"):  # the file is open, and is opened for reading
            return real(path, *given)
        opened.append(path)
        if len(opened) <= failures:
            raise OSError(problem, os.strerror(problem))
        return real(path, *given)

    monkeypatch.setattr(files.os, "open", opening)
    return opened
