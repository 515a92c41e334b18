"""The machine itself: processors, memory, disk, text, and the model that is built in."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import tempfile
from pathlib import Path

from pgcli.checkpoints.find import BUILTIN
from pgcli.device import cgroup
from pgcli.doctor.finding import Finding, bad, ok, warn

GB = 10**9
A_LARGE_MODEL = 7 * GB  # 3b in bfloat16, and a few rows
WEIGHTS = "model.safetensors"


def processor() -> Finding:
    """How many processors may be used, against how many threads PyTorch will start."""
    count = cgroup.processors()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    found = f"{count:g} to use of {os.cpu_count()}"
    if threads.isdigit() and int(threads) > count + 1:
        return warn(
            "processors",
            f"{found}, and OMP_NUM_THREADS={threads} starts more threads than that",
            f"export OMP_NUM_THREADS={max(1, int(count))}",
        )
    if threads.isdigit() and 0 < int(threads) < count // 2:
        return warn(
            "processors", f"{found}, and OMP_NUM_THREADS={threads}", "unset OMP_NUM_THREADS"
        )
    if not threads and count < (os.cpu_count() or 1) - 1 and count < _bound():
        return warn(
            "processors",
            f"{found}: the container's limit, which PyTorch does not see",
            f"export OMP_NUM_THREADS={max(1, int(count))}",
        )
    return ok("processors", found)


def _bound() -> int:
    """How many processors the process is bound to, which PyTorch does see."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def memory() -> Finding:
    total, available = _meminfo("MemTotal"), _meminfo("MemAvailable")
    left = cgroup.memory_left()
    free = min((n for n in (available, left) if n is not None), default=None)
    if free is None:
        return ok("memory", "this system does not say")
    found = f"{free / GB:.1f} GB free" + (f" of {total / GB:.1f} GB" if total else "")
    if left is not None and left == free:
        found += ", by the container's limit"
    if free < A_LARGE_MODEL:
        return warn(
            "memory",
            f"{found}; a 3b model takes {A_LARGE_MODEL / GB:.0f} GB in bfloat16",
            "pgcli info MODEL says what a model needs; close other programs, or raise the limit",
        )
    return ok("memory", found)


def _meminfo(key: str) -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.M)
    return int(found[1]) * 1024 if found else None


def temporary() -> Finding:
    try:
        with tempfile.TemporaryFile() as stream:
            stream.write(b"pgcli")
    except OSError as error:
        return bad("temporary files", f"cannot be written: {error}", "export TMPDIR=DIR")
    return ok("temporary files", tempfile.gettempdir())


def text() -> Finding:
    """Whether every file name and answer can be shown and opened."""
    # what a spinner puts in its place while it turns has no encoding
    output = getattr(sys.__stdout__, "encoding", None) or "none"
    files = sys.getfilesystemencoding()
    if {output.lower().replace("-", ""), files.lower().replace("-", "")} == {"utf8"}:
        return ok("text", "UTF-8")
    return warn("text", f"output is {output}, file names are {files}", "export PYTHONUTF8=1")


def builtin_model() -> Finding:
    """Whether the built-in model's files are there, and as long as their header says."""
    again = f"{sys.executable} -m pip install --force-reinstall --no-deps paligemma-cli"
    for name in ("config.json", "tokenizer.json", WEIGHTS):
        if not (BUILTIN / name).is_file():
            return bad("built-in model", f"{BUILTIN / name} is missing", again)
    try:
        for name in ("config.json", "tokenizer.json"):
            json.loads((BUILTIN / name).read_bytes())
        whole = _length(BUILTIN / WEIGHTS)
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
        return bad("built-in model", f"its files are damaged: {error}", again)
    if whole != (BUILTIN / WEIGHTS).stat().st_size:
        return bad("built-in model", f"{BUILTIN / WEIGHTS} is not as long as it says", again)
    return ok("built-in model", f"intact, {whole / 1e6:.1f} MB")


def _length(file: Path) -> int:
    """The bytes that a safetensors file has by its own header."""
    with file.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(min(size, 2**24)))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return int(8 + size + max(ends))
