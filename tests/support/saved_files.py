"""The files of an output in a folder, an object store or a single file, and their rows."""

from __future__ import annotations

import io
import json
from pathlib import PurePosixPath

import pyarrow.parquet as pq

from pgcli.stores import open_folder


def files_of(output: str) -> dict[str, bytes]:
    """The files that are there now, in order of their names."""
    folder, _, name = output.rpartition("/")
    try:
        store = open_folder(f"{folder}/")
    except FileNotFoundError:
        return {}
    names = [name] if name else sorted(entry.name for entry in store.list("part-"))
    files = {name: store.read(name) for name in names}
    return {name: data for name, data in files.items() if data is not None}


def rows_of(output: str) -> list[str]:
    """The rows that are there now; of JSON lines those of whole lines."""
    rows = []
    for name, data in files_of(output).items():
        if PurePosixPath(name).suffix == ".parquet":
            rows += pq.read_table(io.BytesIO(data)).to_pylist()
        else:
            rows += map(json.loads, data[: data.rfind(b"\n") + 1].splitlines())
    return [json.dumps(row, sort_keys=True) for row in rows]
