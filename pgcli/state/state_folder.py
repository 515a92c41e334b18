"""Where a run keeps what it knows of itself: a folder beside the output."""

from __future__ import annotations

from pathlib import Path

#: In it, chunks of rows that become Parquet: those not complete as lines, and those that are.
UNFINISHED, PARTS = "chunks", "parts"


def state_folder(output: Path) -> Path:
    """`OUTPUT.pgcli`, a sibling: readers of a folder of data choke on any file that is not data."""
    place = output if output.name else output.resolve()  # `.` and `rows/..`
    return place.with_name(f"{place.name}.pgcli") if place.name else place / ".pgcli"


def is_in_chunks(output: Path) -> bool:
    """Whether rows are saved in chunks, and not as lines of the output itself."""
    # a folder is not there before its first part is
    is_begun = (state_folder(output) / UNFINISHED).is_dir()
    return is_begun or output.is_dir() or output.suffix.lower() == ".parquet"


def chunk_lines(output: Path, number: int, part: str = "") -> Path:
    """The file with the rows so far of a chunk that is not complete."""
    return state_folder(output) / UNFINISHED / f"{number:06}{part}.jsonl"
