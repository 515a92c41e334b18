"""Memory and CPU limits of this process's control groups."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
UNLIMITED = 2**60  # version 1 says "no limit" by a number of pages close to 2**63


def memory_left() -> int | None:
    """Bytes left before the limit of a control group; None without a limit.

    The smallest over the process's own group and its ancestors. File cache counts as free, because
    the kernel reclaims it.
    """
    remaining = []
    for folder in _groups("memory"):
        limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None and limit < UNLIMITED:
            remaining.append(max(0, limit - max(0, used - _file_cache(folder))))
    return min(remaining, default=None)


def processors() -> float:
    """The number of CPUs that this process may use, possibly a fraction."""
    try:
        count: float = len(os.sched_getaffinity(0))
    except AttributeError:  # only Linux has CPU affinity
        count = os.cpu_count() or 1
    return min([count, *_quotas()])


def _quotas() -> Iterator[float]:
    for folder in _groups("cpu"):
        # "200000 100000" is two CPUs, "max 100000" no limit; version 1 has a file for each number
        quota = _words(folder / "cpu.max") or [
            *_words(folder / "cpu.cfs_quota_us"),
            *_words(folder / "cpu.cfs_period_us"),
        ]
        if len(quota) == 2 and all(map(str.isdigit, quota)) and int(quota[1]):
            yield int(quota[0]) / int(quota[1])


def _groups(controller: str) -> Iterator[Path]:
    """The folders of this process's control groups, from its own up to the root."""
    for line in _text(MEMBERSHIP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # version 2 has one tree without a name, version 1 one for each controller
        root = GROUPS / controller if controllers else GROUPS
        # in a container the group may be the root, or a path that exists only outside
        own = root / path.strip("/")
        yield from (group for group in (own, *own.parents) if group.is_relative_to(root))


def _file_cache(folder: Path) -> int:
    stat = _text(folder / "memory.stat")
    match = re.search(r"^total_inactive_file (\d+)", stat, re.M) or re.search(
        r"^inactive_file (\d+)", stat, re.M
    )
    return int(match[1]) if match else 0


def _number(*files: Path) -> int | None:
    """The number in the first of these files that contains one."""
    for file in files:
        words = _words(file)
        if words and words[0].isdigit():
            return int(words[0])
    return None


def _words(file: Path) -> list[str]:
    return _text(file).split()


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""
