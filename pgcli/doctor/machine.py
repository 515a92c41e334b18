"""Checks processors, memory, the built-in models, and the Hub's cache and login."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryFile

from pgcli.checkpoints.find import builtin_models
from pgcli.device import cgroup
from pgcli.doctor.finding import Finding, bad, ok, warn
from pgcli.text import first_line

GB = 10**9
LARGE_MODEL_BYTES = 7 * GB  # 3b in bfloat16, and a few rows
INT8_MODEL_BYTES = 4.5 * GB  # the same, quantized
MOVE = "export HF_HOME=DIR, a writable folder on a large disk"
MODEL_FILES = ("config.json", "tokenizer.json", "model.safetensors")


def processor() -> Finding:
    """The usable processors, compared with the threads that PyTorch starts."""
    count, threads = cgroup.processors(), os.environ.get("OMP_NUM_THREADS", "")
    description = f"{count:g} usable of {os.cpu_count()}"
    started = int(threads) if threads.isdigit() else affinity()
    if started > count + 1:
        return warn(
            "processors",
            f"{description}, and PyTorch starts {started} threads",
            f"export OMP_NUM_THREADS={max(1, int(count))}",
        )
    if 0 < started < count // 2:
        return warn(
            "processors", f"{description}, and PyTorch starts {started}", "unset OMP_NUM_THREADS"
        )
    return ok("processors", description)


def affinity() -> int:
    """The processors that this process may use; like PyTorch, ignores a container's limit."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # on macOS
        return os.cpu_count() or 1


def memory() -> Finding:
    """The free memory of the system or within the container's limit."""
    total, available = meminfo("MemTotal"), meminfo("MemAvailable")
    group_free = cgroup.memory_left()
    free = min((n for n in (available, group_free) if n is not None), default=None)
    if free is None:
        return ok("memory", "unknown on this system")
    description = f"{free / GB:.1f} GB free" + (f" of {total / GB:.1f} GB" if total else "")
    if group_free is not None and group_free == free:
        description += " (container limit)"
    if free < LARGE_MODEL_BYTES:
        return warn(
            "memory",
            f"{description}; a 3b model takes {LARGE_MODEL_BYTES / GB:.0f} GB in bfloat16, "
            f"{INT8_MODEL_BYTES / GB:.1f} GB with --quantize int8 on a CPU",
            "pgcli info MODEL shows what a model needs; close other programs, or raise the limit",
        )
    return ok("memory", description)


def meminfo(key: str) -> int | None:
    """A value of /proc/meminfo in bytes; None on systems without this file."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    match = re.search(rf"^{key}:\s+(\d+) kB", text, re.M)
    return int(match[1]) * 1024 if match else None


def model_findings(folders: Mapping[str, Path] | None = None) -> Iterator[Finding]:
    """Whether the files of models, by default the built-in ones, are complete."""
    reinstall = f"{sys.executable} -m pip install --force-reinstall --no-deps paligemma-cli"
    for name, folder in (folders or builtin_models()).items():
        try:
            from safetensors import SafetensorError, safe_open

            *texts, weights = (folder / file for file in MODEL_FILES)
            for file in texts:
                json.loads(file.read_bytes())
            try:
                with safe_open(weights, framework="numpy") as tensors:
                    count = len(tensors.keys())
            except SafetensorError as problem:
                raise ValueError(f"{weights}: {problem}") from problem
        except (ImportError, OSError, ValueError) as problem:
            yield bad(f"model {name}", f"damaged: {problem}", reinstall)
        else:
            yield ok(f"model {name}", f"intact, {count} tensors")


def hub_findings() -> Iterator[Finding]:
    """The findings about the Hub, without network access."""
    try:
        from huggingface_hub import constants
    except ImportError as problem:
        yield bad("hub", f"huggingface_hub cannot be imported: {first_line(problem)}", "see above")
        return
    yield cache(Path(constants.HF_HUB_CACHE))
    yield login()
    if constants.HF_HUB_OFFLINE:
        yield warn("downloads", "forbidden by HF_HUB_OFFLINE", "unset HF_HUB_OFFLINE")


def cache(folder: Path) -> Finding:
    """Whether a file can be created in the cache folder, and the free space on its disk."""
    existing = next(filter(os.path.lexists, (folder, *folder.parents)), Path("/"))
    try:
        TemporaryFile(dir=existing).close()
        free = shutil.disk_usage(existing).free
    except OSError as problem:
        return bad("cache", f"{folder} is not writable: {problem.strerror}", MOVE)
    description = f"{folder}, {free / GB:.1f} GB free"
    if free < LARGE_MODEL_BYTES:
        return warn("cache", f"{description}; a 3b model needs 6 GB", f"hf cache prune, or {MOVE}")
    return ok("cache", description)


def login() -> Finding:
    """Whether a token is set. The token itself is never shown."""
    from huggingface_hub import get_token

    from pgcli.checkpoints.hub import token_source

    try:
        token = get_token()
    except OSError as problem:
        return bad("login", f"the token cannot be read: {problem}", MOVE)
    if token is None:
        return warn("login", "no token: gated models cannot be downloaded", "hf auth login")
    if not token.startswith("hf_"):
        return warn("login", "the token is not a Hugging Face token", "hf auth login --force")
    return ok("login", f"token from {token_source()}")
