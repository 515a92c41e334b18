"""Sources of every format with the same number of rows, in the current folder."""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.awkward import tar_of

COUNT = 57


def folder() -> str:
    Path("d/sub").mkdir(parents=True)
    for n in range(COUNT):
        Path(f"d/{'sub/' * (n % 2)}{n}.png").write_bytes(b"x")
    return "d"


def json_lines() -> str:
    """With a byte order mark, blank lines and multi-byte letters."""
    lines = (json.dumps({"image": f"ü{n}.png"}, ensure_ascii=False) for n in range(COUNT))
    Path("m.jsonl").write_text("\ufeff\n" + "\n\r\n".join(lines), encoding="utf-8")
    return "m.jsonl"


def table() -> str:
    """With rows of several lines, and empty ones."""
    with open("m.csv", "w", newline="", encoding="utf-8-sig") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "note"])
        for n in range(COUNT):
            writer.writerow([f"{n}.png", "ü\n\n" * (n % 3)])
            file.write("\r\n" * (n % 2))
    return "m.csv"


def parquet() -> str:
    images = [{"bytes": b"%d" % n, "path": f"{n}.png"} for n in range(COUNT)]
    pq.write_table(pa.table({"image": images}), "m.parquet", row_group_size=10)
    return "m.parquet"


def archive(name: str = "m.tar") -> str:
    """With long names, samples without an image, hidden files and repeated ids."""
    members: dict[str, bytes] = {}
    for n in range(COUNT):
        stem = f"{'long' * 40 * (n % 2)}{n}"
        members |= {f"{stem}.png": b"%d" % n, f"{stem}.json": b'{"id": "%d"}' % (n % 9)}
        members |= {f".hidden{n}": b"", f"z{n}.txt": b"not an image"}
    Path(name).write_bytes(tar_of(members.items(), "gz" if name.endswith("gz") else ""))
    return name


FORMATS = {
    "folder": folder,
    "jsonl": json_lines,
    "csv": table,
    "parquet": parquet,
    "tar": archive,
    "tgz": lambda: archive("m.tgz"),
}
