"""status tells what is on disk: after kills, retries, limits and other numbers of shards."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from pgcli.errors import OutputFailed
from pgcli.pipeline.state.processes import SILENT_SECONDS, Process
from pgcli.stores import LocalStore
from tests.support.command import Command
from tests.support.runs import EXAMPLES, MANY, finished, saved, started, wait_until


def status(cli: Command, output: object) -> dict[str, Any]:
    """The status as JSON."""
    code, out, _ = cli("status", output, "--json")
    assert code == 0
    report: dict[str, Any] = json.loads(out)
    return report


def write_process(output: Path, *, is_silent: bool, **values: object) -> None:
    """The file of a process of another host, which gave its last sign of life long ago, or now."""
    folder = output.with_name(f"{output.name}.pgcli") / "processes"
    folder.mkdir(exist_ok=True)
    known = {"id": "abc", "mode": "run", "pid": 7, "host": "elsewhere", "boot": "other"}
    times = {"since": "2026-01-01T00:00:00", "exit_code": None}
    file = folder / "abc.json"
    file.write_text(json.dumps({**known, **times, **values}))
    at = time.time() - 2 * SILENT_SECONDS * is_silent
    os.utime(file, (at, at))


@pytest.mark.parametrize("is_silent", [True, False])
def test_run_of_another_host_is_told_by_its_last_sign_of_life(cli, tmp_path, is_silent):
    output = tmp_path / "rows.jsonl"
    assert finished("caption", EXAMPLES, "-o", output, "--limit", 5).returncode == 0
    write_process(output, is_silent=is_silent)
    report = status(cli, output)
    assert report["state"] == ("complete" if is_silent else "running")
    assert len(report["runs"]) == (not is_silent)
    assert report["lost"] == []  # nothing is missing
    assert ("process 7 on elsewhere" in cli("status", output)[1]) != is_silent


def test_killed_process_is_named_until_another_one_begins(cli, tmp_path):
    output = tmp_path / "rows.jsonl"
    run = started("caption", *MANY, "-o", output, seconds=0.05)
    wait_until(lambda: saved(output))
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    write_process(output, is_silent=True, began=1.0)
    assert status(cli, output)["lost"] == []  # the other run began since
    for file in (tmp_path / "rows.jsonl.pgcli" / "processes").glob("*.json"):
        if file.name != "abc.json":
            file.unlink()
    [lost] = status(cli, output)["lost"]
    assert lost["silent_seconds"] >= SILENT_SECONDS


def test_engine_that_died_is_mentioned(cli, tmp_path):
    output = tmp_path / "rows.jsonl"
    with started("caption", *MANY, "-o", output, seconds=0.05) as run:
        wait_until(lambda: saved(output))
        write_process(output, is_silent=True, mode="engine")
        report = status(cli, output)
        out = cli("status", output)[1]
        run.kill()
    assert (report["engines"], report["dead_engines"]) == (0, 1)
    assert "0 engines, 1 died\n" in out


def test_exit_code_is_known_after_a_full_disk(cli, tmp_path, monkeypatch):
    """Nothing more fits on the disk until the process removes its own file."""
    output = tmp_path / "rows.jsonl"
    store = LocalStore(tmp_path / "rows.jsonl.pgcli", create=True)
    process = Process(store, "run")
    with process.registered():
        process.note(exit_code=14)
        write = Process.write

        def full(process: Process) -> None:
            if any(store.list("processes/")):
                raise OutputFailed("no space left on device", hint="")
            write(process)

        monkeypatch.setattr(Process, "write", full)
    assert status(cli, output)["exit_code"] == 14
    assert "exit code 14, output not written\n" in cli("status", output)[1]


def test_run_that_was_killed_before_its_first_row_is_stopped(cli, tmp_path):
    output = tmp_path / "rows.jsonl"
    process = Process(LocalStore(tmp_path / "rows.jsonl.pgcli", create=True), "run")
    with process.registered():
        assert status(cli, output)["state"] == "running"
    process.write()  # as after a kill: it has not ended, and its file is not locked
    Path(process.values["lock"]).touch()
    assert status(cli, output)["state"] == "stopped"
    shown = cli("status", output)[1]
    assert f"killed: process {os.getpid()} on " in shown
    assert "to resume: run the same command again\n" in shown


def test_overwrite_is_refused_while_a_shard_lives_on_another_host(cli, tmp_path):
    output = tmp_path / "rows"
    shard = finished("caption", EXAMPLES, "-o", f"{output}/", "--shard", "1/4")
    assert shard.returncode == 0
    write_process(output, is_silent=False, mode="shared", shard="0/4", total=12)
    replaced = ("caption", EXAMPLES, "-o", f"{output}/", "--overwrite")
    refused = finished(*replaced)
    assert refused.returncode == 12
    assert b"process 7 on elsewhere" in refused.stderr
    write_process(output, is_silent=True, mode="shared", shard="0/4", total=12)
    report = status(cli, output)
    assert {"shard": "0/4", "state": "stopped"}.items() <= report["shards"][0].items()
    assert report["exit_code"] is None
    killed = "killed: process 7 on elsewhere, shard 0/4, silent for "
    assert killed in cli("status", output)[1]
    assert finished(*replaced).returncode == 0
