"""--include and --exclude select images of every kind of source by name, as part of the input."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.support.command import Command

NAMES = ["a.png", "b.jpg", "draft/c.png", "draft/old/d.jpg", "e.png"]


@pytest.fixture(autouse=True)
def folder(pretended: None) -> None:
    """The current folder, with images and tables of them."""
    for name in NAMES:
        file = Path("photos", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(file)
    Path("photos/draft/notes.txt").touch()
    lines = [{"image": f"photos/{name}", "n": n} for n, name in enumerate(NAMES)]
    Path("paths.jsonl").write_text("\n".join(map(json.dumps, lines)))
    ids = [{"image": "photos/a.png", "id": name} for name in NAMES]
    Path("ids.jsonl").write_text("\n".join(map(json.dumps, ids)))
    data = [{"bytes": Path("photos", name).read_bytes(), "path": name} for name in NAMES]
    pq.write_table(pa.table({"image": data}), "images.parquet", row_group_size=2)
    with tarfile.open("images.tar", "w") as archive:
        for name in NAMES:
            archive.add(f"photos/{name}", name)


def run(cli: Command, *words: str) -> list[tuple[int, str]]:
    """The indices and ids of the rows."""
    code, out, _ = cli("caption", *words, "--model", "demo", "--quiet")
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert all(row["error"] is None for row in rows)
    return [(row["index"], row["id"]) for row in rows]


@pytest.mark.parametrize(
    ("source", "prefix"),
    [
        ("photos", ""),
        ("photos/", ""),
        ("photos/**/*.*g", "photos/"),
        ("paths.jsonl", "photos/"),
        ("ids.jsonl", ""),
        ("images.parquet", ""),
        ("images.tar", "images.tar/"),
    ],
)
def test_names_of_every_source_are_selected(source: str, prefix: str, cli: Command) -> None:
    """Indices count what is left, from 0."""
    found = run(cli, source, "--include", "*.png", "--exclude", f"{prefix}draft/")
    assert found == [(0, f"{prefix}a.png"), (1, f"{prefix}e.png")]
    found = run(cli, source, "--include", f"{prefix}draft/*", "--include", f"{prefix}[ab].*")
    assert [name for _, name in found] == [f"{prefix}{name}" for name in NAMES[:4]]
    found = run(cli, source, "--exclude", "*.jpg", "--limit", "2")
    assert found == [(0, f"{prefix}a.png"), (1, f"{prefix}draft/c.png")]
