"""Runs begun with the first version of the on-disk format resume.

`runs_of_version_1.zip` was written by that version: eight items in chunks of four rows, killed
after nine rows, and `complete.parquet` with the first five items. Item 1 was broken in all.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from pgcli.cli.result_files.run_status import read_run_status
from pgcli.errors import OutputExists
from pgcli.state.progress import read_progress
from pgcli.state.run_record import read_record
from pgcli.state.state_folder import state_folder
from tests.support.fake_runs import keys_of, many, rows_in, run_to, saved_keys, set_chunk_rows

ITEMS = many(8)
KILLED = ["rows.jsonl", "rows.parquet", "rows"]


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    set_chunk_rows(4, monkeypatch)
    with zipfile.ZipFile(Path(__file__).with_name("runs_of_version_1.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", KILLED)
def test_killed_run_resumes_without_asking_saved_rows(outputs: Path, name: str) -> None:
    output = outputs / name
    saved = rows_in(output)
    assert len(saved) == 9
    asked = run_to(output, ITEMS)
    assert min(asked) >= 9
    assert len(asked) < len(keys_of(ITEMS)) - 9  # journaled answers are not asked again either
    assert saved_keys(output) == keys_of(ITEMS)
    assert rows_in(output)[:9] == saved


@pytest.mark.parametrize("name", KILLED)
def test_settings_and_progress_are_read(outputs: Path, name: str) -> None:
    record, progress = read_record(outputs / name), read_progress(state_folder(outputs / name))
    assert record is not None
    assert (record.settings, record.metadata) == ({"seed": 0}, {})
    assert progress.errors == {"truncated": 2}
    status = read_run_status(outputs / name)
    assert (status.state, status.rows, status.errors) == ("stopped", 9, {"truncated": 2})
    with pytest.raises(OutputExists, match="seed: 0 -> 1"):
        run_to(outputs / name, ITEMS, settings={"seed": 1}.items())


def test_complete_parquet_file_takes_more_rows(outputs: Path) -> None:
    output = outputs / "complete.parquet"
    asked = run_to(output, ITEMS)
    assert min(asked) == len(keys_of(ITEMS[:5]))
    assert saved_keys(output) == keys_of(ITEMS)


@pytest.mark.parametrize("name", KILLED)
def test_error_rows_are_retried(outputs: Path, name: str) -> None:
    run_to(outputs / name, ITEMS)
    run_to(outputs / name, ITEMS, retry=True)
    assert saved_keys(outputs / name) == keys_of(ITEMS)
    assert all(row["error"] is None for row in rows_in(outputs / name))
