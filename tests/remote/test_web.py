"""Web URLs: a misbehaving server costs the row of its image only."""

from __future__ import annotations

import io
import ipaddress
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.errors import ManifestError, UsageError
from pgcli.images import ImageDecoder, ImageLimits, ImageSpec, decode
from pgcli.records import Item
from pgcli.remote import RemoteError, UrlReader, hosts, transport, url_reader, web, web_file
from pgcli.remote.hosts import is_public, vetted_addresses
from pgcli.remote.urls import join_url, parent_url, url_path, without_credentials
from pgcli.sources.open_sources import open_sources
from pgcli.sources.read_options import ReadOptions
from pgcli.workers import prefetch
from tests.support.awkward import drawing, encoded
from tests.support.misbehaving import Server
from tests.support.time_limits import ends_soon, scaled

ROOT = Path(__file__).parents[2]
PNG = encoded(drawing(), "PNG")
CERTIFICATE = ROOT / "tests" / "support" / "localhost.pem"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(PNG) as one:
        yield one


@pytest.fixture
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Timeouts of tenths of a second."""
    monkeypatch.setattr(web, "WAITS_SECONDS", (0.01, 0.01, 0.01))
    monkeypatch.setattr(url_reader, "FETCH_SECONDS", 1.0)
    monkeypatch.setattr(web, "TOTAL_SECONDS", 1.0)
    monkeypatch.setattr(web_file, "TOTAL_SECONDS", 1.0)
    monkeypatch.setattr(transport, "READ_SECONDS", 0.3)


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat 127.0.0.1 as public, and no other private address."""
    is_public = hosts.is_public
    monkeypatch.setattr(hosts, "is_public", lambda text: text == "127.0.0.1" or is_public(text))


def outcome(address: str, url_reader: UrlReader | None = None) -> str:
    """`good`, or the error code of the row of the image at the URL."""
    url_reader = url_reader or UrlReader(allow_private_hosts=True)
    with url_reader.fetched(Item(0, "x", "x", address)) as item:
        image = decode(item, ImageSpec(28), ImageLimits())
    return image.fault.code if image.fault else "good"


@pytest.mark.parametrize(
    ("path", "expected", "tries"),
    [
        ("good.png", "good", 1),
        ("moved.png", "good", 1),
        ("unknown.png", "missing", 1),
        ("gone.png", "missing", 1),
        ("forbidden.png", "permission_denied", 1),
        ("teapot.png", "io_error", 1),
        ("broken.png", "io_error", 4),
        ("busy.png", "good", 2),
        ("once.png", "good", 2),
        ("html.png", "not_an_image", 1),
        ("packed.png", "io_error", 1),
        ("short.png", "io_error", 4),
        ("less.png", "truncated", 1),
        ("negative.png", "io_error", 1),
        ("huge.png", "too_large", 1),
        ("nonsense.png", "io_error", 1),
        ("dropped.png", "io_error", 4),
        ("headers_without_end.png", "io_error", 1),
        ("ring.png", "io_error", 6),
        ("local_file.png", "url_blocked", 1),
    ],
)
def test_each_answer_of_a_server_has_its_error(
    server: Server, short_timeouts: None, path: str, expected: str, tries: int
) -> None:
    assert outcome(f"{server.url}/{path}") == expected
    assert server.counts[f"/{path}"] == tries


@pytest.mark.parametrize("path", ["loris.png", "drip.png", "silent.png", "more.png"])
def test_slow_server_times_out(server: Server, short_timeouts: None, path: str) -> None:
    with ends_soon():
        assert outcome(f"{server.url}/{path}") == "timeout"


@pytest.mark.parametrize("path", ["endless.png", "chunks.png"])
def test_endless_body_is_read_to_the_limit(server: Server, path: str) -> None:
    with pytest.raises(RemoteError) as problem:
        UrlReader(allow_private_hosts=True).read(f"{server.url}/{path}", limit=2**22)
    assert problem.value.fault.code == "too_large"


def test_retry_after_is_respected(server: Server) -> None:
    assert outcome(f"{server.url}/often.png") == "good"
    assert server.times[1] - server.times[0] >= 1.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2), (" 7 ", 7), ("", None), ("soon", None), ("-1", None), ("9" * 99, 999_999_999)],
)
def test_retry_after_is_parsed_or_ignored(text: str, seconds: float | None) -> None:
    assert web.retry_after(text) == seconds
    assert web.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@pytest.mark.parametrize("path", ["loopback.png", "metadata.png", "decimal.png"])
def test_redirect_to_private_address_is_blocked(
    server: Server, public: None, short_timeouts: None, path: str
) -> None:
    assert outcome(f"{server.url}/{path}", UrlReader()) == "url_blocked"
    assert [requested for requested, _ in server.requests] == [f"/{path}"]
    assert outcome(f"{server.url}/moved.png", UrlReader()) == "good"


def test_private_host_is_blocked_by_default(server: Server) -> None:
    for host in ("127.0.0.1", "localhost", "0", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"):
        assert outcome(f"http://{host}:{server.port}/good.png", UrlReader()) == "url_blocked", host
    assert not server.requests


def test_connection_goes_to_the_vetted_address(
    server: Server, public: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that resolves to another address each time is resolved only once."""
    answers = iter(["127.0.0.1", "10.0.0.1", "127.0.0.1"])
    hosts_resolved: list[str] = []

    def changing(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        hosts_resolved.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    dialled = recorded_connections(monkeypatch)
    url_reader = UrlReader()
    assert outcome(f"http://images.test:{server.port}/good.png", url_reader) == "good"
    assert hosts_resolved == ["images.test"]
    assert dialled == ["127.0.0.1"]
    assert server.requests[0][1]["host"] == f"images.test:{server.port}"
    assert outcome(f"http://images.test:{server.port}/good.png", url_reader) == "url_blocked"
    assert len(dialled) == 1


def recorded_connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The IP addresses of the connections that are opened from now on."""
    opened: list[str] = []
    connect_tcp = transport._Network.connect_tcp

    def record(network: Any, host: str, port: int, **options: Any) -> Any:
        stream = connect_tcp(network, host, port, **options)
        opened.append(stream._socket.getpeername()[0])
        return stream

    monkeypatch.setattr(transport._Network, "connect_tcp", record)
    return opened


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: str) -> None:
    """Let each resolution of any host name give the next of these addresses."""
    remaining = iter(answers)

    def changing(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(remaining), port))]

    monkeypatch.setattr(socket, "getaddrinfo", changing)


def test_connections_are_kept_alive(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.keeps_alive = True
    opened = recorded_connections(monkeypatch)
    reader = UrlReader(allow_private_hosts=True)
    for number in range(5):
        assert outcome(f"{server.url}/good.png?{number}", reader) == "good"
    assert opened == ["127.0.0.1"]


def test_kept_connection_serves_only_its_host_and_address(
    server: Server, public: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an address that is private by now nor another host name uses the connection."""
    server.keeps_alive = True
    opened = recorded_connections(monkeypatch)
    resolve_to(monkeypatch, "127.0.0.1", "10.0.0.1", "127.0.0.1", "127.0.0.1")
    reader = UrlReader()
    url = f"http://images.test:{server.port}/good.png"
    assert outcome(url, reader) == "good"
    assert outcome(url, reader) == "url_blocked"
    assert outcome(url, reader) == "good"
    assert opened == ["127.0.0.1"]
    assert outcome(url.replace("images", "other"), reader) == "good"
    assert opened == ["127.0.0.1", "127.0.0.1"]
    assert server.requests[-1][1]["host"] == f"other.test:{server.port}"


def test_new_address_of_a_host_needs_a_new_connection(
    server: Server, short_timeouts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.keeps_alive = True
    opened = recorded_connections(monkeypatch)
    resolve_to(monkeypatch, "127.0.0.1", *["127.0.0.2"] * 4)
    reader = UrlReader(allow_private_hosts=True)
    url = f"http://images.test:{server.port}/good.png"
    assert outcome(url, reader) == "good"
    assert outcome(url, reader) == "io_error"  # no server listens there
    assert opened == ["127.0.0.1"]


@pytest.mark.parametrize("path", ["surplus.png", "hangup.png"])
def test_unusable_kept_connection_is_replaced(
    server: Server, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes beyond an answer, or a connection closed by the server, do not affect the next row."""
    server.keeps_alive = True
    reader = UrlReader(allow_private_hosts=True)
    monkeypatch.setattr(web, "WAITS_SECONDS", ())  # nothing is tried again after a pause
    assert outcome(f"{server.url}/{path}", reader) == "good"
    for _ in range(3):
        assert outcome(f"{server.url}/good.png", reader) == "good"
    assert server.counts["/good.png"] <= 4


@pytest.mark.slow
def test_slow_body_on_a_kept_connection_times_out(server: Server, short_timeouts: None) -> None:
    server.keeps_alive = True
    reader = UrlReader(allow_private_hosts=True)
    assert outcome(f"{server.url}/good.png", reader) == "good"
    assert outcome(f"{server.url}/drip.png", reader) == "timeout"
    assert outcome(f"{server.url}/silent.png", reader) == "timeout"
    assert outcome(f"{server.url}/good.png", reader) == "good"


def test_name_resolution_has_a_deadline(
    monkeypatch: pytest.MonkeyPatch, short_timeouts: None
) -> None:
    release = threading.Event()
    monkeypatch.setattr(hosts, "RESOLVE_SECONDS", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(200) and [])
    with ends_soon():
        assert outcome("http://images.test/good.png") == "timeout"
    monkeypatch.setattr(hosts, "RESOLVE_SECONDS", 100.0)
    monkeypatch.setattr(url_reader, "FETCH_SECONDS", 100.0)
    reader = UrlReader()
    threading.Timer(0.2, reader.stop).start()
    with ends_soon():
        assert outcome("http://images.test/good.png", reader) == "io_error"
    release.set()


def test_all_tries_of_an_image_share_one_deadline(server: Server) -> None:
    reader = UrlReader(allow_private_hosts=True, fetch_seconds=1)
    with ends_soon():
        assert outcome(f"{server.url}/silent.png", reader) == "timeout"


@pytest.mark.slow
def test_waiting_for_the_slot_of_large_images_does_not_count(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(url_reader, "LARGE_BYTES", 10)
    reader = UrlReader(allow_private_hosts=True, fetch_seconds=scaled(2))
    with reader.fetched(Item(0, "a", "a", f"{server.url}/good.png")) as first:
        assert first.data
        threads = [threading.Thread(target=lambda: codes.append(outcome(url, reader)))]
        url, codes = f"{server.url}/good.png?2", list[str]()
        threads[0].start()
        time.sleep(scaled(2) + 0.5)
    threads[0].join(60)
    assert codes == ["good"]


def test_proxies_of_the_environment_are_ignored(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    assert outcome(f"{server.url}/good.png") == "good"


def test_one_private_address_blocks_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET, 1, 6, "", (one, 80)) for one in ("93.184.216.34", "192.168.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    with pytest.raises(RemoteError):
        vetted_addresses("images.test", 80, allow_private=False)
    assert len(vetted_addresses("images.test", 80, allow_private=True)) == 2


PRIVATE = ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"]
PRIVATE += ["100.64.0.0/10", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"]


@st.composite
def inward(draw: st.DrawFn) -> ipaddress.IPv4Address:
    network = ipaddress.ip_network(draw(st.sampled_from(PRIVATE)))
    offset = draw(st.integers(0, network.num_addresses - 1))
    return ipaddress.IPv4Address(int(network[0]) + offset)


def notations(address: ipaddress.IPv4Address) -> list[str]:
    """All notations of an address that the resolver of the system understands."""
    number = int(address)
    a, b, c, d = address.packed
    rest = number & 0xFFFFFF
    return [
        str(address), str(number), hex(number), f"0{number:o}", f"{a}.{rest}", f"0x{a:x}.{rest:#x}",
        f"{a}.{b}.{c << 8 | d}", f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"0x{a:x}.{b}.0{c:o}.{d}",
    ]  # fmt: skip


@given(inward())
def test_private_address_is_blocked_in_every_notation(address: ipaddress.IPv4Address) -> None:
    for host in notations(address):
        with pytest.raises(RemoteError):
            vetted_addresses(host, 80, allow_private=False)


@given(inward())
def test_private_address_embedded_in_ipv6_is_blocked(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for outer in (0xFFFF << 32, 0, 0x64FF9B << 96, 0x2002 << 112):
        inner = number << 80 if outer == 0x2002 << 112 else number
        assert not is_public(str(ipaddress.IPv6Address(outer | inner))), hex(outer)


@pytest.mark.parametrize(
    ("text", "is_intentional"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1:248:1893:25c8:1946", True),
        ("::ffff:93.184.216.34", True),
        ("64:ff9b::5db8:d822", True),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("fec0::1", False),
        ("ff02::1", False),
        ("64:ff9b:1::7f00:1", False),
        ("2001:0:7f00:1::", False),
        ("fd00:ec2::254", False),
        ("168.63.129.16", False),
        ("224.0.1.1", False),
        ("nothing", False),
    ],
)
def test_public_addresses_are_recognized(text: str, is_intentional: bool) -> None:
    assert is_public(text) == is_intentional


def test_credentials_in_a_url_are_refused(server: Server) -> None:
    host = f"user:p%40ss@127.0.0.1:{server.port}"
    assert outcome(f"http://{host}/good.png") == "url_blocked"
    assert outcome("s3://key:secret@bucket/good.png") == "url_blocked"
    options = ReadOptions(url_reader=UrlReader(allow_private_hosts=True))
    for url in (f"http://{host}/good.png", "s3://key:secret@bucket/x.jsonl"):
        with pytest.raises(UsageError, match="user name or a password") as problem:
            open_sources([url], options)
        assert "p%40ss" not in str(problem.value)
        assert "secret" not in str(problem.value) + problem.value.hint
    lines = [{"image": f"http://{host}/good.png"}, {"image": f"{server.url}/good.png"}]
    server.files["/rows.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    refused, read = open_sources([f"{server.url}/rows.jsonl"], options)
    assert refused.fault is not None
    assert (refused.fault.code, refused.path) == ("url_blocked", None)
    assert refused.image == f"http://127.0.0.1:{server.port}/good.png"
    assert read.fault is None
    server.redirects["/away.png"] = f"http://{host}/good.png"
    assert outcome(f"{server.url}/away.png") == "url_blocked"
    assert {path for path, _ in server.requests} == {"/rows.jsonl", "/away.png"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:p@h/x", "https://h/x"),
        ("--x=https://u:p@q@h/x@y", "--x=https://h/x@y"),
        ("s3://anonymous@b/k", "s3://anonymous@b/k"),
        ("s3://key:secret@b/k@2x.png", "s3://b/k@2x.png"),
        ("hf://datasets/a/b@main/x.png", "hf://datasets/a/b@main/x.png"),
        ("https://h/?to=a@b.c", "https://h/?to=a@b.c"),
        ("me@h", "me@h"),
    ],
)
def test_url_is_shown_without_credentials(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


def test_urls_are_split_and_joined() -> None:
    assert url_path("https://h/a%20b.PNG?x=1.gif#y.jpg") == "/a b.PNG"
    assert parent_url("https://h/a/m.jsonl?key=a/b") == "https://h/a"
    assert parent_url("https://h") == "https://h/"
    assert parent_url("s3://b/m.jsonl") == "s3://b/"
    assert join_url("https://h/a", "b c?.png") == "https://h/a/b%20c%3F.png"
    assert join_url("s3://b/a", "b c?.png") == "s3://b/a/b c?.png"


def test_untrusted_certificate_is_refused(
    monkeypatch: pytest.MonkeyPatch, short_timeouts: None
) -> None:
    with Server(PNG, CERTIFICATE) as server:
        assert outcome(f"{server.url}/good.png") == "io_error"
        assert not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        assert outcome(f"https://localhost:{server.port}/good.png") == "good"
        assert outcome(f"{server.url}/good.png") == "io_error"  # the certificate names another host
        server.redirects["/down.png"] = f"http://localhost:{server.port}/good.png"
        assert outcome(f"https://localhost:{server.port}/down.png") == "url_blocked"


def with_manifests(server: Server) -> ReadOptions:
    """Options to read a manifest, an archive and a data set that are put on the server."""
    lines = [{"image": name} for name in ("good.png", f"{server.url}/gone.png", "../x.png")]
    server.files["/rows.jsonl"] = "".join(json.dumps(line) + "\n" for line in lines).encode()
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for n in range(40):
            header = tarfile.TarInfo(f"{n}.png")
            header.size = len(PNG)
            tar.addfile(header, io.BytesIO(PNG))
    server.files["/x.tar"] = archive.getvalue()
    table = io.BytesIO()
    images = [{"bytes": PNG, "path": f"{n}.png"} for n in range(40)]
    pq.write_table(pa.table({"image": images}), table, row_group_size=7)
    server.files["/x.parquet"] = table.getvalue()
    return ReadOptions(url_reader=UrlReader(allow_private_hosts=True))


@pytest.mark.parametrize("takes_ranges", [True, False])
def test_manifests_and_archives_are_read_from_a_server(
    server: Server, short_timeouts: None, takes_ranges: bool
) -> None:
    reading = with_manifests(server)
    server.supports_ranges = takes_ranges
    first, second, third = open_sources([f"{server.url}/rows.jsonl"], reading)
    assert (first.id, first.image) == ("good.png", f"{server.url}/good.png")
    assert (second.path, second.fault) == (f"{server.url}/gone.png", None)
    assert third.fault is not None
    assert third.fault.code == "path_not_allowed"
    for name in ("x.tar", "x.parquet"):
        items = list(open_sources([f"{server.url}/{name}"], reading))
        assert [item.data for item in items] == [PNG] * 40, name


@pytest.mark.parametrize("name", ["rows.jsonl", "x.tar", "x.parquet"])
def test_cut_connection_is_resumed(server: Server, short_timeouts: None, name: str) -> None:
    reading = with_manifests(server)
    whole = [item.data for item in open_sources([f"{server.url}/{name}"], reading)]
    server.cut_at = [50, 700, 1, 30, 2000]
    assert [item.data for item in open_sources([f"{server.url}/{name}"], reading)] == whole
    assert not server.cut_at


def test_file_that_changes_while_read_is_an_error(server: Server, short_timeouts: None) -> None:
    reading = with_manifests(server)
    server.cut_at = [700]
    file = reading.url_reader.open(f"{server.url}/x.tar", 512)
    file.read(512)
    server.files["/x.tar"] = server.files["/x.tar"][:-1] + b"\1"
    with pytest.raises(RemoteError, match="changed"):
        file.read()


def test_unusable_web_source_is_a_usage_error(server: Server, short_timeouts: None) -> None:
    reading = ReadOptions(url_reader=UrlReader(allow_private_hosts=True))
    for name in ("", "folder/", "*.png", "gone.jsonl", "unknown.tar", "page.html"):
        with pytest.raises(UsageError) as problem:
            open_sources([f"{server.url}/{name}"], reading)
        assert problem.value.hint
    server.files["/x.jsonl"] = b"{\n"
    with pytest.raises(ManifestError, match="line 1"):
        open_sources([f"{server.url}/x.jsonl"], reading)


def test_images_are_fetched_concurrently_in_order(server: Server) -> None:
    server.pause_seconds = 0.2
    items = [Item(n, str(n), "x", f"{server.url}/good.png?{n}") for n in range(32)]
    found = list(
        prefetch(
            items,
            ImageDecoder(ImageSpec(28)),
            workers=1,
            total=None,
            fetcher=UrlReader(allow_private_hosts=True),
        )
    )
    assert [image.item.index for image in found] == list(range(32))
    assert all(image.fault is None and image.item.data is None for image in found)
    assert all(image.load_ms > 200 for image in found)
    assert server.most_at_once > 2


def test_run_ends_without_waiting_for_servers(server: Server) -> None:
    items = [Item(n, str(n), "x", f"{server.url}/{name}.png") for n, name in
             enumerate(["good", *["silent"] * 20])]  # fmt: skip
    url_reader = UrlReader(allow_private_hosts=True)
    images = prefetch(items, ImageDecoder(ImageSpec(28)), workers=1, total=None, fetcher=url_reader)
    next(images)
    with ends_soon():
        images.close()  # type: ignore[attr-defined]


@pytest.mark.nightly
def test_command_line_reads_urls_only_if_allowed(server: Server, tmp_path: Path) -> None:
    with_password = f"http://me:secret@127.0.0.1:{server.port}/good.png"
    names = [f"{server.url}/good.png", f"{server.url}/gone.png", with_password]
    names.append("ftp://me:secret@host/x.png")

    def ran(*options: str) -> tuple[int, list[Any], str]:
        run = subprocess.run(
            [sys.executable, ROOT / "tests" / "support" / "pretend.py", "caption", *options],
            input="".join(f"{name}\n" for name in names),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        file = tmp_path / "out.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        rows = [json.loads(line)["error"] for line in lines]
        return run.returncode, rows, run.stdout + run.stderr

    output = ["-o", "out.jsonl", "--model", "demo", "--overwrite"]
    code, errors, stderr = ran("-", *output)
    assert (code, errors) == (3, ["url_blocked"] * 4)
    code, errors, stderr = ran("-", *output, "--allow-urls")
    assert (code, errors) == (3, ["url_blocked"] * 4)
    assert not server.requests
    code, errors, stderr = ran("-", *output, "--allow-urls", "--allow-private-hosts")
    assert (code, errors) == (3, [None, "missing", "url_blocked", "url_blocked"])
    code, errors, stderr = ran(names[0], *output, "--allow-urls", "--allow-private-hosts", "-v")
    assert (code, errors) == (0, [None]), stderr
    code, _, refusal = ran(names[0], *output)
    assert code == 2
    assert "--allow-urls" in refusal
    code, _, password_refusal = ran(with_password, *output, "--allow-urls", "--allow-private-hosts")
    assert code == 2
    assert "user name or a password" in password_refusal
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"secret" not in written
    assert "secret" not in stderr + refusal + password_refusal
