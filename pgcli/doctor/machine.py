"""Checks processors, memory, temporary files, text encoding and the built-in model."""

from __future__ import annotations

import json
import os
import re
import struct
import sys
import tempfile
from pathlib import Path

from pgcli.checkpoints.find import BUILTIN, BUILTIN_TOWERS
from pgcli.device import cgroup
from pgcli.doctor.finding import Finding, bad, ok, warn

GB = 10**9
LARGE_MODEL_BYTES = 7 * GB  # 3b in bfloat16, and a few rows
WEIGHTS = "model.safetensors"


def processor() -> Finding:
    """The usable processors, compared with the threads that PyTorch starts."""
    count = cgroup.processors()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    found = f"{count:g} usable of {os.cpu_count()}"
    if threads.isdigit() and int(threads) > count + 1:
        return warn(
            "processors",
            f"{found}, and OMP_NUM_THREADS={threads} starts more threads",
            f"export OMP_NUM_THREADS={max(1, int(count))}",
        )
    if threads.isdigit() and 0 < int(threads) < count // 2:
        return warn(
            "processors", f"{found}, and OMP_NUM_THREADS={threads}", "unset OMP_NUM_THREADS"
        )
    if not threads and count < (os.cpu_count() or 1) - 1 and count < _bound():
        return warn(
            "processors",
            f"{found}: the container's limit, which PyTorch ignores",
            f"export OMP_NUM_THREADS={max(1, int(count))}",
        )
    return ok("processors", found)


def _bound() -> int:
    """The number of processors in the process's affinity, which PyTorch respects."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def memory() -> Finding:
    total, available = _meminfo("MemTotal"), _meminfo("MemAvailable")
    left = cgroup.memory_left()
    free = min((n for n in (available, left) if n is not None), default=None)
    if free is None:
        return ok("memory", "unknown on this system")
    found = f"{free / GB:.1f} GB free" + (f" of {total / GB:.1f} GB" if total else "")
    if left is not None and left == free:
        found += ", by the container's limit"
    if free < LARGE_MODEL_BYTES:
        return warn(
            "memory",
            f"{found}; a 3b model takes {LARGE_MODEL_BYTES / GB:.0f} GB in bfloat16",
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
    """Whether output and file names are UTF-8, so that all names and answers can be shown."""
    # a progress display may replace sys.stdout by an object without an encoding
    output = getattr(sys.__stdout__, "encoding", None) or "none"
    files = sys.getfilesystemencoding()
    if {output.lower().replace("-", ""), files.lower().replace("-", "")} == {"utf8"}:
        return ok("text", "UTF-8")
    return warn("text", f"output is {output}, file names are {files}", "export PYTHONUTF8=1")


def builtin_model() -> Finding:
    """Whether the files of `demo` exist, with the size that their header states."""
    return intact("built-in model", BUILTIN)


def builtin_towers() -> Finding:
    """Whether the files of `demo-towers` exist, with the size that their header states."""
    return intact("built-in towers", BUILTIN_TOWERS)


def intact(name: str, folder: Path) -> Finding:
    """Whether a built-in model's files are complete."""
    reinstall = f"{sys.executable} -m pip install --force-reinstall --no-deps paligemma-cli"
    for file in ("config.json", "tokenizer.json", WEIGHTS):
        if not (folder / file).is_file():
            return bad(name, f"{folder / file} is missing", reinstall)
    try:
        for file in ("config.json", "tokenizer.json"):
            json.loads((folder / file).read_bytes())
        expected = _expected_bytes(folder / WEIGHTS)
    except (OSError, ValueError, struct.error, KeyError, TypeError, AttributeError) as error:
        return bad(name, f"its files are damaged: {error}", reinstall)
    if expected != (folder / WEIGHTS).stat().st_size:
        message = f"{folder / WEIGHTS} has not the size that its header states"
        return bad(name, message, reinstall)
    return ok(name, f"intact, {expected / 1e6:.1f} MB")


def _expected_bytes(file: Path) -> int:
    """The size of a safetensors file according to its header."""
    with file.open("rb") as stream:
        (size,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(min(size, 2**24)))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return int(8 + size + max(ends))
