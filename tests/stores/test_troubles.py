"""Transient store errors are retried; if they last, the exit code says "try again"."""

import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

from pgcli import process_end
from pgcli.errors import OutputFailed, PgcliError, SourceUnavailable
from pgcli.records import Item
from pgcli.stores import Reader, RemoteError, objects
from pgcli.stores.objects import ObjectStore
from pgcli.stores.urls import (
    DENIED,
    EXPIRED,
    TransientError,
)
from pgcli.stores.web import HubFiles
from tests.support.runs import ends_soon
from tests.support.stores import Trouble, Unreliable, shorten_retries, unreliable_store

DEFAULT_RETRIES = objects.RETRIES
SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)


def code(reason: str) -> bytes:
    """The body of a response with this error code."""
    return f"<Error><Code>{reason}</Code><Message>Some - words.</Message></Error>".encode()


FAILURES = [503, 429, "reset", "silent", "cut"]
PHOTOS = {f"bucket/photos/{number:04}.png": bytes([number % 256]) * 9 for number in range(1200)}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch) -> None:
    """Pauses of hundredths of a second, for at most a second, in which servers must answer."""
    shorten_retries(monkeypatch)
    client = {"read_timeout": timedelta(seconds=0.4), "allow_http": True}
    monkeypatch.setattr(objects, "CLIENT", client)


@pytest.fixture
def server() -> Iterator[type[Unreliable]]:
    with unreliable_store() as server:
        server.files |= PHOTOS
        yield server


def listed(reader: Reader) -> list[str]:
    return [entry.name for entry in reader.entries("s3://bucket/photos")]


def streamed(reader: Reader) -> bytes:
    """The second half of a file; the store fails after the first half was read."""
    with reader.open("s3://bucket/photos/0007.png", 16) as file:
        file.seek(4)
        return file.read()


def fetched(reader: Reader) -> bytes:
    with reader.fetched(Item(0, "x", "x", "s3://bucket/photos/0007.png")) as item:
        assert item.fault is None, item.fault
        return item.data or b""


#: Requests that obstore does not repeat when the connection breaks within the response.
NOT_REPEATED = ("list", "later page")
NAMES = [f"{number:04}.png" for number in range(1200)]
READS: dict[str, tuple[str, Callable[[Reader], Any], Any]] = {
    "list": ("GET .*list-type", listed, NAMES),
    "later page": ("GET .*start-after|GET .*continuation", listed, NAMES),
    "kind of a folder": ("GET .*list-type", lambda r: r.kind("s3://bucket/photos"), "folder"),
    "kind of a file": ("GET .*0007", lambda r: r.kind("s3://bucket/photos/0007.png"), "file"),
    "no file": ("GET .*none", lambda r: r.kind("s3://bucket/none.png"), ""),
    "get": ("GET .*0007", lambda r: r.read("s3://bucket/photos/0007.png"), bytes([7]) * 9),
    "image": ("GET .*0007", fetched, bytes([7]) * 9),
    "start of a stream": ("GET .*0007", streamed, bytes([7]) * 5),
    "range": ("GET .*0007", streamed, bytes([7]) * 5),
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("read", READS)
def test_read_succeeds_after_some_failures(server, read, how):
    pattern, call, expected = READS[read]
    if how == "cut" and ("kind" in read or read in (*NOT_REPEATED, "no file")):
        return
    server.troubles.append(Trouble(pattern, how, times=2, body=SLOW_DOWN))
    assert call(Reader()) == expected
    assert not server.troubles[0].times


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("read", READS)
def test_read_that_keeps_failing_says_to_try_again(server, read, how):
    pattern, call, _ = READS[read]
    if how == "cut" and ("kind" in read or read in ("no file", "start of a stream")):
        return
    server.troubles.append(Trouble(pattern, how, body=SLOW_DOWN))
    is_image = read in ("get", "image")
    with ends_soon(), pytest.raises(RemoteError if is_image else SourceUnavailable) as problem:
        call(Reader()) if read != "image" else Reader().read("s3://bucket/photos/0007.png")
    message = str(problem.value)
    if isinstance(how, int):
        assert f"status code: {how} " in message
        assert "(SlowDown)" in message
    else:
        assert "error sending request" in message or "response body error" in message
    assert "http:" not in message
    if not is_image:
        assert problem.value.exit_code == 14
        assert message.startswith("s3://bucket/")


def test_requests_are_repeated_by_default(server, monkeypatch):
    monkeypatch.setattr(objects, "RETRIES", DEFAULT_RETRIES)
    assert DEFAULT_RETRIES["retry_timeout"] == timedelta(minutes=3)
    server.troubles.append(Trouble("GET", 503, times=3))
    assert Reader().read("s3://bucket/photos/0007.png") == bytes([7]) * 9
    assert len(server.requests) == 4


def delete_some(store: ObjectStore) -> None:
    store.delete(["a", "none"])


WRITES: dict[str, tuple[str, Callable[[ObjectStore], Any]]] = {
    "replace": ("PUT .*/rows/a", lambda store: store.replace("a", b"data")),
    "create": ("PUT .*/rows/new", lambda store: store.create("new", b"data")),
    "read": ("GET .*/rows/old", lambda store: store.read("old")),
    "end": ("GET .*/rows/old", lambda store: store.read_end("old", 2, 4)),
    "list": ("GET .*list-type", lambda store: [entry.name for entry in store.list()]),
    "delete": ("POST", delete_some),
}


@pytest.mark.parametrize("how", FAILURES[:-1])
@pytest.mark.parametrize("write", WRITES)
def test_output_is_retried_and_then_fails(server, write, how):
    pattern, call = WRITES[write]
    server.files["bucket/rows/old"] = b"data"
    expected = call(ObjectStore("s3://bucket/rows/"))
    server.files.pop("bucket/rows/new", None)
    server.files.pop("bucket/rows/a", None)
    # obstore does not repeat these when the connection breaks; pgcli does, once
    is_conditional = write in ("create", "delete") and not isinstance(how, int)
    server.troubles.append(Trouble(pattern, how, times=1 if is_conditional else 2))
    assert call(ObjectStore("s3://bucket/rows/")) == expected
    server.files.pop("bucket/rows/new", None)
    server.troubles.append(Trouble(pattern, how, body=SLOW_DOWN))
    with ends_soon(), pytest.raises(OutputFailed, match="cannot be used"):
        call(ObjectStore("s3://bucket/rows/"))


def test_failed_output_has_little_time_until_it_answers(server, monkeypatch):
    monkeypatch.setattr(objects, "LOST_SECONDS", 0.3)
    store = ObjectStore("s3://bucket/rows/")
    server.troubles.append(Trouble("PUT", 503))
    for is_first in (True, False, False):
        began = time.monotonic()
        with pytest.raises(OutputFailed):
            store.replace("a", b"data")
        assert (time.monotonic() - began > 1.0) == is_first
    server.troubles.clear()
    store.replace("a", b"data")
    server.troubles.append(Trouble("PUT .*more", 503, times=2))
    store.replace("more", b"more")  # abandoned requests may still write `a`
    assert server.files["bucket/rows/more"] == b"more"


@pytest.mark.parametrize(
    ("status", "reason", "fault"),
    [
        (403, "AccessDenied", DENIED),
        (403, "ExpiredToken", EXPIRED),
        (400, "ExpiredToken", EXPIRED),
        (400, "TokenRefreshRequired", EXPIRED),
    ],
)
def test_denied_listing_is_not_retried(server, status, reason, fault):
    server.troubles.append(Trouble("GET .*list-type", status, body=code(reason)))
    with pytest.raises((RemoteError, SourceUnavailable)) as problem:
        listed(Reader())
    error = problem.value if fault is DENIED else problem.value.__cause__
    assert isinstance(error, RemoteError)
    assert error.fault == fault
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.parametrize("read", READS)
def test_expired_credentials_say_to_renew_them(server, read, status):
    pattern, call, _ = READS[read]
    server.troubles.append(Trouble(pattern, status, body=code("ExpiredToken")))
    with pytest.raises(RemoteError if read == "get" else SourceUnavailable) as problem:
        call(Reader())
    assert "have expired" in str(problem.value)
    if isinstance(problem.value, SourceUnavailable):
        assert problem.value.hint.startswith("renew the credentials")
        assert problem.value.exit_code == 14


def test_denied_file_has_the_reason_of_a_get(server):
    server.troubles.append(Trouble("GET", 403, body=code("AccessDenied")))
    for read in (Reader().kind, Reader().open):
        with pytest.raises(RemoteError) as problem:
            read("s3://bucket/photos/0007.png")
        assert problem.value.fault == DENIED


def test_key_is_not_read_as_the_code_of_the_response(server):
    """obstore quotes the key in the message about a denied object."""
    key = "<Code>ExpiredToken</Code> - Server returned <Code>ExpiredToken</Code>.png"
    server.troubles.append(Trouble("GET", 403, body=code("AccessDenied")))
    with Reader().fetched(Item(0, "x", "x", f"s3://bucket/{key}")) as item:
        assert item.fault == DENIED
    server.troubles[:] = [Trouble("GET", 400, body=code("InvalidArgument"))]
    with pytest.raises(RemoteError, match=r"400 Bad Request \(InvalidArgument\)\.$"):
        Reader().read(f"s3://bucket/{key}")


def test_object_that_is_replaced_while_it_is_read_is_noticed(server):
    server.files["bucket/rows.jsonl"] = b"a" * 2**21
    with Reader().open("s3://bucket/rows.jsonl", 16) as file:
        assert file.read(4) == b"aaaa"
        server.files["bucket/rows.jsonl"] = b"b" * 2**21
        file.seek(-4, 2)
        with pytest.raises(RemoteError, match="changed while it was read"):
            file.read()


def test_unknown_host_is_not_retried(monkeypatch):
    lookups: list[str] = []

    def unknown(host: str, *more: Any, **options: Any) -> Any:
        lookups.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(RemoteError, match="host name is unknown"):
        Reader().open("https://images.invalid/rows.jsonl")
    assert lookups == ["images.invalid"]


def test_calls_end_when_the_process_must_end(server):
    """Even in threads, which no signal interrupts, such as the thread of a run's heartbeat."""
    server.troubles.append(Trouble("", "silent"))
    problems: list[PgcliError] = []

    def write() -> None:
        try:
            ObjectStore("s3://bucket/rows/").replace("a", b"")
        except PgcliError as problem:
            problems.append(problem)

    thread = threading.Thread(target=write)
    try:
        with ends_soon():
            thread.start()
            while not server.requests:
                time.sleep(0.01)
            process_end.end_requests(0.1)
            thread.join()
            with pytest.raises(OutputFailed, match="The run ended"):
                ObjectStore("s3://bucket/rows/").read("a")
        assert "The run ended" in str(problems[0])
    finally:
        process_end.end_requests(float("inf"))


def test_failures_of_the_hub_are_told_apart():
    response = httpx2.Response(503, request=httpx2.Request("GET", "https://hub.example"))
    lasting = [httpx2.ConnectError("unreachable"), HfHubHTTPError("busy", response=response)]
    for error in lasting:
        with pytest.raises(TransientError, match=r"ConnectError|answered 503"), HubFiles().errors():
            raise error
    for error in (OfflineModeIsEnabled("offline"), ValueError("not a revision")):
        with pytest.raises(RemoteError) as problem, HubFiles().errors():
            raise error
        assert not isinstance(problem.value, TransientError)


def test_threads_read_ranges_of_a_file_on_the_hub_one_at_a_time():
    class File(io.BytesIO):
        size = 256

        def seek(self, *position: int) -> int:
            result = super().seek(*position)
            time.sleep(0.001)  # another thread seeks
            return result

    hub = HubFiles()
    hub.__dict__["_files"] = SimpleNamespace(open=lambda *unused: File(bytes(range(256))))
    _, read = hub.open("hf://datasets/a/b/x.png")
    with ThreadPoolExecutor(4) as threads:
        ranges = list(threads.map(lambda start: read(start, start + 2), range(100)))
    assert ranges == [bytes([start, start + 1]) for start in range(100)]
