"""`status` shows the rows on disk and the owners: running, ended, suspended or lost."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from pgcli.run.state.owner import SILENT_SECONDS, Owner, boot_id, shard_folder
from pgcli.stores import LocalStore
from tests.support.runs import EXAMPLES, Command, finished

LONG_AGO = 2 * SILENT_SECONDS


def status(cli: Command, output: object) -> dict[str, Any]:
    """The status as JSON."""
    code, out, _ = cli("status", output, "--json")
    assert code == 0
    report: dict[str, Any] = json.loads(out)
    return report


def state_folder(output: Path) -> Path:
    return output.with_name(f"{output.name}.pgcli")


def write_owner(output: Path, shard: str = "", *, silent: float = 0.0, **values: object) -> None:
    """The `owner.json` of a command on another host, which gave its last heartbeat so long ago."""
    file = state_folder(output) / shard_folder(shard) / "owner.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    host = {"pid": 7, "host": "elsewhere", "boot": "other", "started": "2999-01-01T00:00:00"}
    file.write_text(json.dumps({**host, "exit_code": None, "input_rows": 12, **values}))
    be_silent(file, silent)


def be_silent(file: Path, seconds: float) -> None:
    at = time.time() - seconds
    os.utime(file, (at, at))


@pytest.fixture
def rows(tmp_path) -> Path:
    """An output with five of twelve rows."""
    output = tmp_path / "rows.jsonl"
    assert finished("caption", EXAMPLES, "-o", output, "--limit", 5).returncode == 0
    return output


@pytest.mark.parametrize(
    ("silent", "state", "owner", "line"),
    [
        (0.0, "running", "running", "run by process 7 on elsewhere\n"),
        (LONG_AGO, "stopped", "lost", "killed or lost: process 7 on elsewhere, last heartbeat "),
    ],
)
def test_owner_on_another_host_runs_while_it_writes_heartbeats(
    cli, rows, silent, state, owner, line
):
    write_owner(rows, silent=silent, rows_per_second=3.5, hint="more cores")
    report = status(cli, rows)
    assert (report["state"], report["owner"]["state"]) == (state, owner)
    assert (report["rows"], report["total"], report["exit_code"]) == (5, 12, None)
    assert report["rows_per_second"] == 3.5
    assert report["seconds_left"] == (2.0 if state == "running" else None)
    out = cli("status", rows)[1]
    assert line in out
    assert ("3.5 rows/s, 2.00 s left\nhint: more cores\n" in out) == (state == "running")
    assert ("to resume: run the same command again\n" in out) == (state == "stopped")


@pytest.mark.parametrize(
    ("values", "silent", "code"),
    [
        ({"input_rows": 12}, 0.0, 12),  # it is running
        ({"input_rows": 12}, LONG_AGO, 3),  # it was killed
        ({"input_rows": 12, "exit_code": 14}, LONG_AGO, 3),
        ({"input_rows": 5, "exit_code": 0}, LONG_AGO, 0),
        ({"input_rows": 5}, LONG_AGO, 0),  # it was killed after its last row
    ],
)
def test_exit_code_says_whether_all_rows_are_answered(cli, rows, values, silent, code):
    write_owner(rows, silent=silent, **values)
    assert cli("status", rows)[0] == 0
    assert cli("status", rows, "--exit-code")[0] == code
    assert cli("status", rows, "--exit-code", "--json")[0] == code


def test_exit_code_of_a_run_with_failed_rows(cli, tmp_path):
    images, output = tmp_path / "images", tmp_path / "rows.jsonl"
    images.mkdir()
    (images / "bad.png").write_bytes(b"no image")
    (images / "one.png").write_bytes((EXAMPLES / "one.png").read_bytes())
    assert finished("caption", images, "-o", output).returncode == 3
    assert cli("status", output, "--exit-code")[0] == 3
    (images / "bad.png").write_bytes((EXAMPLES / "one.png").read_bytes())
    assert finished("caption", images, "-o", output, "--retry-errors").returncode == 0
    assert cli("status", output, "--exit-code")[0] == 0


def test_suspended_owner_is_shown_with_the_command_that_continues_it(cli, rows):
    owner = Owner(LocalStore(state_folder(rows)), rows.name)
    with owner.holding(say=lambda text: None):
        owner.note(input_rows=12)
        owner.write()
        be_silent(state_folder(rows) / "owner.json", LONG_AGO)
        report, out = status(cli, rows), cli("status", rows)[1]
        owner.note(exit_code=14)
    assert (report["state"], report["owner"]["state"]) == ("stopped", "suspended")
    assert report["owner"]["silent_seconds"] >= LONG_AGO
    assert f"suspended: process {os.getpid()} on {os.uname().nodename}, last heartbeat 4 min" in out
    assert f"to resume: kill -CONT {os.getpid()} on {os.uname().nodename}\n" in out
    assert status(cli, rows)["exit_code"] == 14
    assert "exit code 14, output not written\n" in cli("status", rows)[1]


def test_run_that_was_killed_before_its_record_is_stopped(cli, tmp_path):
    output = tmp_path / "rows.jsonl"
    with Owner(LocalStore(state_folder(output), create=True), output.name).holding(say=print):
        assert status(cli, output)["state"] == "running"
    write_owner(output, boot=boot_id())  # it gave a heartbeat just now, and nobody has its lock
    assert status(cli, output)["state"] == "stopped"
    out = cli("status", output)[1]
    assert "killed or lost: process 7 on elsewhere, last heartbeat " in out
    assert "to resume: run the same command again\n" in out


def test_shards_are_shown_with_their_rows_and_owners(cli, tmp_path):
    output = tmp_path / "rows"
    shard = ("--shard", "1/6", "--rows-per-file", 2)
    assert finished("caption", EXAMPLES, "-o", f"{output}/", *shard).returncode == 0
    write_owner(output, "1/6", exit_code=0)
    write_owner(output, "0/6", silent=LONG_AGO, started="2026-01-01T00:00:00")
    write_owner(output, "2/6", rows_per_second=2.0)
    write_owner(output, "3/6", exit_code=14)
    write_owner(output, "0/2", silent=LONG_AGO, started="2025-01-01T00:00:00")  # divided otherwise
    suspended = Owner(LocalStore(state_folder(output)), output.name, shard="4/6")
    with suspended.holding(say=print):
        be_silent(state_folder(output) / "shard-4-of-6" / "owner.json", LONG_AGO)
        report, out = status(cli, f"{output}/"), cli("status", f"{output}/")[1]
    assert [(s["shard"], s["state"]) for s in report["shards"]] == [
        ("0/6", "lost"),
        ("1/6", "complete"),
        ("2/6", "running"),
        ("3/6", "stopped"),
        ("4/6", "lost"),
        ("5/6", "waiting"),
    ]
    assert (report["state"], report["owner"], report["seconds_left"]) == ("running", None, 5.0)
    assert [(s["rows"], s["total"]) for s in report["shards"][:2]] == [(0, 2), (2, 2)]
    head, counts, *table, rate = out.splitlines()
    assert head == f"{output}/: running, 2 of 12 rows (16.7%), no errors"
    assert counts == "shards: 2 lost, 1 stopped, 1 running, 1 waiting, 1 complete"
    assert rate == "2.0 rows/s, 5.00 s left"
    none = "0 of 2 rows  "
    assert table[0].startswith(
        f"0/6  lost      {none}killed or lost: process 7 on elsewhere, last heartbeat 4 min"
    )
    assert table[1] == "1/6  complete  2 of 2 rows"
    assert table[2] == f"2/6  running   {none}run by process 7 on elsewhere"
    assert table[3] == f"3/6  stopped   {none}exit code 14, output not written"
    assert table[4].startswith(f"4/6  lost      {none}suspended: process {os.getpid()} on ")
    assert table[5] == "5/6  waiting   0 of 2 rows"


def test_rows_that_wait_beside_a_shard_are_counted(cli, tmp_path, rows):
    output = tmp_path / "rows"
    shard = ("--shard", "1/2", "--rows-per-file", 6)
    assert finished("caption", EXAMPLES, "-o", f"{output}/", *shard).returncode == 0
    write_owner(output, "0/2", silent=LONG_AGO)
    early = state_folder(output) / "shard-0-of-2" / "open" / "000000000000.jsonl"
    early.parent.mkdir()
    early.write_bytes(rows.read_bytes())
    report = status(cli, f"{output}/")
    assert (report["state"], report["rows"]) == ("stopped", 11)
    assert [(s["state"], s["rows"]) for s in report["shards"]] == [("lost", 5), ("complete", 6)]
    resume = "to resume: run the same command with --shard 0/2\n"
    assert cli("status", f"{output}/")[1].endswith(resume)


def test_any_values_of_an_owner_are_shown(cli, tmp_path):
    output, values = tmp_path / "rows", {"started": [], "host": 5, "pid": "a", "exit_code": "b"}
    assert finished("caption", EXAMPLES, "-o", f"{output}/", "--shard", "1/4").returncode == 0
    write_owner(output, "0/4", **values, input_rows=10**400, rows_per_second=float("inf"))
    for words in ([], ["--json"]):
        assert cli("status", f"{output}/", *words)[0] == 0
