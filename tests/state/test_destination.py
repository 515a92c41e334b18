"""Outputs that cannot be written are refused before anything is created or read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pgcli.cli.result_files.run_status import read_run_status
from pgcli.errors import OutputExists, OutputFailed, OutputInUse, PgcliError, UsageError
from pgcli.rows import RowSchema
from pgcli.sinks import open_resumable
from pgcli.sinks.reader import read_results
from pgcli.state.destination import check_destination, check_resumable
from pgcli.state.run_state import RunState


def begin_run(output: Path, settings: dict[str, object]) -> None:
    """Make a complete run without rows."""
    with RunState(output) as state:
        state.check_settings(settings)
        with open_resumable(state, RowSchema(), "jsonl", settings=settings):
            pass


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "rows.jsonl"


def test_new_output_is_accepted_and_nothing_is_created(output: Path) -> None:
    check_destination(output)
    check_resumable(output, {"seed": 1})
    check_resumable(output.with_suffix(""), {"seed": 1}, kind="folder")
    assert not list(output.parent.iterdir())


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_missing_parent_folder_is_a_usage_error(tmp_path: Path, kind: str) -> None:
    for check in (check_destination, lambda path, **given: check_resumable(path, {}, **given)):
        with pytest.raises(UsageError, match="there is no folder") as refused:
            check(tmp_path / "missing" / "rows", kind=kind)
        assert "mkdir -p" in refused.value.hint


def test_wrong_kind_is_a_usage_error_even_with_overwrite(output: Path) -> None:
    output.write_text("")
    with pytest.raises(UsageError, match="is not a folder"):
        check_destination(output, kind="folder", overwrite=True)
    with pytest.raises(UsageError, match="is not a regular file"):
        check_destination(output.parent, overwrite=True)
    with pytest.raises(UsageError, match="is not a regular file") as refused:
        check_destination(Path(os.devnull), overwrite=True, option="--view")
    assert "--view" in refused.value.hint


def test_existing_file_needs_overwrite(output: Path) -> None:
    output.write_text("old")
    for check in (check_destination, lambda path: check_resumable(path, {})):
        with pytest.raises(OutputExists, match="exists"):
            check(output)
    check_destination(output, overwrite=True)
    check_resumable(output, {}, overwrite=True)
    assert output.read_text() == "old"


def test_folder_with_files_needs_overwrite(tmp_path: Path) -> None:
    check_destination(tmp_path, kind="folder")
    (tmp_path / "old").write_text("")
    with pytest.raises(OutputExists, match="is not empty") as refused:
        check_destination(tmp_path, kind="folder", option="--draw")
    assert "another --draw" in refused.value.hint
    check_destination(tmp_path, kind="folder", overwrite=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_permission_is_output_failed(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputFailed, match="not writable"):
        check_destination(tmp_path / "rows.jsonl")


def test_output_of_these_settings_is_accepted(output: Path) -> None:
    begin_run(output, {"seed": 1, "model": "demo"})
    check_resumable(output, {"seed": 1})  # the model is not known yet


def test_output_of_other_settings_is_refused_with_the_difference(output: Path) -> None:
    begin_run(output, {"seed": 1, "model": "demo"})
    with pytest.raises(OutputExists, match="seed: 1 -> 2"):
        check_resumable(output, {"seed": 2})
    check_resumable(output, {"seed": 2}, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_output_in_use_is_refused_and_names_the_process(output: Path, overwrite: bool) -> None:
    with RunState(output) as state:
        before = sorted(state.folder.iterdir())
        with pytest.raises(OutputInUse, match=f"process {os.getpid()}"):
            check_resumable(output, {}, overwrite=overwrite)
        with pytest.raises(OutputInUse, match=f"process {os.getpid()}"):
            check_resumable(output, {}, part="-0-of-2")
        assert sorted(state.folder.iterdir()) == before
    check_resumable(output, {})


@pytest.mark.parametrize("overwrite", [False, True])
def test_shards_share_an_output_that_a_whole_run_may_not_take(
    tmp_path: Path, overwrite: bool
) -> None:
    output = tmp_path / "rows"
    with RunState(output, part="-0-of-2"), RunState(output, part="-1-of-2"):
        with pytest.raises(OutputInUse, match=f"process {os.getpid()}"):
            check_resumable(output, {}, kind="folder", overwrite=overwrite)
        with pytest.raises(OutputInUse), RunState(output, overwrite=overwrite):
            pytest.fail("a run of the whole output under its shards")
        with pytest.raises(OutputInUse), RunState(output, part="-0-of-2"):
            pytest.fail("a shard twice")
    assert not list(tmp_path.iterdir())


def test_owner_file_of_a_killed_run_does_not_lock_the_output(output: Path) -> None:
    begin_run(output, {})
    folder = output.with_name("rows.jsonl.pgcli")
    owner = json.dumps({"pid": os.getpid(), "host": "another", "since": "today"})
    (folder / "owner.json").write_text(owner)
    check_resumable(output, {})


def test_check_and_run_refuse_the_same_outputs(output: Path) -> None:
    output.write_text('{"index": 0}\n')
    messages = []
    for refuse in (lambda: check_resumable(output, {}), lambda: RunState(output).__enter__()):
        with pytest.raises(PgcliError) as refused:
            refuse()
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


def test_other_things_of_the_state_folders_name_are_refused(output: Path) -> None:
    folder = output.with_name("rows.jsonl.pgcli")
    for make in (folder.touch, lambda: folder.symlink_to("missing")):
        make()
        for overwrite in (False, True):
            with pytest.raises(OutputExists, match="is not a folder") as refused:
                check_resumable(output, {}, overwrite=overwrite)
            assert "--overwrite" not in refused.value.hint
        folder.unlink()


def test_name_too_long_for_a_state_folder_is_output_failed(output: Path) -> None:
    with pytest.raises(OutputFailed, match="File name too long"):
        check_resumable(output.with_name("x" * 248 + ".jsonl"), {})


def test_unreadable_state_is_named(output: Path) -> None:
    output.with_name("rows.jsonl.pgcli").symlink_to("rows.jsonl.pgcli")
    for name, reason in ((output.name, "symbolic links"), ("x" * 248 + ".jsonl", "too long")):
        with pytest.raises(UsageError, match=rf"run.json cannot be read: .*{reason}"):
            read_run_status(output.with_name(name))
    with pytest.raises(UsageError, match=r"cannot be read: .*too long"):
        list(read_results(output.with_name("x" * 248 + ".jsonl")))
