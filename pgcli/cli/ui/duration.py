"""Durations in words."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """`0.42 s`, `12.3 s`, `4 min 5 s`, `3 h 2 min`."""
    if seconds < 60:
        return f"{seconds:.{2 if seconds < 10 else 1}f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
