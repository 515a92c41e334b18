"""The state of a run in an object store: who owns it, who claims what, and which record stays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from pgcli.errors import OutputInUse
from pgcli.state import stored_owners
from pgcli.state.claims import CHUNKS
from pgcli.state.stored_claims import StoredClaims
from pgcli.state.stored_run import StoredRunState, open_stored_run
from tests.support.runs import wait_until
from tests.support.stores import Files
from tests.support.writable_stores import used_store

URL = "s3://bucket/rows/"
OWNER = "bucket/rows.pgcli/owner-join-dead.x.json"


@pytest.fixture
def store() -> Iterator[Files]:
    with used_store() as files:
        yield files


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def opened(stack: ExitStack, part: str) -> StoredRunState:
    state = stack.enter_context(open_stored_run(URL, part=part))
    state.check_settings({"seed": 0})
    return state


def claims(state: StoredRunState, stored: set[int] | None = None) -> StoredClaims:
    return StoredClaims(state.owners, state.part, range(4), (stored or set()).__contains__)


def test_each_process_takes_chunks_that_nobody_has(store: Files, stack: ExitStack) -> None:
    a, b = (claims(opened(stack, f"-join-{name}"), {1}) for name in "ab")
    found = [*a.claim(), *b.claim(2)]
    assert sorted(found) == [0, 2, 3]
    assert (a.claim(), b.claim()) == ([], [])
    a.done(found[0])
    assert (a.left, b.left) == (2, 3)


def test_chunk_of_another_host_is_free_after_its_silence(
    store: Files, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = claims(opened(stack, "-ray"), {1, 2, 3})
    process = {"pid": 1, "host": "elsewhere", "part": "-join-dead", CHUNKS: [0]}
    store[OWNER] = json.dumps(process).encode()
    monkeypatch.setattr("tests.support.stores.NEW_YEAR", 2**32)
    assert found.claim() == []
    monkeypatch.undo()
    assert found.claim() == [0]
    found.remove_killed()
    assert OWNER not in store


def test_chunk_of_a_killed_process_is_free_at_once_on_its_host(
    store: Files, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.stores.NEW_YEAR", 2**32)
    found = claims(opened(stack, "-ray"), {1, 2, 3})
    process = {"pid": 2**22 + 1, "host": stored_owners.socket.gethostname()}
    store[OWNER] = json.dumps({**process, "part": "-join-dead", CHUNKS: [0]}).encode()
    assert found.claim() == [0]


def test_living_process_is_not_silent(
    store: Files, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_owners, "REFRESH_SECONDS", 0.01)
    opened(stack, "-join-a")
    (name,) = (name for name in store if "owner" in name)
    store[name] = b""
    wait_until(lambda: store[name])


def test_a_part_has_one_process_and_the_whole_output_too(store: Files, stack: ExitStack) -> None:
    opened(stack, "-0-of-2")
    opened(stack, "-1-of-2")
    for part in ("-0-of-2", ""):
        with pytest.raises(OutputInUse, match="in use by process"):
            opened(stack, part)


def test_first_of_two_processes_writes_the_record(store: Files, stack: ExitStack) -> None:
    a, b = (opened(stack, f"-join-{name}") for name in "ab")
    for state in (a, b):
        state.begin()
    assert a.run_id == b.run_id == json.loads(store["bucket/rows.pgcli/run.json"])["run"]


def test_processes_with_other_lists_of_images_do_not_share_an_output(
    store: Files, stack: ExitStack
) -> None:
    states = [opened(stack, f"-join-{name}") for name in "abc"]
    for state, names in zip(states[:2], (b"1\0", b"1\0"), strict=True):
        with state.file_lists() as lists:
            lists(0).with_name("files-0.0").write_bytes(names)
    with pytest.raises(OutputInUse, match="with other images"), states[2].file_lists() as lists:
        lists(0).with_name("files-0.0").write_bytes(b"2\0")


def test_list_of_a_killed_process_is_made_anew_and_then_shared(
    store: Files, stack: ExitStack
) -> None:
    store["bucket/rows.pgcli/files-0.0"] = b"old\0"
    a, b = (opened(stack, f"-join-{name}") for name in "ab")
    found = []
    for state, names in ((a, b"1\0"), (b, b"2\0")):
        with state.file_lists() as lists:
            file = lists(0).with_name("files-0.0")
            if not file.exists():
                file.write_bytes(names)
            found.append(file.read_bytes())
    assert found == [b"1\0", b"1\0"]
    assert store["bucket/rows.pgcli/files-0.0"] == b"1\0"
    stack.close()
    assert list(store) == ["bucket/exists"]


def test_run_that_saves_nothing_leaves_nothing(store: Files) -> None:
    with open_stored_run(URL) as state, state.file_lists() as lists:
        lists(0).with_name("files-0.0").write_bytes(b"1\0")
    assert list(store) == ["bucket/exists"]
    assert not state.folder.exists()


def test_part_that_replaces_the_output_shares_it_once_the_rows_are_gone(
    store: Files, stack: ExitStack
) -> None:
    def replacing() -> StoredRunState:
        state = stack.enter_context(open_stored_run(URL, overwrite=True, part="-ray"))
        state.check_settings({"seed": 1})
        return state

    with open_stored_run(URL, part="-join-a") as state:
        state.check_settings({"seed": 0})
        state.begin()
        state.parts.put("part-000000.parquet", b"")
        with pytest.raises(OutputInUse, match="in use by process"):
            replacing()
    state = replacing()
    with pytest.raises(OutputInUse, match="in use by process"):
        opened(stack, "-join-b")
    assert state.parts.names("part-")
    state.begin()
    assert not state.parts.names("part-")
    joined = stack.enter_context(open_stored_run(URL, part="-join-c"))
    assert joined.run_id == state.run_id
