"""The contract of a store, the same for this machine and an object store."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from pgcli.errors import OutputFailed
from pgcli.stores import Entry, Store, objects, open_folder
from pgcli.stores.objects import ObjectStore
from tests.support.stores import (
    BUCKET,
    Busy,
    Denied,
    Unconditional,
    WritableS3,
    shorten_retries,
    used_store,
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch) -> None:
    shorten_retries(monkeypatch)


NAMES = ["run.json", "open/7", "part-000000.parquet"]


@pytest.fixture(params=["local", "s3", "unconditional"])
def store(request, tmp_path) -> Iterator[Store]:
    if request.param == "local":
        yield open_folder(str(tmp_path / "rows.pgcli"), create=True)
    else:
        with used_store(WritableS3 if request.param == "s3" else Unconditional):
            yield open_folder(f"{BUCKET}/rows.pgcli/")


def listed(store: Store, prefix: str = "") -> list[str]:
    return sorted(entry.name for entry in store.list(prefix))


@pytest.mark.parametrize("name", NAMES)
def test_file_has_the_content_written_last(store, name):
    assert store.read(name) is None
    assert store.create(name, b"first")
    assert not store.create(name, b"second")
    assert store.read(name) == b"first"
    store.replace(name, b"third, longer")
    assert store.read(name) == b"third, longer"
    store.delete([name, name, "none", "open/none", "nowhere/none"])
    assert store.read(name) is None
    store.replace(name, b"")
    assert store.read(name) == b""


def test_end_of_an_object_is_read():
    with used_store(WritableS3):
        store = ObjectStore(f"{BUCKET}/rows/")
        store.replace("a", b"0123456789")
        assert store.read_end("a", 3, 10) == b"789"
        assert store.read_end("a", 10, 10) == store.read_end("a", 99, 10) == b"0123456789"
        assert store.read_end("none", 3, 10) is None
        store.replace("a", b"")
        assert store.read_end("a", 5, 0) == b""


def test_listing_has_one_folder_and_prefix(store):
    for name in (*NAMES, "open/10", "part-1/deep", "openx"):
        store.create(name, name.encode())
    assert listed(store) == ["openx", "part-000000.parquet", "run.json"]
    assert listed(store, "part-") == ["part-000000.parquet"]
    assert listed(store, "open/") == ["open/10", "open/7"]
    assert listed(store, "open/1") == ["open/10"]
    assert listed(store, "none/") == listed(store, "x") == []
    [entry] = store.list("open/7")
    assert entry == Entry("open/7", len("open/7"), entry.modified)
    assert abs(entry.modified - time.time()) < 100


@pytest.mark.parametrize("store", ["local", "s3"], indirect=True)
def test_one_of_several_threads_creates_a_file(store):
    for number in range(20):
        with ThreadPoolExecutor(4) as pool:
            contents = [bytes([k]) * 1000 for k in range(4)]
            is_first = list(pool.map(partial(store.create, f"open/{number}"), contents))
        assert sum(is_first) == 1
        assert store.read(f"open/{number}") == contents[is_first.index(True)]


@pytest.mark.parametrize("store", ["local", "s3"], indirect=True)
def test_only_the_current_version_is_replaced(store):
    assert store.version("a") is None
    assert store.swap("a", b"1", None)
    first = store.version("a")
    assert first is not None
    assert first.data == b"1"
    assert abs(first.modified - time.time()) < 100
    assert store.swap("a", b"2", first)
    assert store.read("a") == b"2"
    store.delete(["a"])
    assert not store.swap("a", b"3", first)
    store.replace("a", b"4")
    assert not store.swap("a", b"5", first)
    assert not store.swap("a", b"6", None)
    assert store.read("a") == b"4"


@pytest.mark.parametrize("store", ["s3"], indirect=True)  # elsewhere a lock excludes other writers
def test_one_of_several_threads_replaces_a_version(store):
    for number in range(20):
        store.replace("a", b"%d" % number)
        swap = partial(store.swap, "a", version=store.version("a"))
        contents = [bytes([k]) * 1000 for k in range(4)]
        with ThreadPoolExecutor(4) as pool:
            is_first = list(pool.map(swap, contents))
        assert sum(is_first) == 1
        assert store.read("a") == contents[is_first.index(True)]


def test_folders_are_listed(store):
    for name in ("a", "shard-0-of-2/owner.json", "shard-1-of-2/owner.json", "open/7"):
        store.create(name, b"x")
    assert sorted(store.folders()) == ["open", "shard-0-of-2", "shard-1-of-2"]


def test_store_without_conditional_writes_creates_once():
    with used_store(Unconditional):
        store = ObjectStore(f"{BUCKET}/rows/")
        assert store.swap("a", b"1", None)
        version = store.version("a")
        assert store.swap("a", b"2", version)
        assert store.read("a") == b"2"
        assert not store.create("a", b"3")
        assert store.create("b", b"3")
        assert store.read("b") == b"3"


def test_bucket_that_does_not_exist_is_output_failed():
    class Gone(WritableS3):
        def put(self, key: str, data: bytes) -> int:
            return 404

    with used_store(Gone), pytest.raises(OutputFailed, match="URL does not exist"):
        ObjectStore(f"{BUCKET}/rows/").swap("a", b"1", None)


@pytest.mark.parametrize("write", ["replace", "create"])
def test_busy_store_is_retried(write):
    """Even a store that has taken a file, says that it is busy, and then rejects the retry."""
    with used_store(Busy) as files:
        store = ObjectStore(f"{BUCKET}/rows/")
        for number in range(6):
            assert getattr(store, write)(str(number), b"x") is not False
        assert len(files) == 7


def test_denied_store_is_output_failed():
    with used_store(Denied):
        store = ObjectStore(f"{BUCKET}/rows/")
        for write in (lambda: store.replace("a", b""), lambda: store.create("a", b"")):
            with pytest.raises(OutputFailed, match="denies access") as problem:
                write()
            assert "permission" in problem.value.hint
            assert "s3://bucket/rows/" in str(problem.value)


def test_store_that_rejects_conditional_writes_is_output_failed():
    class Unimplemented(WritableS3):
        def put(self, key: str, data: bytes) -> int:
            return 501 if "If-None-Match" in self.headers else super().put(key, data)

    with used_store(Unimplemented), pytest.raises(OutputFailed, match="501 Not Implemented"):
        ObjectStore(f"{BUCKET}/rows").create("a", b"")


def test_store_that_deletes_one_by_one_deletes_all(monkeypatch):
    names = {"a", "c"}

    class Bucket:
        def delete(self, paths: list[str] | str) -> None:
            for path in [paths] if isinstance(paths, str) else paths:
                if path not in names:
                    raise FileNotFoundError(path)
                names.remove(path)

    monkeypatch.setattr(objects, "open_bucket", lambda *_: Bucket())
    ObjectStore("s3://bucket/rows/").delete(["a", "b", "c"])
    assert not names
