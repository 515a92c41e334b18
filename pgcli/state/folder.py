"""Where a run keeps what it knows of itself: a folder beside the output."""

from __future__ import annotations

from pathlib import Path


def state_folder(output: Path) -> Path:
    """`OUTPUT.pgcli`, a sibling: readers of a folder of data choke on any file that is not data."""
    return output.with_name(f"{output.name}.pgcli")
