"""One command owns an output: by a lock on this machine, by a renewed lease in a store."""

import errno
import fcntl
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pgcli.errors import OutputExists, OutputFailed, OutputInUse
from pgcli.run.state import owner as module
from pgcli.run.state.owner import OWNER, Owner, owners
from pgcli.stores import LocalStore, Store, open_folder
from tests.support.awkward import HOSTILE, to_text
from tests.support.forkserver import ForkedRun
from tests.support.stores import (
    BUCKET,
    Busy,
    Files,
    Unconditional,
    WritableS3,
    used_store,
)
from tests.support.stub_runs import Calls, die, start

REMOTE = f"{BUCKET}/rows.pgcli/"
KEY = "bucket/rows.pgcli/owner.json"
#: Times of tests. A live owner is heard in time on a busy machine, too.
SHORT = {"LOCK_SECONDS": 0.2, "BEAT_SECONDS": 0.2, "SILENT_SECONDS": 30.0, "WATCH_SECONDS": 0.05}
SILENT_SECONDS = 2.0  # where owners are dead; HTTP has whole seconds
STORES: dict[str, type[WritableS3] | None] = {
    "local": None,
    "s3": WritableS3,
    "ignores conditions": Unconditional,
}


@pytest.fixture(autouse=True)
def short_times(monkeypatch) -> None:
    for name, seconds in SHORT.items():
        monkeypatch.setattr(module, name, seconds)


def state_folder(kind: type[WritableS3] | None, tmp_path: Path) -> Iterator[str]:
    if kind is None:
        yield str(tmp_path / "rows.pgcli")
    else:
        with used_store(kind):
            yield REMOTE


@pytest.fixture(params=STORES)
def any_state(request, tmp_path) -> Iterator[str]:
    yield from state_folder(STORES[request.param], tmp_path)


@pytest.fixture(params=["local", "s3"])
def state(request, tmp_path) -> Iterator[str]:
    yield from state_folder(STORES[request.param], tmp_path)


@pytest.fixture
def remote() -> Iterator[Files]:
    with used_store() as files:
        yield files


# commands in processes of their own


def command(
    state: str,
    number: object,
    *,
    shard: str = "",
    holds: bool = True,
    silent_seconds: float = SHORT["SILENT_SECONDS"],
    before: Callable[[], object] = lambda: None,
) -> int:
    """Own the output, until there is a file `end` if it `holds`. Its exit code is the number."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, seconds in (SHORT | {"SILENT_SECONDS": silent_seconds}).items():
        setattr(module, name, seconds)
    store = open_folder(state, create=True)
    before()
    owner = Owner(store, "rows/", shard=shard)
    try:
        with owner.holding(say=print_message):
            Path(f"owned {number}").touch()
            while holds and not Path("end").exists():
                owner.check()
                time.sleep(0.02)
            owner.note(exit_code=number)
    except OutputInUse as problem:
        print_message(str(problem))
        return problem.exit_code
    except KeyboardInterrupt:
        return 130
    assert isinstance(number, int)
    return number


def print_message(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def begin(folder: Path, state: str, number: int, **options: Any) -> ForkedRun:
    return start(folder, state, number, run=command, **options)  # type: ignore[arg-type]


def owning(folder: Path, state: str, number: int, **options: Any) -> ForkedRun:
    """A command that owns the output by now."""
    process = begin(folder, state, number, **options)
    wait_until((folder / f"owned {number}").exists)
    return process


def wait_until(is_true: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def folder(tmp_path) -> Path:
    """The folder in which the commands run; the file `said` beside it has their messages."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def said(folder: Path) -> str:
    return (folder.parent / "said").read_text()


def test_one_of_simultaneous_commands_owns_the_output(folder, any_state):
    running = [begin(folder, any_state, number) for number in (20, 21, 22)]
    wait_until(lambda: sum(run.poll() is not None for run in running) == 2)
    (folder / "end").touch()
    codes = sorted(run.wait() for run in running)
    assert codes[:2] == [12, 12], said(folder)
    assert codes[2] in (20, 21, 22)
    [owner] = owners(open_folder(any_state))
    assert (owner.values["exit_code"], owner.is_running) == (codes[2], False)


def test_a_shard_excludes_itself_and_a_command_without_a_shard(folder, state):
    first = owning(folder, state, 20, shard="0/2")
    second = owning(folder, state, 21, shard="1/2")
    for options in ({}, {"shard": "0/2"}, {"shard": "1/2"}):
        assert begin(folder, state, 22, **options).wait() == 12
    pids = [int(line.split()[6]) for line in said(folder).splitlines() if "in use by" in line]
    assert set(pids[1:]) == {first.pid, second.pid} >= {pids[0]}
    assert f" on {os.uname().nodename} since 20" in said(folder)
    (folder / "end").touch()
    assert [first.wait(), second.wait()] == [20, 21]
    assert begin(folder, state, 23).wait() == 23


def test_a_command_without_a_shard_excludes_shards(folder, state):
    whole = owning(folder, state, 20)
    for number in range(2):
        assert begin(folder, state, 21, shard=f"{number}/2").wait() == 12
    assert f"rows/ is in use by process {whole.pid} on " in said(folder)
    (folder / "end").touch()
    assert whole.wait() == 20
    [owner] = owners(open_folder(state))  # those that were refused left none
    assert (owner.values["pid"], owner.shard) == (whole.pid, "")


@pytest.mark.parametrize("shard", ["", "0/2"])
def test_lock_of_a_killed_owner_is_free_at_once(folder, tmp_path, shard):
    state = str(tmp_path / "rows.pgcli")
    killed = owning(folder, state, 20, shard=shard)
    killed.kill()
    killed.wait()
    began = time.monotonic()
    assert begin(folder, state, 21, shard=shard, holds=False).wait() == 21
    assert time.monotonic() - began < SHORT["SILENT_SECONDS"] / 2
    assert "waiting" not in said(folder)


@pytest.mark.parametrize("shards", [("", ""), ("0/2", "0/2"), ("0/2", ""), ("", "0/2")])
def test_lease_of_a_killed_owner_expires(folder, remote, shards):
    killed = owning(folder, REMOTE, 20, shard=shards[0])
    killed.kill()
    killed.wait()
    options: dict[str, Any] = {"holds": False, "silent_seconds": SILENT_SECONDS}
    assert begin(folder, REMOTE, 21, shard=shards[1], **options).wait() == 21
    message = f"waiting for the lease of process {killed.pid} on {os.uname().nodename}, last "
    assert said(folder).count(message) == 1
    assert begin(folder, REMOTE, 22, shard=shards[1], **options).wait() == 22
    assert said(folder).count("waiting") == 1


@pytest.mark.parametrize("shard", ["", "1/3"])
@pytest.mark.parametrize("restores", [False, True])
def test_an_owner_killed_at_any_write_is_replaced(folder, tmp_path, shard, restores):
    for number in range(1, 100):
        state = str(tmp_path / f"{number}.pgcli")
        run = partial(refused, shard=shard) if restores else partial(command, shard=shard)
        options = {} if restores else {"holds": False}
        first = start(
            folder,
            state,
            7,  # type: ignore[arg-type]
            run=run,
            before=Calls(number, die),
            **options,
        )
        code = first.wait()
        assert begin(folder, state, 8, shard=shard, holds=False).wait() == 8, said(folder)
        if code == 7:
            assert number > 5
            return
        assert code == -signal.SIGKILL


def refused(state: str, code: int, *, shard: str, before: Callable[[], object]) -> int:
    """Own the output, then end like a refused command."""
    store = open_folder(state, create=True)
    before()
    owner = Owner(store, "rows/", shard=shard)
    with owner.holding(say=print_message):
        owner.restore()
    return code


def test_ctrl_c_ends_a_waiting_command(folder, remote):
    open_folder(REMOTE).replace(OWNER, lease())
    waiting = begin(folder, REMOTE, 20)
    wait_until(lambda: "waiting for the lease of process 7 on x" in said(folder))
    began = time.monotonic()
    os.kill(waiting.pid, signal.SIGINT)
    assert waiting.wait() == 130
    assert time.monotonic() - began < SHORT["SILENT_SECONDS"] / 2
    assert remote[KEY] == lease()


# one process, and what other machines wrote


def lease(**values: Any) -> bytes:
    """The `owner.json` of a command on another machine."""
    owner = {"pid": 7, "host": "x", "boot": "y", "started": "then", "exit_code": None}
    return json.dumps(owner | values).encode()


def no_message(text: str) -> None:
    raise AssertionError(text)


def values_in(store: Store, name: str = OWNER) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(store.read(name) or b"{}")
    return values


def test_next_heartbeat_of_a_live_owner_ends_the_wait(state, tmp_path):
    store = open_folder(state, create=True)
    store.replace(OWNER, lease(beats=1))
    messages: list[str] = []

    def say(text: str) -> None:
        messages.append(text)
        store.replace(OWNER, lease(beats=2))

    with (
        pytest.raises(OutputInUse, match="rows/ is in use by process 7 on x since then"),
        Owner(store, "rows/").holding(say=say),
    ):
        pass
    [message] = messages
    assert re.fullmatch(r"waiting for the lease of process 7 on x, last written \d s ago", message)
    assert store.read(OWNER) == lease(beats=2)


@pytest.mark.parametrize("end", [lease(exit_code=0), None])
def test_ended_owner_is_followed_at_once(state, end):
    store = open_folder(state, create=True)
    store.replace(OWNER, lease())

    def say(text: str) -> None:
        store.delete([OWNER]) if end is None else store.replace(OWNER, end)

    began = time.monotonic()
    owner = Owner(store, "rows/")
    with owner.holding(say=say):
        owner.check()
    assert time.monotonic() - began < SHORT["SILENT_SECONDS"] / 2


class Behind(WritableS3):
    """S3 with a clock that is a day slow."""

    def put(self, key: str, data: bytes) -> int:
        status = super().put(key, data)
        self.times[key] -= 86400
        return status


def test_store_may_have_another_clock(monkeypatch):
    """A lease that was written a moment ago is not taken, though it seems to be a day old."""
    monkeypatch.setattr(module, "SILENT_SECONDS", SILENT_SECONDS)
    with used_store(Behind) as files:
        store = open_folder(REMOTE)
        store.replace(OWNER, lease())
        messages: list[str] = []
        with Owner(store, "rows/").holding(say=messages.append):
            pass
        assert len(messages) == 1
        assert set(files) == {"bucket/exists", KEY}


def test_refused_command_restores_the_owner_file(state):
    store = open_folder(state, create=True)
    for before in (None, lease(exit_code=3), lease(), b"no JSON"):
        store.delete([OWNER])
        if before is not None:
            store.replace(OWNER, before)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, "SILENT_SECONDS", 0.0)
                owner = Owner(store, "rows/")
                with owner.holding(say=no_message):
                    owner.restore()
        store.replace("shard-1-of-2/owner.json", lease())

        def say(text: str) -> None:
            assert values_in(store)["pid"] == os.getpid()
            store.replace("shard-1-of-2/owner.json", lease(beats=2))

        with pytest.raises(OutputInUse, match="process 7"), Owner(store, "rows/").holding(say=say):
            pass
        if before == lease():
            assert values_in(store) == json.loads(before) | {"is_dead": True}
        else:
            assert store.read(OWNER) == before
        store.delete(["shard-1-of-2/owner.json"])
        with Owner(store, "rows/").holding(say=no_message):
            pass


def test_simultaneous_command_and_shard_do_not_both_run(remote, monkeypatch):
    """Each has taken its own lease before it looks at the other one."""
    both, went_on = threading.Barrier(2), []
    take = Owner._take

    def take_together(owner: Owner, say: Any) -> None:
        take(owner, say)
        both.wait(20)

    def run(shard: str) -> None:
        with (
            suppress(OutputInUse),
            Owner(open_folder(REMOTE), "rows/", shard=shard).holding(say=lambda _: None),
        ):
            went_on.append(shard)

    monkeypatch.setattr(Owner, "_take", take_together)
    threads = [threading.Thread(target=run, args=[shard]) for shard in ("", "0/2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(went_on) < 2
    if not went_on:  # both heard the other one
        assert set(remote) == {"bucket/exists"}


def test_stolen_lease_ends_the_run(any_state):
    store = open_folder(any_state, create=True)
    owner = Owner(store, "rows/")
    with owner.holding(say=no_message):
        owner.check()
        store.replace(OWNER, lease())
        wait_until(lambda: is_lost(owner))
        with pytest.raises(OutputInUse, match="rows/ was taken over by process 7 on x, as this"):
            owner.write()
        owner.restore()
    assert store.read(OWNER) == lease()


def is_lost(owner: Owner) -> bool:
    with suppress(OutputInUse):
        owner.check()
        return False
    return True


def test_stolen_lease_is_not_overwritten(remote, monkeypatch):
    store = open_folder(REMOTE)
    owner = Owner(store, "rows/")
    monkeypatch.setattr(module, "BEAT_SECONDS", 60.0)
    with owner.holding(say=no_message):
        old = store.version(OWNER)
        store.replace(OWNER, lease())
        with monkeypatch.context() as patch:
            patch.setattr(type(store), "version", lambda *_: old)
            owner.write()
        assert store.read(OWNER) == lease()


def test_lease_written_before_a_failed_answer_counts():
    with used_store(Busy) as files:
        for number in range(8):  # every other first put is stored, and answered with 503
            owner = Owner(open_folder(f"{BUCKET}/{number}.pgcli/"), "rows/")
            with owner.holding(say=no_message):
                owner.note(exit_code=0)
            assert json.loads(files[f"bucket/{number}.pgcli/owner.json"])["exit_code"] == 0


def test_heartbeats_write_notes_and_the_exit_code_comes_last(state):
    store = open_folder(state, create=True)
    owner = Owner(store, "rows/", shard="0/2")
    name = "shard-0-of-2/owner.json"
    with owner.holding(say=no_message):
        first = values_in(store, name)
        owner.note(rows=5, exit_code=3, pid="none")
        wait_until(lambda: values_in(store, name).get("rows") == 5)
        later = values_in(store, name)
        assert later["exit_code"] is None  # nobody else may own the output yet
        assert later["beats"] > first["beats"]
        assert (later["pid"], later["shard"]) == (os.getpid(), "0/2")
        owner.note(rows=6)
        owner.write()
        assert values_in(store, name)["rows"] == 6
        owner.note(rows=7)
    assert (values_in(store, name)["rows"], values_in(store, name)["exit_code"]) == (7, 3)
    again = Owner(store, "rows/", shard="0/2")
    with again.holding(say=no_message):
        again.check()
    assert values_in(store, name)["exit_code"] == 1  # it did not say how it ended


def test_the_last_values_are_written_on_a_full_disk(tmp_path, monkeypatch):
    store = LocalStore(tmp_path / "rows.pgcli", create=True)
    owner, publish = Owner(store, "rows/"), LocalStore.publish

    def publish_if_there_is_room(store: LocalStore, name: str, *given: Any, **more: Any) -> bool:
        if (store.path / name).exists():
            raise OutputFailed("no space left")
        return publish(store, name, *given, **more)

    with owner.holding(say=no_message):
        monkeypatch.setattr(LocalStore, "publish", publish_if_there_is_room)
        with pytest.raises(OutputFailed):
            owner.write()
        owner.note(exit_code=14)
    assert values_in(store)["exit_code"] == 14


def test_heartbeats_exclude_a_second_command_without_locks(tmp_path, monkeypatch):
    """On this machine, too, where the file system has no locks."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    store = LocalStore(tmp_path / "rows.pgcli", create=True)
    with Owner(store, "rows/").holding(say=no_message):
        [owner] = owners(store)
        assert owner.is_running
        for shard in ("", "0/2"):
            second = Owner(LocalStore(store.path), "rows/", shard=shard)
            with (
                pytest.raises(OutputInUse, match=f"process {os.getpid()} on"),
                second.holding(say=lambda _: None),
            ):
                pass


def test_owners_of_an_output_and_of_its_shards(folder, state, monkeypatch):
    store = open_folder(state, create=True)
    assert owners(store) == []
    store.replace(OWNER, lease(exit_code=0))
    running = owning(folder, state, 20, shard="0/3")
    store.replace("shard-1-of-3/owner.json", lease())
    store.replace("shard-x-of-3/owner.json", lease())
    states = {owner.shard: owner.is_running for owner in owners(store)}
    assert states == {"": False, "0/3": True, "1/3": True}
    monkeypatch.setattr(module, "SILENT_SECONDS", SILENT_SECONDS)
    wait_until(lambda: not owners_by_shard(store)["1/3"].is_running)
    assert owners_by_shard(store)["1/3"].silent_seconds >= SILENT_SECONDS
    running.kill()
    running.wait()
    if isinstance(store, LocalStore):
        assert not owners_by_shard(store)["0/3"].is_running
        os.utime(store.path / "shard-1-of-3/owner.json", (0, 2**33))
        assert owners_by_shard(store)["1/3"].silent_seconds == 0


def owners_by_shard(store: Store) -> dict[str, Any]:
    return {owner.shard: owner for owner in owners(store)}


def test_owner_files_may_hold_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(module, "WATCH_SECONDS", 0.001)
    store = LocalStore(tmp_path / "rows.pgcli", create=True)
    valid = json.loads(lease(id="a", beats=1, shard="0/2", is_dead=False))
    texts = ["", "{", *map(to_text, HOSTILE)]
    texts += [to_text(valid | {name: value}) for name in valid for value in HOSTILE]

    def follow(seconds: float, say: Callable[[str], object]) -> None:
        monkeypatch.setattr(module, "SILENT_SECONDS", seconds)
        owner = Owner(store, "rows/")
        with suppress(OutputInUse), owner.holding(say=say):
            owner.restore()

    for text in texts:
        for name in (OWNER, "shard-1-of-2/owner.json"):
            store.replace(name, text.encode())
        for recorded in owners(store):
            assert isinstance(recorded.is_running, bool)
        follow(0.0, no_message)
        store.replace(OWNER, lease())
        follow(60.0, partial(write_text, store, text))  # it fails, or is the next owner
    assert len(texts) > 300


def write_text(store: Store, text: str, message: str) -> None:
    """Write the owner's file while a command waits for it, and let it wait no longer."""
    assert "process 7 on x" in message
    store.replace("shard-1-of-2/owner.json", lease(exit_code=0))
    store.replace(OWNER, text.encode())


@pytest.mark.parametrize("name", [OWNER, "lock", "shard-0-of-2", "shard-0-of-2/owner.json"])
def test_links_are_not_followed(tmp_path, name):
    store = LocalStore(tmp_path / "rows.pgcli", create=True)
    victim = tmp_path / "victim"
    victim.mkdir() if name == "shard-0-of-2" else victim.write_bytes(lease(exit_code=0))
    (store.path / name).parent.mkdir(exist_ok=True)
    (store.path / name).symlink_to(victim)
    shard = "0/2" if name.startswith("shard") else ""
    with (
        pytest.raises(OutputExists, match="is a link"),
        Owner(store, "rows/", shard=shard).holding(say=no_message),
    ):
        pass
    if victim.is_dir():
        assert not list(victim.iterdir())
    else:
        assert victim.read_bytes() == lease(exit_code=0)
