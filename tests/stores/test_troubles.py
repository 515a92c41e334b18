"""Transient store errors are retried; if they last, the exit code says "try again"."""

import io
import math
import pickle
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import httpcore2
import httpx2
import pytest

from pgcli import process_end
from pgcli.errors import OutputFailed, PgcliError, SourceUnavailable
from pgcli.records import Item
from pgcli.stores import Reader, RemoteError, calls, objects, reader
from pgcli.stores.errors import (
    DENIED,
    EXPIRED,
    NO_CREDENTIALS,
    TOO_SLOW,
    UNREACHABLE,
    TransientError,
    Unreachable,
)
from pgcli.stores.hub import HubFiles
from pgcli.stores.network import checked_addresses
from pgcli.stores.objects import ObjectStore
from pgcli.stores.web import http_errors
from tests.support.time_limits import ends_soon
from tests.support.writable_stores import Trouble, Unreliable, environment, unreliable_store

SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
FAILURES = [503, 500, 502, 504, 429, 408, "reset", "silent", "cut"]
PHOTOS = {f"bucket/photos/{number:04}.png": bytes([number % 256]) * 9 for number in range(1200)}


@pytest.fixture(autouse=True)
def short_waits(monkeypatch) -> None:
    """Pauses of hundredths of a second, for at most a second, in which servers must answer."""
    monkeypatch.setattr(calls, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(calls, "LONGEST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(calls, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(objects, "CLIENT", {"read_timeout": timedelta(seconds=0.6)})


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


NAMES = [f"{number:04}.png" for number in range(1200)]
READS: dict[str, tuple[str, Callable[[Reader], Any], Any]] = {
    "list": ("GET .*list-type", listed, NAMES),
    "later page": ("GET .*start-after|GET .*continuation", listed, NAMES),
    "kind of a folder": ("GET .*list-type", lambda r: r.kind("s3://bucket/photos"), "folder"),
    "kind of a file": ("HEAD .*0007", lambda r: r.kind("s3://bucket/photos/0007.png"), "file"),
    "no file": ("HEAD .*none", lambda r: r.kind("s3://bucket/none.png"), ""),
    "get": ("GET .*0007", lambda r: r.read("s3://bucket/photos/0007.png"), bytes([7]) * 9),
    "image": ("GET .*0007", fetched, bytes([7]) * 9),
    "head of a stream": ("HEAD .*0007", streamed, bytes([7]) * 5),
    "range": ("GET .*0007", streamed, bytes([7]) * 5),
}


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("read", READS)
def test_read_succeeds_after_some_failures(server, read, how):
    pattern, call, expected = READS[read]
    if how == "cut" and "HEAD" in pattern:
        return  # a HEAD response has no body
    server.troubles.append(Trouble(pattern, how, times=2, body=SLOW_DOWN))
    assert call(Reader()) == expected
    assert not server.troubles[0].times


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("read", READS)
def test_read_that_keeps_failing_says_to_try_again(server, read, how):
    pattern, call, _ = READS[read]
    if how == "cut" and "HEAD" in pattern:
        return
    server.troubles.append(Trouble(pattern, how, body=SLOW_DOWN))
    is_image = read in ("get", "image")
    with ends_soon(), pytest.raises(RemoteError if is_image else SourceUnavailable) as problem:
        call(Reader()) if read != "image" else Reader().read("s3://bucket/photos/0007.png")
    message = str(problem.value)
    if isinstance(how, int) and how != 408:
        assert f"the server answered {how} " in message
        assert ("(SlowDown)" in message) == ("GET" in pattern)
    else:
        assert any(
            part in message.lower()
            for part in ("in time", "broke", "cannot be reached", "no connection")
        )
    assert "http:" not in message
    if not is_image:
        assert problem.value.exit_code == 14
        assert message.startswith("s3://bucket/")


def delete_some(store: ObjectStore) -> None:
    store.delete(["a", "none"])


WRITES: dict[str, tuple[str, Callable[[ObjectStore], Any]]] = {
    "replace": ("PUT .*/rows/a", lambda store: store.replace("a", b"data")),
    "create": ("PUT .*/rows/new", lambda store: store.create("new", b"data")),
    "read": ("GET .*/rows/old", lambda store: store.read("old")),
    "end": ("HEAD .*/rows/old", lambda store: store.read("old", last=2)),
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
    server.troubles.append(Trouble(pattern, how, times=2, body=SLOW_DOWN))
    assert call(ObjectStore("s3://bucket/rows/")) == expected
    server.files.pop("bucket/rows/new", None)
    server.troubles.append(Trouble(pattern, how, body=SLOW_DOWN))
    with ends_soon(), pytest.raises(OutputFailed, match="cannot be used"):
        call(ObjectStore("s3://bucket/rows/"))


def test_failed_output_is_tried_once_until_it_answers(server):
    store = ObjectStore("s3://bucket/rows/")
    server.troubles.append(Trouble("PUT", 503))
    for is_first in (True, False, False):
        server.requests.clear()
        with pytest.raises(OutputFailed):
            store.replace("a", b"data")
        assert (len(server.requests) > 1) == is_first
        assert store.read("a") is None  # other requests succeed
    server.troubles.clear()
    store.replace("a", b"data")
    server.troubles.append(Trouble("PUT", 503, times=2))
    store.replace("a", b"more")
    assert server.files["bucket/rows/a"] == b"more"


@pytest.mark.parametrize(
    ("status", "body", "fault"),
    [
        (403, b"<Error><Code>AccessDenied</Code></Error>", DENIED),
        (401, b"", DENIED),
        (403, b"<Error><Code>ExpiredToken</Code></Error>", EXPIRED),
        (400, b"<Error><Code>ExpiredToken</Code></Error>", EXPIRED),
        (400, b"<Error><Code>TokenRefreshRequired</Code></Error>", EXPIRED),
    ],
)
def test_denied_listing_is_not_retried(server, status, body, fault):
    server.troubles.append(Trouble("GET .*list-type", status, body=body))
    with pytest.raises((RemoteError, SourceUnavailable)) as problem:
        listed(Reader())
    error = problem.value if fault is DENIED else problem.value.__cause__
    assert isinstance(error, RemoteError)
    assert error.fault == fault
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [400, 403])
@pytest.mark.parametrize("read", READS)
def test_expired_credentials_say_to_renew_them(server, read, status):
    """Also where the request is a HEAD, whose response does not say why."""
    pattern, call, _ = READS[read]
    body = b"<Error><Code>ExpiredToken</Code></Error>"
    server.troubles.append(Trouble(pattern.replace("HEAD", "(HEAD|GET)"), status, body=body))
    with pytest.raises(RemoteError if read == "get" else SourceUnavailable) as problem:
        call(Reader())
    assert "have expired" in str(problem.value)
    if isinstance(problem.value, SourceUnavailable):
        assert problem.value.hint.startswith("renew the credentials")
        assert problem.value.exit_code == 14


def test_denied_file_has_the_reason_of_a_get(server):
    server.troubles.append(
        Trouble("HEAD|GET", 403, body=b"<Error><Code>AccessDenied</Code></Error>")
    )
    for read in (Reader().kind, Reader().open):
        with pytest.raises(RemoteError) as problem:
            read("s3://bucket/photos/0007.png")
        assert problem.value.fault == DENIED


def test_text_from_a_server_is_not_read_as_a_status(server):
    """The library quotes the body of a response, and the key, in its message."""
    text = b"\n\nDebug source:\nGeneric {\n    inner: Status {\n        status: 404,\n    }"
    server.troubles.append(Trouble("GET", 400, body=text))
    with pytest.raises(RemoteError, match="the server answered 400 Bad Request"):
        Reader().read("s3://bucket/a")
    with pytest.raises(RemoteError, match="cannot read an object of this name"):
        Reader().read(f"s3://bucket/{text.decode()}")


def test_object_that_is_replaced_while_it_is_read_is_noticed(server):
    server.files["bucket/rows.jsonl"] = b"a" * 2**21
    with Reader().open("s3://bucket/rows.jsonl", 16) as file:
        assert file.read(4) == b"aaaa"
        server.files["bucket/rows.jsonl"] = b"b" * 2**21
        file.seek(-4, 2)
        with pytest.raises(RemoteError, match="changed while it was read"):
            file.read()


def test_store_without_credentials_is_named(monkeypatch):
    for name in environment(""):
        monkeypatch.delenv(name, raising=False)
    error = OSError(
        "Error performing PUT\n\nDebug source:\nGeneric {\n    uri: Some(\n"
        "        http://169.254.169.254/latest/api/token,\n    ),\n    inner: Http(\n"
    )
    with pytest.raises(RemoteError) as problem, objects.store_errors():
        raise error
    assert problem.value.fault == NO_CREDENTIALS


def test_unknown_host_says_to_try_again_without_waiting(monkeypatch):
    for name, value in environment("http://store.invalid").items():
        monkeypatch.setenv(name, value)
    with ends_soon(), pytest.raises(SourceUnavailable, match="host name is unknown"):
        listed(Reader())
    lookups: list[str] = []

    def unknown(host: str, *more: Any, **options: Any) -> Any:
        lookups.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(SourceUnavailable, match="host name is unknown"):
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


@pytest.fixture
def has_network() -> Iterator[threading.Event]:
    """Whether a server has answered; no server has."""
    before = calls.answered.is_set()
    calls.answered.clear()
    yield calls.answered
    (calls.answered.set if before else calls.answered.clear)()


def tries(failures: list[RemoteError]) -> int:
    """How often a call is tried that fails so, and then again like the last time."""
    count = 0

    def fail() -> None:
        nonlocal count
        count += 1
        raise failures[min(count, len(failures)) - 1]

    with pytest.raises(RemoteError):
        calls.patient(fail, nullcontext, calls.Deadline(math.inf, threading.Event()))
    return count


def test_unreachable_server_is_given_up_soon_until_one_has_answered(has_network, monkeypatch):
    monkeypatch.setattr(calls, "UNREACHED_SECONDS", 0.0)
    silent, busy = Unreachable(UNREACHABLE), TransientError(TOO_SLOW)
    assert tries([silent]) == 1
    assert tries([busy, silent]) > 2
    assert has_network.is_set()
    assert tries([silent]) > 2


def test_network_is_known_to_other_processes_and_after_a_listing(has_network, server):
    assert pickle.loads(pickle.dumps(Reader())) is not None
    assert not has_network.is_set()
    assert len(listed(Reader())) == len(PHOTOS)
    assert has_network.is_set()
    sent = pickle.dumps(Reader())
    has_network.clear()
    pickle.loads(sent)
    assert has_network.is_set()


def test_what_cannot_be_reached_is_told_from_what_breaks(monkeypatch):
    def unnamed(*more: Any, **options: Any) -> Any:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    for name, value in environment("http://127.0.0.1:9").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Unreachable, match="cannot be reached"), objects.store_errors():
        objects.ObjectFiles().kind("s3://bucket/x")
    for error in ("ConnectError", "ConnectTimeout"):
        with pytest.raises(Unreachable, match="cannot be reached"), HubFiles().errors():
            raise getattr(httpx2, error)("[Errno 101] Network is unreachable")
    with pytest.raises(TransientError, match="broke") as broken, HubFiles().errors():
        raise httpx2.ReadError("")
    assert not isinstance(broken.value, Unreachable)
    with pytest.raises(Unreachable), http_errors():
        raise httpcore2.ConnectTimeout
    monkeypatch.setattr(socket, "getaddrinfo", unnamed)
    with pytest.raises(Unreachable, match="host name is unknown"):
        checked_addresses("images.example", 443, allow_private=False)


@pytest.mark.parametrize("status", [200, 301, 403])
def test_region_of_a_bucket_is_the_one_that_s3_names(monkeypatch, status):
    class Regions(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            if self.path == "/bucket":
                self.send_header("x-amz-bucket-region", "eu-central-1")
            self.end_headers()

        def log_message(self, *unused: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Regions) as regions:
        threading.Thread(target=regions.serve_forever, daemon=True).start()
        monkeypatch.setattr(objects, "S3", f"http://127.0.0.1:{regions.server_port}")
        assert objects.bucket_region("bucket") == {"region": "eu-central-1"}
        for name in ("other", "my bucket", "bücket", "", "a?b", "a\n"):
            assert objects.bucket_region(name) == {}
        regions.shutdown()
    assert objects.bucket_region("bucket") == {}


def test_large_read_has_more_time_than_a_buffer(server, monkeypatch):
    given: list[float] = []
    wait = Reader._wait

    def recorded(self: Reader, url: str, call: Any, *more: Any, seconds: float) -> Any:
        given.append(seconds)
        return wait(self, url, call, *more, seconds=seconds)

    monkeypatch.setattr(Reader, "_wait", recorded)
    monkeypatch.setattr(reader, "MIN_BYTES_PER_SECOND", 1)
    server.files["bucket/large"] = bytes(5000)
    with Reader().open("s3://bucket/large", 16) as file:
        assert len(file.read(3)) == 3
        assert len(file.read(4900)) == 4900
    base = given[0]
    assert given[1] == base + 16
    assert max(given) > base + 4000


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
