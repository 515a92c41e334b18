"""Answers a Parquet manifest into Parquet results, and queries them in SQL.

    python examples/parquet_roundtrip.py work/

The manifest holds images as bytes, a prompt for each, and a column that is copied to the results.
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
    files = sorted(IMAGES.glob("*.png"))
    pandas.DataFrame(
        {
            "id": [file.stem for file in files],
            "image": [file.read_bytes() for file in files],
            "prompt": ["how many shapes are there?"] * len(files),
            "split": ["train" if number % 2 else "test" for number in range(len(files))],
        }
    ).to_parquet(manifest)

    command = ["ask", str(manifest), "--keep", "split", "--model", "demo", "-o", str(results)]
    subprocess.run([sys.executable, "-m", "pgcli", *command, "--overwrite"], check=True)

    question = f"""
        select split, answer, count(*) as images, round(avg(logprob), 3) as logprob
        from '{results}' where error is null group by all order by all
    """
    print(duckdb.sql(question).df().to_string(index=False))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: parquet_roundtrip.py FOLDER")
    main(*sys.argv[1:])
