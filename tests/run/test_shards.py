"""Shards make one run: a run without shards continues their logs, and --overwrite removes them."""

import json
import shutil
from pathlib import Path

import pytest

from tests.support.stub_runs import finish, fresh, make_images, rows_of

ROWS, FILE_ROWS = 16, 5
OPTIONS = {"rows_per_file": FILE_ROWS}
OPEN, SHARD = "open/000000000000.jsonl", "shard-0-of-2"


@pytest.fixture
def images(tmp_path) -> Path:
    make_images(tmp_path / "images", ROWS // 2)
    return tmp_path


@pytest.fixture
def state(images) -> Path:
    """The state of a run without its rows."""
    folder = fresh(images, "run")
    assert finish(folder, "rows/", **OPTIONS)[0] == 0
    shutil.rmtree(folder / "rows")
    return folder / "rows.pgcli"


def lines_of_first_file(images: Path, **options: object) -> list[bytes]:
    """The rows of the first file of an undisturbed run, as they wait for it."""
    folder = fresh(images, "lines")
    assert finish(folder, "rows.jsonl", **options)[0] == 0
    return (folder / "rows.jsonl").read_bytes().splitlines(keepends=True)[: FILE_ROWS - 1]


@pytest.mark.parametrize(("own", "others"), [(0, 3), (1, 4), (4, 1)])
def test_a_run_without_shards_continues_the_logs_of_shards(images, state, own, others):
    """Of two logs of a file, the longer one counts."""
    lines = lines_of_first_file(images)
    for folder, count in ((state, own), (state / SHARD, others)):
        (folder / "open").mkdir(parents=True, exist_ok=True)
        (folder / OPEN).write_bytes(b"".join(lines[:count]))
    (images / "computed").touch()
    assert finish(state.parent, "rows/", **OPTIONS)[0] == 0
    computed = sorted(map(int, (images / "computed").read_text().split()))
    assert computed == [*range(max(own, others), ROWS)]
    assert not [*state.glob("open/*"), *state.glob("*/open/*")]
    rows = [json.loads(row)["index"] for row in rows_of(state.parent, "rows/")]
    assert rows == [row // 2 for row in range(ROWS)]


def test_overwrite_removes_files_of_shards(images, state):
    (state / SHARD / "open").mkdir(parents=True)
    (state / SHARD / OPEN).write_bytes(b"".join(lines_of_first_file(images, prompt=("old", "b"))))
    assert finish(state.parent, "rows/", overwrite=True, **OPTIONS)[0] == 0
    assert not (state / SHARD).exists()
    assert not [row for row in rows_of(state.parent, "rows/") if "old" in row]


def test_simultaneous_shards_make_one_run(images):
    """Each writes a record: in a store without conditional puts the last one stays."""
    records = []
    for number in range(2):
        folder = fresh(images, str(number))
        assert finish(folder, "rows/", shard=f"{number}/2", **OPTIONS)[0] == 0
        records.append(json.loads((folder / "rows.pgcli/run.json").read_text()))
    first, second = (record.pop("run_id", None) for record in records)
    assert first is not None
    assert first == second
