"""Files in S3, Google Cloud Storage, Azure and the Hub read like those in a local folder."""

import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow.parquet as pq
import pytest

from pgcli.records import Fault, Item
from pgcli.stores import Reader, RemoteError, reader
from tests.support.runs import ends_soon
from tests.support.stores import (
    FILES,
    JPEG,
    NEW_YEAR,
    PNG,
    S3,
    Azure,
    Files,
    Google,
    Hub,
    StoreLocation,
    locate_store,
    serve,
    shorten_retries,
)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch) -> None:
    shorten_retries(monkeypatch)


@contextmanager
def in_moto(files: Files) -> Iterator[str]:
    """The URL of an S3 server of moto with these files."""
    server_of = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    boto3 = pytest.importorskip("boto3", reason="boto3 is not installed")
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    endpoint = "http://{}:{}".format(*server.get_host_and_port())
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys)
    client.create_bucket(Bucket="images")
    for name, data in files.items():
        client.put_object(Bucket="images", Key=name.removeprefix("images/"), Body=data)
    try:
        yield endpoint
    finally:
        server.stop()


@pytest.fixture(
    scope="module",
    params=["moto", "s3", "hf", *(pytest.param(x, marks=pytest.mark.slow) for x in ("gs", "az"))],
)
def store(request) -> Iterator[StoreLocation]:
    files = {f"images/{name}": data for name, data in FILES.items()}
    kinds = {"s3": S3, "gs": Google, "az": Azure, "hf": Hub}
    kind = request.param
    with in_moto(files) if kind == "moto" else serve(kinds[kind], files) as endpoint:
        yield locate_store(kind, endpoint)


@pytest.fixture
def base(store, monkeypatch) -> str:
    """The address of the files, with this process set up to read them."""
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    if store.base.startswith("hf:"):
        pytest.importorskip("huggingface_hub")
        from huggingface_hub import HfFileSystem, constants

        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        endpoint = store.environment["HF_ENDPOINT"]  # read when the client was imported
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        HfFileSystem.clear_instance_cache()
    return store.base


def test_files_are_listed_and_read(base):
    reading = Reader()
    entries = {entry.name: entry for entry in reading.entries(base)}
    assert list(entries) == sorted(FILES)
    assert {name: entry.size for name, entry in entries.items()} == {
        name: len(data) for name, data in FILES.items()
    }
    for folder in ("photos", "parts/"):
        names = [entry.name for entry in reading.entries(f"{base}/{folder}")]
        start = len(folder.rstrip("/")) + 1
        assert names == sorted(name[start:] for name in FILES if name.startswith(f"{folder}"))
    for name, data in FILES.items():
        assert reading.read(f"{base}/{name}") == data
    with reading.fetched(Item(0, "x", "x", f"{base}/photos/a/b c.png")) as item:
        assert item.data == PNG
    with reading.fetched(Item(0, "x", "x", f"{base}/photos/none.png")) as item:
        assert item.fault.code == "missing"
    with pytest.raises(RemoteError, match="larger than 10 bytes"):
        reading.read(f"{base}/photos/z.jpg", limit=10)
    kinds = {"photos": "folder", "photos/z.jpg": "file", "photo": "", "photos/none.jpg": ""}
    assert {name: reading.kind(f"{base}/{name}") for name in kinds} == kinds


def test_tables_and_archives_are_seekable_streams(base):
    reading = Reader()
    with reading.open(f"{base}/parts/0.parquet") as file:
        assert pq.read_table(file)["label"].to_pylist() == [0, 1]
    with reading.open(f"{base}/sets/x.tar", 512) as file, tarfile.open(fileobj=file) as archive:
        member = archive.getmembers()[2]
        read = archive.extractfile(member)
        assert read
        assert read.read() == JPEG
    with reading.open(f"{base}/sets/x.tar") as file:
        assert file.seek(-3, io.SEEK_END) == len(FILES["sets/x.tar"]) - 3
        assert file.read() == FILES["sets/x.tar"][-3:]
        file.seek(0)
        reading.stop()
        with pytest.raises(RemoteError, match="run ended"):
            file.read()


@contextmanager
def s3_of(kind: type[S3], files: Files) -> Iterator[None]:
    """An S3 server of a kind, with this process set up to read it."""
    with serve(kind, files) as endpoint, pytest.MonkeyPatch.context() as patch:
        for name, value in locate_store("s3", endpoint).environment.items():
            patch.setenv(name, value)
        yield


def refusing(status: int, body: str = "") -> type[S3]:
    """A kind of S3 server that always answers with this status and body."""

    class Refusing(S3):
        def answer(self, path: str, query: Any) -> None:
            self.respond(status, body.encode())

    return Refusing


def fault_of(read: Callable[[str], Any], url: str) -> Fault:
    with pytest.raises(RemoteError) as problem:
        read(url)
    return problem.value.fault


@pytest.fixture
def s3() -> Iterator[Files]:
    """The files of an S3 server, with this process set up to read them."""
    files = {f"images/{name}": data for name, data in FILES.items()}
    with s3_of(S3, files):
        yield files


def test_object_of_the_folder_itself_is_skipped(s3):
    s3.clear()
    s3 |= {"images/photos": b"", "images/photos/a/b.png": PNG, "images/photos/empty.png": b""}
    entries = list(Reader().entries("s3://images/photos"))
    assert [entry.name for entry in entries] == ["a/b.png", "empty.png"]
    assert (entries[0].size, entries[0].modified) == (len(PNG), NEW_YEAR)


KEYS = ["a//b.png", "a/./b.png", "a/../b.png", "/lead.png", "a\x01b.png", "..", "z.jpg//c.png"]


@pytest.mark.parametrize("key", KEYS)
def test_key_that_obstore_cannot_name_is_an_error_of_its_folder(s3, key):
    s3.clear()
    s3 |= {f"images/p/{name}": PNG for name in [key, "z.png"]}
    reading = Reader()
    for read in (reading.kind, lambda url: list(reading.entries(url))):
        fault = fault_of(read, "s3://images/p")
        assert fault.code == "path_not_allowed"
        assert f"p/{key}" in fault.message
    assert reading.read("s3://images/p/z.png") == PNG
    assert fault_of(reading.read, f"s3://images/p/{key}").code == "path_not_allowed"


@pytest.mark.parametrize("kind", ["gs", "az"])
def test_other_stores_name_such_a_key_too(monkeypatch, kind):
    kinds: dict[str, Any] = {"gs": Google, "az": Azure}
    with serve(kinds[kind], {"images/p/a//b.png": PNG, "images/p/c.png": PNG}) as endpoint:
        location = locate_store(kind, endpoint)
        for name, value in location.environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(RemoteError, match=r"p/a//b\.png"):
            list(Reader().entries(f"{location.base}/p"))


def test_key_with_a_slash_before_it_is_not_the_object_without_one(s3):
    s3 |= {"images//photo.png": PNG, "images/photo.png": JPEG}
    for read in (Reader().read, Reader().open, Reader().kind):
        assert fault_of(read, "s3://images//photo.png").code == "path_not_allowed"
    assert Reader().read("s3://images/photo.png") == JPEG


def test_listing_is_a_stream_of_pages():
    """The first names arrive before the store has sent the others."""
    release, asked = threading.Event(), list[str]()

    class Paged(S3):
        def answer(self, path: str, query: Any) -> None:
            asked.append(query.get("continuation-token", ""))
            if asked[-1]:
                release.wait(60)
            rows = "".join(
                f"<Contents><Key>{asked[-1]}{n:04}.png</Key><Size>1</Size>"
                "<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"
                for n in range(1000)
            )
            rest = "<NextContinuationToken>next</NextContinuationToken>" * (not asked[-1])
            body = f'<?xml version="1.0"?><ListBucketResult>{rows}{rest}</ListBucketResult>'
            self.respond(200, body.encode(), Content_Type="application/xml")

    with s3_of(Paged, {}):
        names = (entry.name for entry in Reader().entries("s3://images"))
        assert [next(names) for _ in range(900)][-1] == "0899.png"
        release.set()
        assert len(list(names)) == 1100
    assert asked == ["", "next"]


@pytest.mark.parametrize(
    ("status", "code"),
    [(401, "permission_denied"), (403, "permission_denied"), (404, "missing"), (500, "io_error")],
)
def test_store_error_has_the_code_of_its_status(status, code):
    with s3_of(refusing(status), {}):
        found = fault_of(Reader().read, "s3://images/x.png")
        assert found.code == code
        assert status != 500 or "500 Internal Server Error" in found.message


@pytest.mark.parametrize(
    ("status", "reason", "code"),
    [(403, "AccessDenied", "permission_denied"), (404, "NoSuchBucket", "missing")],
)
def test_listing_has_the_code_of_the_response(status, reason, code):
    with s3_of(refusing(status, f"<Error><Code>{reason}</Code></Error>"), {}):
        for url in ("s3://images", "s3://images/photos"):
            assert fault_of(lambda url: list(Reader().entries(url)), url).code == code


def test_key_that_looks_like_a_status_is_not_one(s3):
    """Errors are classified by type and status, never by a text that contains the key."""
    keys = ["photos/1403 beach.jpg", "photos/404 status: 404.jpg", "photos/timeout 403 .jpg"]
    keys += ["AWS Error ACCESS_DENIED.jpg", "NO_SUCH_KEY/does not exist.jpg"]
    for key in keys:
        s3[f"images/{key}"] = JPEG
        assert Reader().read(f"s3://images/{key}") == JPEG
        del s3[f"images/{key}"]
        assert fault_of(Reader().read, f"s3://images/{key}").code == "missing"
    with s3_of(refusing(500), {}):
        reading = Reader()
        for key in keys[:3]:
            assert fault_of(reading.read, f"s3://images/{key}").code == "io_error"


@pytest.fixture
def silent(monkeypatch) -> Iterator[None]:
    """An S3 server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        keys = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        yield


def test_store_that_never_answers_is_a_timeout(silent, monkeypatch):
    monkeypatch.setattr(reader, "FETCH_SECONDS", 1.0)
    with ends_soon(), Reader().fetched(Item(0, "a", "a", "s3://images/a.png")) as item:
        assert item.fault.code == "timeout"


def test_stop_ends_the_wait_for_a_store(silent):
    reading, faults = Reader(), list[str]()

    def wait(use: Any) -> None:
        faults.append(fault_of(use, "s3://images/x").message)

    uses = [reading.kind, reading.read, reading.open, lambda url: list(reading.entries(url))]
    threads = [threading.Thread(target=wait, args=(use,)) for use in uses]
    for thread in threads:
        thread.start()
    with ends_soon():
        reading.stop()
        for thread in threads:
            thread.join()
    assert len(faults) == 4
    assert set(faults) == {"The run ended while reading the URL."}
