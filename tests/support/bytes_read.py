"""Counts the bytes that this process reads."""

from pathlib import Path


def bytes_read() -> int:
    """The bytes that this process has read so far, from files and otherwise; only on Linux."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])
