"""Chunks are divided while they are computed: who is free takes what nobody has."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from pgcli.errors import OutputInUse
from pgcli.state.claims import Claims
from pgcli.state.lock import check_unlocked, output_lock
from pgcli.state.owners import SILENT_SECONDS
from pgcli.state.run_state import RunState
from pgcli.state.state_folder import state_folder


def claims(folder: Path, part: str, stored: set[int] | None = None) -> Claims:
    return Claims(folder, part, range(4), (stored or set()).__contains__)


def left_behind(folder: Path, host: str, silent_seconds: float) -> None:
    """The record of a process that was killed while it had chunk 0."""
    file = folder / "owner-join-dead.json"
    file.write_text(json.dumps({"pid": 1, "host": host, "chunks": [0]}))
    (folder / "lock-join-dead").touch()
    then = time.time() - silent_seconds
    os.utime(file, (then, then))


def test_each_process_takes_the_next_free_chunk(tmp_path: Path) -> None:
    with ExitStack() as stack:
        for part in ("-join-a", "-join-b"):
            stack.enter_context(output_lock(tmp_path, part=part))
        a, b = claims(tmp_path, "-join-a"), claims(tmp_path, "-join-b", {1})
        assert [a.claim(), b.claim(2), a.claim(2)] == [[0], [2, 3], [1]]
        assert (a.claim(), b.claim()) == ([], [])
        a.done(0)
        assert (a.left, b.left) == (3, 3)


def test_chunks_of_a_process_that_ended_are_free(tmp_path: Path) -> None:
    with output_lock(tmp_path, part="-join-b"):
        with output_lock(tmp_path, part="-join-a"):
            assert claims(tmp_path, "-join-a").claim() == [0]
        assert claims(tmp_path, "-join-b").claim() == [0]


def test_chunk_of_a_killed_process_is_free_at_once_on_its_host(tmp_path: Path) -> None:
    with output_lock(tmp_path, part="-join-a"):
        left_behind(tmp_path, socket.gethostname(), 0)
        assert claims(tmp_path, "-join-a").claim() == [0]


def test_chunk_of_another_host_is_free_after_its_silence(tmp_path: Path) -> None:
    with output_lock(tmp_path, part="-join-a"):
        left_behind(tmp_path, "elsewhere", SILENT_SECONDS / 2)
        assert claims(tmp_path, "-join-a").claim() == [1]
        left_behind(tmp_path, "elsewhere", SILENT_SECONDS * 2)
        assert claims(tmp_path, "-join-a").claim() == [0]


def test_spare_chunks_are_left_for_the_other_processes(tmp_path: Path) -> None:
    with output_lock(tmp_path, part="-join-a"), output_lock(tmp_path, part="-join-b"):
        found = claims(tmp_path, "-join-a")
        assert [found.claim(spare=1), found.claim(spare=1), found.claim(spare=1)] == [[0], [1], []]
        assert found.claim() == [2]


def test_part_that_replaces_the_output_shares_it_once_the_rows_are_gone(tmp_path: Path) -> None:
    output = tmp_path / "rows"
    with RunState(output) as state:
        output.mkdir()
        (output / "part-000000.parquet").touch()
        state.begin()
    with RunState(output, overwrite=True, part="-ray") as state:
        for part in ("", "-join-a"):
            with pytest.raises(OutputInUse, match=f"process {os.getpid()}"):
                check_unlocked(state_folder(output), part=part)
        assert list(output.iterdir())
        state.begin()
        assert not list(output.iterdir())
        with RunState(output, part="-join-a") as joined:
            assert joined.run_id == state.run_id
        with pytest.raises(OutputInUse):
            check_unlocked(state_folder(output))


def test_output_that_others_write_is_not_replaced(tmp_path: Path) -> None:
    output = tmp_path / "rows"
    with (
        RunState(output, part="-join-a"),
        pytest.raises(OutputInUse, match=f"process {os.getpid()}"),
        RunState(output, overwrite=True, part="-ray"),
    ):
        pytest.fail("two runs at once")
