"""Several engine processes answer one stream: every row once, also when engines die."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pipe, forkserver
from multiprocessing.context import BaseContext
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import psutil
import pytest

from pgcli.cluster import channel, engine_handle
from pgcli.cluster.engine_pool import EnginePool
from pgcli.cluster.engine_process import together
from pgcli.cluster.engine_slot import EngineSlot
from pgcli.cluster.start_method import (
    CAN_FORK,
    SIGNALS,
    SPAWN,
    import_ahead,
    start_method,
    start_process,
)
from pgcli.errors import InvalidCheckpoint, NoUsableDevice
from pgcli.records import Answer, error_answer
from tests.support import light_engines
from tests.support.runs import wait_until

refuse = partial(error_answer, task="ask", model="light@1")


@contextmanager
def pool(folder: Path, engines: int = 2, context: BaseContext = SPAWN) -> Iterator[EnginePool]:
    found = EnginePool(partial(light_engines.load, folder), [EngineSlot(1)] * engines, context)
    try:
        yield found
    finally:
        found.close()


def rows(found: EnginePool, names: list[str], prompts: int = 1, **more: Any) -> dict[int, Answer]:
    answers = list(
        found.ask(
            light_engines.stream(names, prompts), refuse, more.get("should_stop", lambda: False)
        )
    )
    by_row = dict(answers)
    assert len(by_row) == len(answers)
    return by_row


def numbered(count: int) -> list[str]:
    return [f"image {number}" for number in range(count)]


def test_engines_import_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold images that someone else has made."""
    for name in ("multiprocessing", "numpy", "pickle", "ctypes"):
        (tmp_path / f"{name}.py").write_text("from pathlib import Path; Path('ran').touch()")
    monkeypatch.chdir(tmp_path)
    with pool(tmp_path, 1) as found:
        assert len(rows(found, numbered(1))) == 1
    assert not Path("ran").exists()


@pytest.mark.skipif(not CAN_FORK, reason="engines are forked on Linux only")
def test_engines_on_cpu_are_forked_from_a_process_that_imports_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = forkserver.ForkServer()
    for name in ("set_forkserver_preload", "ensure_running", "connect_to_new_process"):
        monkeypatch.setattr(forkserver, name, getattr(own, name))
    (tmp_path / "noted.py").write_text(
        "import os, pathlib; pathlib.Path(__file__).with_name(f'forked from {os.getpid()}').touch()"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    import_ahead(["noted"])
    with pool(tmp_path, 2, start_method([EngineSlot(1)] * 2)) as found:
        assert len(rows(found, [*numbered(9), "kills once"])) == 10
        process = psutil.Process(own._forkserver_pid)  # type: ignore[attr-defined]
        assert (tmp_path / f"forked from {process.pid}").exists()
        wait_until(lambda: len(list(tmp_path.glob("loaded *"))) == 3)
        loaded = {int(file.name.split()[1]) for file in tmp_path.glob("loaded *")}
        assert {engine.pid for engine in process.children()} <= loaded
    own._stop()  # type: ignore[attr-defined]


@pytest.mark.skipif(not CAN_FORK, reason="engines are forked on Linux only")
def test_a_process_that_imports_ahead_is_not_ended_by_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before its first line, nor while it imports."""
    own = forkserver.ForkServer()
    for name in ("set_forkserver_preload", "ensure_running"):
        monkeypatch.setattr(forkserver, name, getattr(own, name))
    (tmp_path / "noted_late.py").write_text(
        "import pathlib, time; time.sleep(0.1); pathlib.Path(__file__).with_name('there').touch()"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    import_ahead(["noted_late"])
    for signum in SIGNALS:
        os.kill(own._forkserver_pid, signum)  # type: ignore[attr-defined]
    wait_until((tmp_path / "there").exists)
    own._stop()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("slots", "method"),
    [
        ([EngineSlot(1)] * 2, "forkserver" if CAN_FORK else "spawn"),
        ([EngineSlot(2)], "spawn"),
        ([EngineSlot(1, "cuda:0"), EngineSlot(1, "cuda:1")], "spawn"),
    ],
)
def test_engines_with_gpus_are_not_forked(slots: list[EngineSlot], method: str) -> None:
    assert start_method(slots).get_start_method() == method


def test_every_row_is_answered_once_and_chunks_do_not_depend_on_engines(tmp_path: Path) -> None:
    found = []
    for engines in (1, 3):
        with pool(tmp_path, engines) as each:
            found.append(rows(each, numbered(21), prompts=2))
            assert (each.count, each.label, each.batch_size) == (engines, "light@1", 2)
            assert each.info.settings == {"size": 1}
    assert found[0] == found[1]
    assert sorted(found[0]) == list(range(42))
    assert found[0][2].answer == "image 1 of 4"
    assert found[0][41].answer == "image 20 of 1"
    assert found[0][41].kept == {"note": 20}


def test_a_second_stream_is_answered_by_the_same_processes(tmp_path: Path) -> None:
    with pool(tmp_path) as found:
        assert len(rows(found, numbered(3))) == 3
        assert len(rows(found, numbered(9))) == 9
        assert rows(found, []) == {}
    assert len(list(tmp_path.glob("loaded *"))) <= 2


def test_rows_of_an_engine_that_dies_once_are_answered_again(tmp_path: Path) -> None:
    names = numbered(20)
    names[5] = "kills once"
    with pool(tmp_path) as found:
        by_row = rows(found, names)
    assert sorted(by_row) == list(range(20))
    assert all(row.error is None for row in by_row.values())
    assert by_row[5].answer == "kills once of 4"


def test_only_the_image_that_kills_engines_has_an_error(tmp_path: Path) -> None:
    names = numbered(20)
    names[9] = "kills"
    with pool(tmp_path) as found:
        by_row = rows(found, names, prompts=2)
    assert [index for index, row in by_row.items() if row.error] == [18, 19]
    assert by_row[18].error == "worker_crashed"
    assert sorted(by_row) == list(range(40))


def test_a_run_whose_engines_die_of_every_image_ends(tmp_path: Path) -> None:
    with pool(tmp_path, 1) as found, pytest.raises(NoUsableDevice, match="engines died at 3"):
        rows(found, [f"kills {number}" for number in range(8)])


def test_an_error_of_loading_is_raised_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "invalid").touch()
    with pytest.raises(InvalidCheckpoint, match="the weights are damaged") as raised:
        EnginePool(partial(light_engines.load, tmp_path), [EngineSlot(1)])
    assert "download it again" in raised.value.hint


def test_an_engine_that_dies_while_loading_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "dies").touch()
    with pytest.raises(NoUsableDevice, match="exit code 3"):
        EnginePool(partial(light_engines.load, tmp_path), [EngineSlot(1)])


def test_a_stopped_run_finishes_rows_in_progress_and_leaves_the_others(tmp_path: Path) -> None:
    begun: list[int] = []

    def taken() -> Iterator[Any]:
        for index, found in enumerate(light_engines.stream(f"slow {n}" for n in range(400))):
            begun.append(index)
            yield found

    with pool(tmp_path) as found:
        answered: list[int] = []
        for row_index, _ in found.ask(taken(), refuse, lambda: len(answered) >= 3):
            answered.append(row_index)
    assert 3 <= len(answered) < len(begun) < 400


def test_a_run_that_is_stopped_while_no_engine_works_ends(tmp_path: Path) -> None:
    with pool(tmp_path, 1) as found:
        assert len(rows(found, numbered(1))) == 1
        assert rows(found, numbered(3), should_stop=lambda: True) == {}


def test_an_engine_that_dies_once_the_run_is_to_stop_is_not_replaced(tmp_path: Path) -> None:
    met = tmp_path / "met kills once"
    with pool(tmp_path, 1) as found:
        assert rows(found, ["kills once"], should_stop=met.exists) == {}
        assert found.count == 0


def test_signals_to_all_processes_leave_the_engines_to_the_program(tmp_path: Path) -> None:
    """A terminal and `kill` send them to every process of the program."""
    with pool(tmp_path, 1) as found:
        assert len(rows(found, numbered(1))) == 1
        (loaded,) = tmp_path.glob("loaded *")
        for signum in SIGNALS:
            os.kill(int(loaded.name.split()[1]), signum)
        assert len(rows(found, numbered(3))) == 3
    assert list(tmp_path.glob("loaded *")) == [loaded]


def fail_to_start(monkeypatch: pytest.MonkeyPatch, times: int, problem: Exception) -> None:
    """Have so many starts of a process raise the problem."""
    left = iter([problem] * times)

    def start(*args: Any) -> None:
        for found in left:
            raise found
        start_process(*args)

    monkeypatch.setattr(engine_handle, "start_process", start)


@pytest.mark.parametrize("problem", [EOFError("unexpected EOF"), BlockingIOError("no process")])
def test_replacements_that_end_before_they_are_loaded_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    with pool(tmp_path, 1) as found:
        fail_to_start(monkeypatch, 8, problem)
        assert len(rows(found, ["kills once", *numbered(3)])) == 4


def test_a_run_whose_replacements_always_end_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pool(tmp_path, 1) as found:
        fail_to_start(monkeypatch, 9, EOFError("unexpected EOF"))
        with pytest.raises(NoUsableDevice, match="did not start: unexpected EOF"):
            rows(found, ["kills once"])


def test_engines_reduced_batches_are_reported(tmp_path: Path) -> None:
    with pool(tmp_path) as found:
        rows(found, numbered(9))
        assert found.batch_limits.summary() == "1 rows at once instead of 2"
        assert not found.image_stats.hits


def test_engines_begin_with_the_limits_of_an_earlier_run(tmp_path: Path) -> None:
    """Also one that is started in place of another that died."""
    limits = {"at_once": {"now": 1, "failures": {"2": 1}}}
    with pool(tmp_path, 1) as found:
        found.batch_limits.load_state_dict(limits)
        rows(found, ["kills once", *numbered(20)])
    noted = [json.loads(file.read_text()) for file in tmp_path.glob("limits *")]
    assert noted == [limits] * 2


def test_engines_do_not_outlive_a_pool_that_is_closed(tmp_path: Path) -> None:
    with pool(tmp_path, 1) as found:
        rows(found, numbered(1))
    (loaded,) = tmp_path.glob("loaded *")
    with pytest.raises(ProcessLookupError):
        os.kill(int(loaded.name.split()[1]), signal.SIGCONT)


def test_rows_that_end_at_about_one_time_are_one_message() -> None:
    rows = [(0, "a"), (1, "b"), (2, "c")]
    assert list(together(iter(rows), 60.0)) == [tuple(rows)]  # type: ignore[arg-type]
    assert list(together(iter(rows), 0.0)) == [(row,) for row in rows]  # type: ignore[arg-type]


def test_arrays_of_a_message_arrive_unchanged_and_writable() -> None:
    arrays = [np.full((size, 3), size % 251, np.uint8) for size in (0, 1, 700, 0, 2)] * 300
    ours, theirs = Pipe()
    thread = Thread(target=channel.send, args=(ours, {"arrays": arrays}))
    thread.start()
    received = channel.receive(theirs)["arrays"]
    thread.join()
    assert all(map(np.array_equal, arrays, received))
    assert all(array.flags.writeable for array in received)
    ours.close()
    with pytest.raises(EOFError):
        channel.receive(theirs)
