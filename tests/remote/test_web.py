"""Addresses of the web: whatever a server does, a picture costs its own row, and no more of it."""

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
from pgcli.remote import RemoteError, UrlReader, hosts, transport, web, web_file
from pgcli.remote.hosts import is_public, vetted_addresses
from pgcli.remote.urls import join_url, parent_url, url_path, without_credentials
from pgcli.sources import ReadOptions, open_sources
from pgcli.workers import prefetch
from tests.support.awkward import drawing, encoded
from tests.support.misbehaving import Server

ROOT = Path(__file__).parents[2]
PNG = encoded(drawing(), "PNG")
CERTIFICATE = ROOT / "tests" / "support" / "localhost.pem"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(PNG) as one:
        yield one


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits of tenths of a second in place of seconds."""
    monkeypatch.setattr(web, "WAITS_SECONDS", (0.01, 0.01, 0.01))
    monkeypatch.setattr(web, "TOTAL_SECONDS", 1.0)
    monkeypatch.setattr(web_file, "TOTAL_SECONDS", 1.0)
    monkeypatch.setattr(transport, "READ_SECONDS", 0.3)


@pytest.fixture
def public(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.1 as if it were anybody's, and no other machine of one's own."""
    asked = hosts.is_public
    monkeypatch.setattr(hosts, "is_public", lambda text: text == "127.0.0.1" or asked(text))


def looked(address: str, url_reader: UrlReader | None = None) -> str:
    """What the picture's row says: `good`, or the code of its fault."""
    url_reader = url_reader or UrlReader(allow_private_hosts=True)
    with url_reader.fetched(Item(0, "x", "x", address)) as item:
        picture = decode(item, ImageSpec(28), ImageLimits())
    return picture.fault.code if picture.fault else "good"


@pytest.mark.parametrize(
    ("path", "fate", "tries"),
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
def test_each_answer_of_a_server_has_its_fate(
    server: Server, hurried: None, path: str, fate: str, tries: int
) -> None:
    assert looked(f"{server.url}/{path}") == fate
    assert server.counts[f"/{path}"] == tries


@pytest.mark.parametrize("path", ["loris.png", "drip.png", "silent.png", "more.png"])
def test_a_server_that_takes_its_time_is_given_up(server: Server, hurried: None, path: str) -> None:
    began = time.monotonic()
    assert looked(f"{server.url}/{path}") == "timeout"
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("path", ["endless.png", "chunks.png"])
def test_a_body_without_end_is_read_to_the_limit(server: Server, path: str) -> None:
    with pytest.raises(RemoteError) as problem:
        UrlReader(allow_private_hosts=True).read(f"{server.url}/{path}", limit=2**22)
    assert problem.value.fault.code == "too_large"


def test_a_server_that_names_a_time_is_asked_again_then(server: Server) -> None:
    assert looked(f"{server.url}/often.png") == "good"
    assert server.times[1] - server.times[0] >= 1.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 2), (" 7 ", 7), ("", None), ("soon", None), ("-1", None), ("9" * 99, 999_999_999)],
)
def test_a_time_to_come_back_is_understood_or_passed_over(text: str, seconds: float | None) -> None:
    assert web.retry_after(text) == seconds
    assert web.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@pytest.mark.parametrize("path", ["loopback.png", "metadata.png", "decimal.png"])
def test_no_server_leads_to_a_machine_that_is_not_public(
    server: Server, public: None, hurried: None, path: str
) -> None:
    assert looked(f"{server.url}/{path}", UrlReader()) == "url_blocked"
    assert [asked for asked, _ in server.asked] == [f"/{path}"]
    assert looked(f"{server.url}/moved.png", UrlReader()) == "good"


def test_an_address_of_one_s_own_machine_is_not_asked_unless_allowed(server: Server) -> None:
    for host in ("127.0.0.1", "localhost", "0", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"):
        assert looked(f"http://{host}:{server.port}/good.png", UrlReader()) == "url_blocked", host
    assert not server.asked


def test_what_is_dialled_is_the_address_that_was_looked_at(
    server: Server, public: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that means another machine each time it is asked for gains nothing by that."""
    answers = iter(["127.0.0.1", "10.0.0.1", "127.0.0.1"])
    asked: list[str] = []

    def changing(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), port))]

    monkeypatch.setattr(socket, "getaddrinfo", changing)
    dialled = recorded_connections(monkeypatch)
    url_reader = UrlReader()
    assert looked(f"http://pictures.test:{server.port}/good.png", url_reader) == "good"
    assert asked == ["pictures.test"]
    assert dialled == ["127.0.0.1"]
    assert server.asked[0][1]["host"] == f"pictures.test:{server.port}"
    assert looked(f"http://pictures.test:{server.port}/good.png", url_reader) == "url_blocked"
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
        assert looked(f"{server.url}/good.png?{number}", reader) == "good"
    assert opened == ["127.0.0.1"]


def test_a_kept_connection_serves_its_vetted_address_alone(
    server: Server, public: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither an address that is private by now nor another host name uses the connection."""
    server.keeps_alive = True
    opened = recorded_connections(monkeypatch)
    resolve_to(monkeypatch, "127.0.0.1", "10.0.0.1", "127.0.0.1", "127.0.0.1")
    reader = UrlReader()
    url = f"http://pictures.test:{server.port}/good.png"
    assert looked(url, reader) == "good"
    assert looked(url, reader) == "url_blocked"
    assert looked(url, reader) == "good"
    assert opened == ["127.0.0.1"]
    assert looked(url.replace("pictures", "other"), reader) == "good"
    assert opened == ["127.0.0.1", "127.0.0.1"]
    assert server.asked[-1][1]["host"] == f"other.test:{server.port}"


def test_a_kept_connection_that_follows_a_new_address_is_another(
    server: Server, hurried: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.keeps_alive = True
    opened = recorded_connections(monkeypatch)
    resolve_to(monkeypatch, "127.0.0.1", *["127.0.0.2"] * 4)
    reader = UrlReader(allow_private_hosts=True)
    url = f"http://pictures.test:{server.port}/good.png"
    assert looked(url, reader) == "good"
    assert looked(url, reader) == "io_error"  # nothing listens there
    assert opened == ["127.0.0.1"]


@pytest.mark.parametrize("path", ["surplus.png", "hangup.png"])
def test_a_kept_connection_that_is_unusable_is_replaced(server: Server, path: str) -> None:
    """Bytes beyond an answer, or a connection closed by the server, cost the next row nothing."""
    server.keeps_alive = True
    reader = UrlReader(allow_private_hosts=True)
    began = time.monotonic()
    assert looked(f"{server.url}/{path}", reader) == "good"
    for _ in range(3):
        assert looked(f"{server.url}/good.png", reader) == "good"
    assert server.counts["/good.png"] <= 4
    assert time.monotonic() - began < 0.5  # without the pauses of retries


def test_a_slow_body_on_a_kept_connection_times_out(server: Server, hurried: None) -> None:
    server.keeps_alive = True
    reader = UrlReader(allow_private_hosts=True)
    assert looked(f"{server.url}/good.png", reader) == "good"
    assert looked(f"{server.url}/drip.png", reader) == "timeout"
    assert looked(f"{server.url}/silent.png", reader) == "timeout"
    assert looked(f"{server.url}/good.png", reader) == "good"


def test_name_resolution_has_a_deadline(monkeypatch: pytest.MonkeyPatch, hurried: None) -> None:
    release = threading.Event()
    monkeypatch.setattr(hosts, "RESOLVE_SECONDS", 0.1)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(20) and [])
    began = time.monotonic()
    assert looked("http://pictures.test/good.png") == "timeout"
    assert time.monotonic() - began < 3
    monkeypatch.setattr(hosts, "RESOLVE_SECONDS", 10.0)
    monkeypatch.setattr(web, "TOTAL_SECONDS", 10.0)
    reader = UrlReader()
    threading.Timer(0.2, reader.stop).start()
    began = time.monotonic()
    assert looked("http://pictures.test/good.png", reader) == "io_error"
    assert time.monotonic() - began < 3
    release.set()


def test_proxies_of_the_environment_are_ignored(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    assert looked(f"{server.url}/good.png") == "good"


def test_a_name_with_a_single_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(socket.AF_INET, 1, 6, "", (one, 80)) for one in ("93.184.216.34", "192.168.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    with pytest.raises(RemoteError):
        vetted_addresses("pictures.test", 80, allow_private=False)
    assert len(vetted_addresses("pictures.test", 80, allow_private=True)) == 2


PRIVATE = ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"]
PRIVATE += ["100.64.0.0/10", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4"]


@st.composite
def inward(draw: st.DrawFn) -> ipaddress.IPv4Address:
    network = ipaddress.ip_network(draw(st.sampled_from(PRIVATE)))
    offset = draw(st.integers(0, network.num_addresses - 1))
    return ipaddress.IPv4Address(int(network[0]) + offset)


def spellings(address: ipaddress.IPv4Address) -> list[str]:
    """An address as the system's resolver understands it, in every way."""
    number = int(address)
    a, b, c, d = address.packed
    rest = number & 0xFFFFFF
    return [
        str(address), str(number), hex(number), f"0{number:o}", f"{a}.{rest}", f"0x{a:x}.{rest:#x}",
        f"{a}.{b}.{c << 8 | d}", f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"0x{a:x}.{b}.0{c:o}.{d}",
    ]  # fmt: skip


@given(inward())
def test_no_spelling_of_a_private_address_passes(address: ipaddress.IPv4Address) -> None:
    for host in spellings(address):
        with pytest.raises(RemoteError):
            vetted_addresses(host, 80, allow_private=False)


@given(inward())
def test_no_private_address_passes_inside_another(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    for outer in (0xFFFF << 32, 0, 0x64FF9B << 96, 0x2002 << 112):
        inner = number << 80 if outer == 0x2002 << 112 else number
        assert not is_public(str(ipaddress.IPv6Address(outer | inner))), hex(outer)


@pytest.mark.parametrize(
    ("text", "is_meant"),
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
def test_an_address_is_public_or_not(text: str, is_meant: bool) -> None:
    assert is_public(text) == is_meant


def test_credentials_in_a_url_are_refused(server: Server) -> None:
    host = f"user:p%40ss@127.0.0.1:{server.port}"
    assert looked(f"http://{host}/good.png") == "url_blocked"
    assert looked("s3://key:secret@bucket/good.png") == "url_blocked"
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
    server.leads["/away.png"] = f"http://{host}/good.png"
    assert looked(f"{server.url}/away.png") == "url_blocked"
    assert {path for path, _ in server.asked} == {"/rows.jsonl", "/away.png"}


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
def test_an_address_is_shown_without_its_user(text: str, shown: str) -> None:
    assert without_credentials(text) == shown


def test_addresses_are_taken_apart_and_joined() -> None:
    assert url_path("https://h/a%20b.PNG?x=1.gif#y.jpg") == "/a b.PNG"
    assert parent_url("https://h/a/m.jsonl?key=a/b") == "https://h/a"
    assert parent_url("https://h") == "https://h/"
    assert parent_url("s3://b/m.jsonl") == "s3://b/"
    assert join_url("https://h/a", "b c?.png") == "https://h/a/b%20c%3F.png"
    assert join_url("s3://b/a", "b c?.png") == "s3://b/a/b c?.png"


def test_a_certificate_that_nobody_vouches_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, hurried: None
) -> None:
    with Server(PNG, CERTIFICATE) as server:
        assert looked(f"{server.url}/good.png") == "io_error"
        assert not server.asked
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        assert looked(f"https://localhost:{server.port}/good.png") == "good"
        assert looked(f"{server.url}/good.png") == "io_error"  # it vouches for the name alone
        server.leads["/down.png"] = f"http://localhost:{server.port}/good.png"
        assert looked(f"https://localhost:{server.port}/down.png") == "url_blocked"


def held(server: Server) -> ReadOptions:
    """A manifest, an archive and a data set on the server."""
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
def test_manifests_archives_and_data_sets_are_read_from_a_server(
    server: Server, hurried: None, takes_ranges: bool
) -> None:
    reading = held(server)
    server.takes_ranges = takes_ranges
    first, second, third = open_sources([f"{server.url}/rows.jsonl"], reading)
    assert (first.id, first.image) == ("good.png", f"{server.url}/good.png")
    assert (second.path, second.fault) == (f"{server.url}/gone.png", None)
    assert third.fault is not None
    assert third.fault.code == "path_not_allowed"
    for name in ("x.tar", "x.parquet"):
        items = list(open_sources([f"{server.url}/{name}"], reading))
        assert [item.data for item in items] == [PNG] * 40, name


@pytest.mark.parametrize("name", ["rows.jsonl", "x.tar", "x.parquet"])
def test_a_file_whose_connection_breaks_off_is_read_on(
    server: Server, hurried: None, name: str
) -> None:
    reading = held(server)
    whole = [item.data for item in open_sources([f"{server.url}/{name}"], reading)]
    server.cut_at = [50, 700, 1, 30, 2000]
    assert [item.data for item in open_sources([f"{server.url}/{name}"], reading)] == whole
    assert not server.cut_at


def test_a_file_that_changes_under_the_reader_is_noticed(server: Server, hurried: None) -> None:
    reading = held(server)
    server.cut_at = [700]
    file = reading.url_reader.open(f"{server.url}/x.tar", 512)
    file.read(512)
    server.files["/x.tar"] = server.files["/x.tar"][:-1] + b"\1"
    with pytest.raises(RemoteError, match="changed"):
        file.read()


def test_a_server_that_lists_nothing_and_files_that_are_not_there_are_said(
    server: Server, hurried: None
) -> None:
    reading = ReadOptions(url_reader=UrlReader(allow_private_hosts=True))
    for name in ("", "folder/", "*.png", "gone.jsonl", "unknown.tar", "page.html"):
        with pytest.raises(UsageError) as problem:
            open_sources([f"{server.url}/{name}"], reading)
        assert problem.value.hint
    server.files["/x.jsonl"] = b"{\n"
    with pytest.raises(ManifestError, match="line 1"):
        open_sources([f"{server.url}/x.jsonl"], reading)


def test_pictures_are_fetched_many_at_once_and_come_in_order(server: Server) -> None:
    server.pause_seconds = 0.2
    items = [Item(n, str(n), "x", f"{server.url}/good.png?{n}") for n in range(32)]
    began = time.monotonic()
    found = list(
        prefetch(
            items,
            ImageDecoder(ImageSpec(28)),
            workers=1,
            total=None,
            fetcher=UrlReader(allow_private_hosts=True),
        )
    )
    assert [picture.item.index for picture in found] == list(range(32))
    assert all(picture.fault is None and picture.item.data is None for picture in found)
    assert all(picture.load_ms > 200 for picture in found)
    assert time.monotonic() - began < 3.2  # half of what one after the other would take


def test_a_run_that_ends_waits_for_no_server(server: Server) -> None:
    items = [Item(n, str(n), "x", f"{server.url}/{name}.png") for n, name in
             enumerate(["good", *["silent"] * 20])]  # fmt: skip
    url_reader = UrlReader(allow_private_hosts=True)
    pictures = prefetch(
        items, ImageDecoder(ImageSpec(28)), workers=1, total=None, fetcher=url_reader
    )
    next(pictures)
    began = time.monotonic()
    pictures.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 2


def test_the_command_line_reads_addresses_only_where_it_is_told_to(
    server: Server, tmp_path: Path
) -> None:
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
    code, errors, said = ran("-", *output)
    assert (code, errors) == (3, ["url_blocked"] * 4)
    code, errors, said = ran("-", *output, "--allow-urls")
    assert (code, errors) == (3, ["url_blocked"] * 4)
    assert not server.asked
    code, errors, said = ran("-", *output, "--allow-urls", "--allow-private-hosts")
    assert (code, errors) == (3, [None, "missing", "url_blocked", "url_blocked"])
    code, errors, said = ran(names[0], *output, "--allow-urls", "--allow-private-hosts", "-v")
    assert (code, errors) == (0, [None]), said
    code, _, said_too = ran(names[0], *output)
    assert code == 2
    assert "--allow-urls" in said_too
    code, _, said_as_well = ran(with_password, *output, "--allow-urls", "--allow-private-hosts")
    assert code == 2
    assert "user name or a password" in said_as_well
    written = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"secret" not in written
    assert "secret" not in said + said_too + said_as_well
