"""Files of vectors as `embed` writes them."""

import json

import numpy as np
import pyarrow
from pyarrow import parquet


def unit(rows, width=6, seed=0):
    """Random vectors of length 1."""
    vectors = np.random.default_rng(seed).standard_normal((rows, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def rows_of(vectors, first=0, model="towers@1"):
    """A row for each vector; an error row for None."""
    return [
        {
            "index": number,
            "id": f"{number}.jpg",
            "image": f"photos/{number}.jpg",
            "model": model,
            "error": None if vector is not None else "missing",
            "embedding": None if vector is None else [float(value) for value in vector],
        }
        for number, vector in enumerate(vectors, start=first)
    ]


def write_jsonl(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_parquet(file, rows, kind=None, **options):
    """Write the rows, with vectors as lists of this kind, by default of a fixed size."""
    width = next(len(row["embedding"]) for row in rows if row["embedding"] is not None)
    kind = kind or pyarrow.list_(pyarrow.float32(), width)
    rows = [dict(row) for row in rows]
    if kind.value_type == pyarrow.float16():
        for row in rows:
            vector = row["embedding"]
            row["embedding"] = None if vector is None else np.array(vector, np.float16)
    columns = {name: [row[name] for row in rows] for name in rows[0] if name != "embedding"}
    table = pyarrow.table(columns)
    vectors = pyarrow.array([row["embedding"] for row in rows], kind)
    parquet.write_table(table.append_column("embedding", vectors), file, **options)
    return file
