"""A run that is killed before any of its writes is resumed to the rows of an undisturbed one."""

import random
import signal
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from pgcli.pipeline.state.processes import Process, living
from pgcli.stores import LocalStore
from tests.support.run_kinds import KINDS, fresh, whole
from tests.support.stub_runs import Calls, die, finish, rows_of, start

# every 9th call before which a run is killed, or every one
STEPS = [9, pytest.param(1, marks=pytest.mark.nightly)]


def left(folder: Path) -> list[str]:
    """The files of a complete output's state that should not be there."""
    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    return [
        name for name in names if "/open/" in name or "/claims/" in name or name.endswith("part")
    ]


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
        if code == 3:
            assert number > 10
            assert not [name for name in left(folder) if not name.endswith("part")], number
            return
        assert code == -signal.SIGKILL


def run_engine(state, end, *_, before):
    before()
    process = Process(LocalStore(state), "engine")
    with suppress(KeyError), process.registered():
        if end == "failed":
            raise KeyError
        process.remove() if end == "removed" else process.note(exit_code=0)
    return 0


@pytest.mark.parametrize("end", ["removed", "noted", "failed"])
def test_process_that_was_killed_as_it_ended_is_dead(tmp_path, end):
    store = LocalStore(tmp_path / "state", create=True)

    run = partial(run_engine, tmp_path / "state", end)
    for number in range(1, 20):
        code = start(tmp_path, "rows.jsonl", run=run, before=Calls(number, die)).wait()
        assert not living(store), number
        if code == 0:
            assert number > 3
            return


def die_once(marker, name):
    if not marker.exists():
        marker.touch()
        die(name)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "engines" in kind])
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.nightly)])
def test_an_engine_killed_at_any_write_is_replaced(images, kind, step):
    """The command goes on with another one, which finds the rows that were left."""
    output, options = KINDS[kind]
    rows = whole(images, kind)
    for number in range(1, 1000, step):
        folder = fresh(images, "engines")
        marker = images / "died"
        marker.unlink(missing_ok=True)

        calls = Calls(number, partial(die_once, marker), in_engines=True)
        code, said = finish(folder, output, before=calls, **options)
        assert code == 3, (number, said)
        assert rows_of(folder, output) == rows, (number, said)
        assert not [name for name in left(folder) if not name.endswith("part")], number
        if not marker.exists():
            assert number > 4
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
        time.sleep(0.2)  # after which what was left of temporary files is removed
        assert finish(folder, output, **options)[0] == 3
        assert rows_of(folder, output) == rows
        assert not left(folder)
