"""--include and --exclude select images of every kind of source by name, as part of the input."""

from __future__ import annotations

import json
import tarfile
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pgcli.cli.main import main
from pgcli.run import model as running
from tests.support import pretend

pytestmark = pytest.mark.usefixtures("clean_environment")

NAMES = ["a.png", "b.jpg", "draft/c.png", "draft/old/d.jpg", "e.png"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder, with images and tables of them; a model that needs no loading."""
    monkeypatch.setattr(running, "load_engine", pretend.load_engine)
    monkeypatch.chdir(tmp_path)
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


def run(capsys: pytest.CaptureFixture[str], *words: str) -> list[tuple[int, str]]:
    """The indices and ids of the rows."""
    capsys.readouterr()
    assert main(["caption", *words, "--model", "demo", "--quiet"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
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
def test_names_of_every_source_are_selected(
    source: str, prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Indices count what is left, from 0."""
    found = run(capsys, source, "--include", "*.png", "--exclude", f"{prefix}draft/")
    assert found == [(0, f"{prefix}a.png"), (1, f"{prefix}e.png")]
    found = run(capsys, source, "--include", f"{prefix}draft/*", "--include", f"{prefix}[ab].*")
    assert [name for _, name in found] == [f"{prefix}{name}" for name in NAMES[:4]]
    found = run(capsys, source, "--exclude", "*.jpg", "--limit", "2")
    assert found == [(0, f"{prefix}a.png"), (1, f"{prefix}draft/c.png")]


def test_standard_input_is_selected_as_it_arrives(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, option in (("\n".join(f"photos/{name}" for name in NAMES), ()), (None, ("--null",))):
        text = given or "\0".join(f"photos/{name}" for name in NAMES)
        monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text.encode())))
        found = run(capsys, "-", "--exclude", "*/draft/*", "--exclude", "*.jpg", *option)
        assert found == [(0, "photos/a.png"), (1, "photos/e.png")]
