"""Limits of memory and processor time, and retries of file reads."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pgcli.images import files
from pgcli.images.errors import ImageError
from pgcli.images.image_spec import ImageLimits
from tests.support.runs import run_python

ALLOCATE = """
import numpy
from pgcli.images import limits
limits.MEMORY_LIMIT_BYTES = 256 * 2**20
limits.limit_memory()
try:
    numpy.ones(2**30, dtype=numpy.uint8)
except MemoryError:
    print("refused")
numpy.ones(64 * 2**20, dtype=numpy.uint8)
print("granted")
"""


def test_memory_limit_makes_large_allocations_fail():
    assert run_python(ALLOCATE).split() == ["refused", "granted"]


def test_process_ends_at_its_limit_of_processor_time():
    endless = "from pgcli.images.limits import limit_processor_time as limit\n"
    endless += "limit(100)\nlimit(0)\nlimit(0.2)\nwhile True: pass"
    run = subprocess.run([sys.executable, "-c", endless], check=False, timeout=100)
    assert run.returncode == -signal.SIGPROF


@pytest.fixture
def flaky(tmp_path, monkeypatch) -> Path:
    """A file whose first `failures` attempts to open fail."""
    monkeypatch.setattr(files, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    file = tmp_path / "a.png"
    file.write_bytes(b"bytes")
    return file


@pytest.mark.parametrize("problem", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
@pytest.mark.parametrize("failures", [1, 3])
def test_transient_read_error_is_retried(flaky, monkeypatch, problem, failures):
    opened = failing(monkeypatch, problem, failures)
    assert files.read_file(str(flaky), ImageLimits()) == b"bytes"
    assert len(opened) == failures + 1


def test_persistent_read_error_is_an_io_error(flaky, monkeypatch):
    opened = failing(monkeypatch, errno.EIO, 99)
    with pytest.raises(ImageError) as refused:
        files.read_file(str(flaky), ImageLimits())
    assert refused.value.fault.code == "io_error"
    assert len(opened) == 4


def test_permanent_read_error_is_not_retried(flaky, monkeypatch):
    opened = failing(monkeypatch, errno.EACCES, 99)
    with pytest.raises(ImageError):
        files.read_file(str(flaky), ImageLimits())
    assert len(opened) == 1


def failing(monkeypatch: pytest.MonkeyPatch, problem: int, failures: int) -> list[str]:
    opened: list[str] = []
    real = os.open

    def opening(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        opened.append(path)
        if len(opened) <= failures:
            raise OSError(problem, os.strerror(problem))
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(files.os, "open", opening)
    return opened


@pytest.mark.parametrize(
    ("span", "code"),
    [
        ((6, 5), None),
        ((6, 0), "not_an_image"),
        ((6, 6), "truncated"),
        ((11, 1), "truncated"),
        ((99, 1), "truncated"),
        ((6, 101), "too_large"),
        ((6, -1), "too_large"),
        ((-1, 5), "io_error"),
        ((2**70, 5), "missing"),
    ],
)
def test_span_of_a_file_is_read(span, code, flaky):
    flaky.write_bytes(b"beforebytes")
    limits = ImageLimits(max_bytes=100)
    if code is None:
        assert files.read_file(str(flaky), limits, span=span) == b"bytes"
        return
    with pytest.raises(ImageError) as refused:
        files.read_file(str(flaky), limits, span=span)
    assert refused.value.fault.code == code
