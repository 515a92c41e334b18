"""A Parquet manifest in, Parquet results out, and a question to them in SQL.

    python examples/parquet_roundtrip.py work/

The manifest holds pictures as bytes, the question that is asked of each, and a column of our own
that comes back beside the answer.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pandas

IMAGES = Path(__file__).parent / "images"


def main(folder: str) -> None:
    work = Path(folder)
    work.mkdir(parents=True, exist_ok=True)
    manifest, results = work / "manifest.parquet", work / "answers.parquet"
    pictures = sorted(IMAGES.glob("*.png"))
    pandas.DataFrame(
        {
            "id": [picture.stem for picture in pictures],
            "image": [picture.read_bytes() for picture in pictures],
            "prompt": ["how many shapes are there?"] * len(pictures),
            "split": ["train" if place % 2 else "test" for place in range(len(pictures))],
        }
    ).to_parquet(manifest)

    command = ["ask", str(manifest), "--keep", "split", "--model", "demo", "-o", str(results)]
    subprocess.run([sys.executable, "-m", "pgcli", *command, "--overwrite"], check=True)

    question = f"""
        select split, answer, count(*) as pictures, round(avg(logprob), 3) as logprob
        from '{results}' where error is null group by all order by all
    """
    print(duckdb.sql(question).df().to_string(index=False))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: parquet_roundtrip.py FOLDER")
    main(*sys.argv[1:])
