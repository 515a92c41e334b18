"""A run that is killed before any of its writes resumes to the rows of an undisturbed one."""

import os
import random
import signal
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.support.stub_runs import KINDS, Calls, die, finish, fresh, rows_of, start, whole

# every 9th call before which a run is killed, or every one
STEPS = [9, pytest.param(1, marks=pytest.mark.nightly)]


def left(folder: Path) -> list[str]:
    """The files of a complete output's state that should not be there."""
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    return [name for name in names if "/open/" in name or name.endswith("part")]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_any_write(images, kind, step):
    output, options = KINDS[kind]
    rows = whole(images, kind)
    for number in range(1, 1000, step):
        folder = fresh(images, "disturbed")
        code = start(folder, output, before=Calls(number, die), **options).wait()
        before = Counter(rows_of(folder, output)) if any(folder.iterdir()) else Counter[str]()
        assert before <= Counter(rows), number
        code_resumed, said = finish(folder, output, **options)
        found = rows_of(folder, output)
        assert code_resumed == 3, (number, said)
        assert found == rows, (number, said)
        # of the state folder that shards share, a later command removes them
        assert not [name for name in left(folder) if kind != "shard"], number
        if code == 3:
            assert number > 10
            return
        assert code == -signal.SIGKILL


class Messages:
    """Kills one engine amid its `number`-th message, and notes that it did."""

    def __init__(self, number: int, marker: Path):
        self.number, self.marker = number, marker

    def __call__(self) -> None:
        self.count, self.main, self.write = 0, os.getpid(), Connection._send
        Connection._send = lambda connection, data: self.counted(connection, data)

    def counted(self, connection: Connection, data: bytes) -> None:
        if os.getpid() != self.main:
            self.count += 1  # each engine counts its own
            if self.count == self.number and not self.marker.exists():
                self.marker.touch()
                part = data[: self.number % 3 * len(data) // 2]  # none, a half, all
                self.write(connection, part)
                die("send")
        self.write(connection, data)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "engines" in kind])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_engine_killed_at_any_message_is_replaced(images, kind, step):
    """The command starts another engine, and no row is answered twice or lost."""
    output, options = KINDS[kind]
    rows = whole(images, kind)
    for number in range(1, 1000, step):
        folder = fresh(images, "engines")
        marker = images / "died"
        marker.unlink(missing_ok=True)
        code, said = finish(folder, output, before=Messages(number, marker), **options)
        assert code == 3, (number, said)
        assert rows_of(folder, output) == rows, (number, said)
        assert not left(folder), number
        if not marker.exists():
            assert number > 10
            return


@pytest.mark.parametrize("kills", [8, pytest.param(150, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", KINDS)
def test_runs_killed_at_random_moments_lose_no_row(images, kind, kills):
    """Again and again, one of two shards."""
    output, options = KINDS[kind]
    rows, rng = whole(images, kind), random.Random(kills)
    names = [{"shard": "0/2"}, {"shard": "1/2"}] if kind == "shard" else [{}]
    while kills > 0:
        folder = fresh(images, "random")
        running = {start(folder, output, seconds=0.002, **options | more): more for more in names}
        while running and kills > 0:
            time.sleep(rng.uniform(0, 0.15))
            run = rng.choice(list(running))
            run.kill()
            kills -= 1
            more = running.pop(run)
            code = run.wait()
            assert code in (0, 3, 12, -signal.SIGKILL), (images / "said").read_text()[-2000:]
            if code not in (0, 3):
                running[start(folder, output, seconds=0.002, **options | more)] = more
        for run in running:
            code = run.wait()
            # 12: engines that are forks hold the lock of a killed command until they end with it
            assert code in (0, 3, 12), (images / "said").read_text()[-2000:]
            if code == 12:
                time.sleep(0.2)
                assert finish(folder, output, **options)[0] == 3
        assert rows_of(folder, output) == rows
        assert finish(folder, output, **options | {"shard": None})[0] == 3
        assert rows_of(folder, output) == rows
        assert not left(folder)
