"""A run that is refused, and a run of a newer version, leave the state of the output as it is."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from pgcli.errors import OutputExists, OutputInUse
from pgcli.rows import RowSchema
from pgcli.sinks import open_resumable
from pgcli.state.destination import check_resumable
from pgcli.state.run_record import read_record, why_no_record
from pgcli.state.run_state import RunState


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """The output of a run without rows, with a list of its input files."""
    output = tmp_path / "rows.jsonl"
    with RunState(output) as state:
        state.check_settings({"seed": 1})
        with state.file_lists() as lists:
            lists(0).write_text("1.png\n")
        with open_resumable(state, RowSchema(), "jsonl", settings={}):
            pass
    return output


def state_files(output: Path) -> dict[str, bytes]:
    """The content of the state folder but its lock."""
    folder = output.with_name("rows.jsonl.pgcli")
    files = (file for file in folder.iterdir() if not file.name.startswith("lock"))
    return {file.name: file.read_bytes() for file in files}


def write_record(output: Path, **values: object) -> None:
    """Change some values of the run's record."""
    file = output.with_name("rows.jsonl.pgcli") / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


@pytest.mark.parametrize("damage", [{"run": None}, {"version": 2}, {"version": "x"}])
def test_refused_run_keeps_the_file_lists_of_the_output(
    output: Path, damage: dict[str, object]
) -> None:
    write_record(output, **damage)
    before = state_files(output)
    assert any(name.startswith("files-") for name in before)
    with pytest.raises(OutputExists), RunState(output):
        pytest.fail("the output was resumed")
    assert state_files(output) == before


def test_run_that_saves_nothing_removes_its_file_lists(tmp_path: Path) -> None:
    with RunState(tmp_path / "rows.jsonl") as state, state.file_lists() as lists:
        lists(0).write_text("1.png\n")
    assert not list(tmp_path.iterdir())


def use_lists(state: RunState, names: str, sources: str = "a") -> str:
    """Use the lists as a run that begins, and return the names in them."""
    state.check_settings({"sources": [sources]})
    with state.file_lists() as lists:
        file = lists(0).with_name("files-0.0")
        if not file.exists():
            file.write_text(names)
        return file.read_text()


def test_parts_that_begin_at_one_time_share_one_list(tmp_path: Path) -> None:
    """The list stays while one of them runs, and goes with the last one that saved nothing."""
    output = tmp_path / "rows"
    with ExitStack() as stack:
        a, b, c = (stack.push(RunState(output, part=f"-join-{name}")) for name in "abc")
        for state in (a, b):
            state.__enter__()  # both own the output before either of them makes a list
        list_file = a.folder / "files-0.0"
        list_file.write_text("old")  # of a process that was killed
        assert use_lists(a, "1") == "1"
        assert use_lists(b, "2") == "1"
        a.__exit__(None, None, None)
        c.__enter__()
        with pytest.raises(OutputInUse, match="with other sources"):
            use_lists(c, "3", "b")
        c.__exit__(None, None, None)
        assert list_file.read_text() == "1"
    assert not list(tmp_path.iterdir())


def test_part_that_saw_no_record_keeps_the_list_of_a_run_that_ended(tmp_path: Path) -> None:
    with RunState(tmp_path / "rows", part="-join-b") as late:
        with RunState(tmp_path / "rows", part="-join-a") as state:
            use_lists(state, "1")
            state.begin()
        assert use_lists(late, "2") == "1"


@pytest.mark.parametrize("is_occupied", [True, False], ids=["output", "no output yet"])
def test_run_of_a_newer_pgcli_is_refused(output: Path, is_occupied: bool) -> None:
    write_record(output, version=2)
    if not is_occupied:
        output.unlink()  # as with a single Parquet file that is not complete
    for resume in (lambda: check_resumable(output, {}), lambda: RunState(output).__enter__()):
        with pytest.raises(OutputExists, match="made by a newer pgcli") as refused:
            resume()
        assert refused.value.exit_code == 13
        assert "--overwrite" in refused.value.hint
        assert "another -o" in refused.value.hint
    assert read_record(output) is None
    assert "newer pgcli" in why_no_record(output)


def test_overwrite_replaces_the_run_of_a_newer_pgcli(output: Path) -> None:
    write_record(output, version=2)
    assert not check_resumable(output, {}, overwrite=True)
    with RunState(output, overwrite=True) as state:
        state.begin()
    assert read_record(output) is not None


def test_releasing_a_lock_keeps_the_record_of_its_next_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, next_run, unlink = tmp_path / "rows.jsonl", ExitStack(), Path.unlink

    def unlink_and_begin_another(file: Path, missing_ok: bool = False) -> None:
        unlink(file, missing_ok=missing_ok)
        if file.name == "lock":  # the next run may lock a new file of the name from now on
            monkeypatch.undo()
            next_run.enter_context(RunState(output))

    with RunState(output):
        monkeypatch.setattr(Path, "unlink", unlink_and_begin_another)
    with next_run:
        assert (tmp_path / "rows.jsonl.pgcli" / "owner.json").exists()
        with pytest.raises(OutputInUse), RunState(output):
            pytest.fail("two runs at once")
    assert not list(tmp_path.iterdir())
