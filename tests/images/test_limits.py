"""Limits of memory and processor time, and errors of file reads."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from pgcli.images import files
from pgcli.images.files import ImageError, ImageLimits
from tests.support.runs import run_python

ALLOCATE = """
import numpy
from pgcli.images import child_process
child_process.MEMORY_LIMIT_BYTES = 256 * 2**20
child_process.limit_memory()
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
    endless = "from pgcli.images.child_process import limit_processor_time as limit\n"
    endless += "limit(100)\nlimit(0)\nlimit(0.2)\nwhile True: pass"
    run = subprocess.run([sys.executable, "-c", endless], check=False, timeout=100)
    assert run.returncode == -signal.SIGPROF


def test_read_error_is_an_io_error(tmp_path, monkeypatch):
    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "a.png").write_bytes(b"bytes")
    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(ImageError) as refused:
        files.read_file(str(tmp_path / "a.png"), ImageLimits())
    assert refused.value.fault.code == "io_error"


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
def test_span_of_a_file_is_read(span, code, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(b"beforebytes")
    limits = ImageLimits(max_bytes=100)
    if code is None:
        assert files.read_file(str(file), limits, span=span) == b"bytes"
        return
    with pytest.raises(ImageError) as refused:
        files.read_file(str(file), limits, span=span)
    assert refused.value.fault.code == code
