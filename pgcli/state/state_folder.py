"""The folder beside an output that holds the state of its run, and the names in it."""

from __future__ import annotations

import re
from pathlib import Path

RUN, PROGRESS, LOG = "run.json", "progress", "log"
LOCK, OWNER = "lock", "owner"
JOURNAL, TORN, RETRIED = "waiting", "torn", "retried.jsonl"
FILES, INPUTS = "files", "inputs"
#: Folders of chunks: JSON lines of incomplete ones, and complete ones of a single Parquet file.
UNFINISHED, COMPLETE = "chunks", "parts"
#: The name of such a file of lines: the number of the chunk, and the part of the output.
CHUNK_LINES = re.compile(r"(\d{6,})(|-\d+-of-\d+)\.jsonl")


#: The part of a run of which several processes claim chunks, each with a name of its own.
CLAIMING_PART = re.compile(r"(-join|-ray)-\w+")


def common_part(part: str) -> str:
    """The part whose progress and log a process writes: processes that claim chunks share one."""
    found = CLAIMING_PART.fullmatch(part)
    return found[1] if found else part


def state_folder(output: Path) -> Path:
    """`OUTPUT.pgcli`, beside the output: readers of a data folder reject any other file in it."""
    path = output if output.name else output.resolve()  # `.` and `rows/..`
    return path.with_name(f"{path.name}.pgcli") if path.name else path / ".pgcli"


def uses_chunks(output: Path) -> bool:
    """Whether rows are saved in chunks rather than as lines of the output itself."""
    # a folder of Parquet files does not exist before its first file does
    is_begun = (state_folder(output) / UNFINISHED).is_dir()
    return is_begun or output.is_dir() or output.suffix.lower() == ".parquet"


def chunk_file(output: Path, number: int, part: str = "") -> Path:
    """The file of lines that holds the rows of an incomplete chunk."""
    return state_folder(output) / UNFINISHED / f"{number:06}{part}.jsonl"


def input_file(output: Path, number: int) -> Path:
    """The file with the input of each row of a chunk."""
    return state_folder(output) / INPUTS / f"{number:06}"


def file_list(folder: Path, files: str, number: int) -> Path:
    """The path that the names of the file lists of one source begin with."""
    return folder / f"{files}-{number}"
