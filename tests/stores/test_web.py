"""Web URLs: a misbehaving server costs only the row of its image."""

import ipaddress
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgcli.errors import SourceUnavailable
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.records import Item
from pgcli.stores import Reader, RemoteError, make_reader, reader, web
from pgcli.stores.web import WebFiles, checked_addresses, is_public
from tests.support.awkward import drawing, encoded
from tests.support.misbehaving import Server
from tests.support.runs import ends_soon, run_python

ROOT = Path(__file__).parents[2]
PNG = encoded(drawing(), "PNG")
CERTIFICATE = ROOT / "tests" / "support" / "localhost.pem"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(PNG) as one:
        yield one


@pytest.fixture
def short_pauses(monkeypatch) -> None:
    """Pauses of hundredths of a second between tries."""
    monkeypatch.setattr(web, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.fixture
def short_timeouts(short_pauses, monkeypatch) -> None:
    """Also timeouts of tenths of a second."""
    monkeypatch.setattr(reader, "FETCH_SECONDS", 1.0)
    monkeypatch.setattr(reader, "FILE_SECONDS", 1.0)
    monkeypatch.setattr(web, "READ_SECONDS", 0.3)


@pytest.fixture
def public(monkeypatch) -> None:
    """Treat 127.0.0.1 as public, but no other private address."""
    is_public = web.is_public
    monkeypatch.setattr(web, "is_public", lambda text: text == "127.0.0.1" or is_public(text))


def outcome(address: str, reading: Reader | None = None) -> str:
    """`good`, or the error code in the row of the image at the URL."""
    reading = reading or Reader(allow_private_hosts=True)
    with reading.fetched(Item(0, "x", "x", address)) as item:
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
        ("negative.png", "io_error", 4),
        ("huge.png", "too_large", 2),
        ("nonsense.png", "io_error", 4),
        ("dropped.png", "io_error", 4),
        ("headers_without_end.png", "io_error", 4),
        ("ring.png", "io_error", 6),
        ("local_file.png", "url_blocked", 1),
    ],
)
def test_each_response_of_a_server_has_its_error(server, short_pauses, path, expected, tries):
    assert outcome(f"{server.url}/{path}") == expected
    assert server.counts[f"/{path}"] == tries


def test_request_keeps_the_spelling_of_path_and_host(server):
    server.files["/a;b%20c/%C3%A9.png;x"] = PNG
    assert outcome(f"{server.url}/a;b c/é.png;x#part") == "good"
    [(path, headers)] = server.requests
    assert path == "/a;b%20c/%C3%A9.png;x"
    assert headers["host"] == f"127.0.0.1:{server.port}"
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("path", ["loris.png", "drip.png", "silent.png", "more.png"])
def test_slow_server_times_out(server, short_timeouts, path):
    with ends_soon():
        assert outcome(f"{server.url}/{path}") == "timeout"


@pytest.mark.parametrize("path", ["endless.png", "chunks.png"])
def test_endless_body_is_read_to_the_limit(server, path):
    with pytest.raises(RemoteError) as problem:
        Reader(allow_private_hosts=True).read(f"{server.url}/{path}", limit=2**22)
    assert problem.value.fault.code == "too_large"


def test_retry_after_is_respected(server, short_pauses, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(reader.Deadline, "pause", lambda self, seconds: pauses.append(seconds))
    assert outcome(f"{server.url}/often.png") == "good"
    assert pauses == [1]


def test_wait_longer_than_the_deadline_does_not_start(server):
    reading = Reader(allow_private_hosts=True)
    with ends_soon():
        assert outcome(f"{server.url}/later_today.png", reading) == "io_error"
    assert server.counts["/later_today.png"] == 1


@pytest.mark.parametrize("path", ["loopback.png", "metadata.png", "decimal.png"])
def test_redirect_to_private_address_is_blocked(server, public, short_pauses, path):
    assert outcome(f"{server.url}/{path}", Reader()) == "url_blocked"
    assert [requested for requested, _ in server.requests] == [f"/{path}"]
    assert outcome(f"{server.url}/moved.png", Reader()) == "good"


@pytest.mark.parametrize("host", ["192.0.0.192", "198.18.0.1", "[::ffff:c000:c0]", "3221225664"])
def test_special_address_is_never_contacted(server, public, host):
    """192.0.0.192 is the metadata service of a cloud; Python once called it public."""
    server.redirects["/away.png"] = f"http://{host}/latest"
    began = time.monotonic()
    assert outcome(f"http://{host}/latest", Reader()) == "url_blocked"
    assert outcome(f"{server.url}/away.png", Reader()) == "url_blocked"
    with pytest.raises(RemoteError, match="private host"):
        Reader().open(f"{server.url}/away.png")
    assert time.monotonic() - began < web.CONNECT_SECONDS


def test_private_host_is_blocked_by_default(server):
    for host in ("127.0.0.1", "localhost", "0", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]"):
        assert outcome(f"http://{host}:{server.port}/good.png", Reader()) == "url_blocked", host
    assert not server.requests


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Have each resolution of a host name return the next of these addresses; the names."""
    remaining, names, real = iter(answers), list[str](), socket.getaddrinfo

    def resolve(host: str, port: int, *options: Any, **more: Any) -> list[Any]:
        if host[0].isdigit():
            return real(host, port, *options, **more)
        names.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(remaining), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return names


def recorded_connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The IP addresses of the connections opened from now on."""
    opened: list[str] = []
    connect_tcp = web.Network.connect_tcp

    def record(*arguments: Any, **options: Any) -> Any:
        stream = connect_tcp(*arguments, **options)
        opened.append(stream.get_extra_info("server_addr")[0])
        return stream

    monkeypatch.setattr(web.Network, "connect_tcp", record)
    return opened


def test_connection_goes_to_the_checked_address(server, public, monkeypatch):
    """A name that resolves to a new address each time is resolved once per connection."""
    names = resolve_to(monkeypatch, "127.0.0.1", "10.0.0.1", "127.0.0.1")
    opened = recorded_connections(monkeypatch)
    reading = Reader()
    assert outcome(f"http://images.test:{server.port}/good.png", reading) == "good"
    assert names == ["images.test"]
    assert opened == ["127.0.0.1"]
    assert server.requests[0][1]["host"] == f"images.test:{server.port}"
    assert outcome(f"http://images.test:{server.port}/good.png", reading) == "url_blocked"
    assert len(opened) == 1


def test_all_addresses_of_a_host_are_tried(server, monkeypatch):
    both = ["127.0.0.2", "127.0.0.1"]  # no server listens at the first
    monkeypatch.setattr(web, "checked_addresses", lambda *_, **__: both)
    assert outcome(f"http://images.test:{server.port}/good.png") == "good"
    assert len(server.requests) == 1


def test_connections_are_kept_alive(server, monkeypatch):
    server.keeps_alive = True
    opened = recorded_connections(monkeypatch)
    reading = Reader(allow_private_hosts=True)
    for number in range(5):
        assert outcome(f"{server.url}/good.png?{number}", reading) == "good"
    assert opened == ["127.0.0.1"]


def test_kept_connection_serves_only_its_host(server, public, monkeypatch):
    """It stays at the checked address, whatever the name resolves to later."""
    server.keeps_alive = True
    opened = recorded_connections(monkeypatch)
    names = resolve_to(monkeypatch, "127.0.0.1", "127.0.0.1", "10.0.0.1")
    reading = Reader()
    url = f"http://images.test:{server.port}/good.png"
    assert [outcome(url, reading) for _ in range(3)] == ["good"] * 3
    assert opened == ["127.0.0.1"]
    assert outcome(url.replace("images", "other"), reading) == "good"
    assert opened == ["127.0.0.1", "127.0.0.1"]
    assert server.requests[-1][1]["host"] == f"other.test:{server.port}"
    assert outcome(url.replace("images", "third"), reading) == "url_blocked"
    assert names == ["images.test", "other.test", "third.test"]


@pytest.mark.parametrize("path", ["surplus.png", "hangup.png"])
def test_unusable_kept_connection_is_replaced(server, path, monkeypatch):
    """Bytes after a response, or a connection closed by the server, do not affect the next row."""
    server.keeps_alive = True
    reading = Reader(allow_private_hosts=True)
    assert outcome(f"{server.url}/{path}", reading) == "good"
    for _ in range(3):
        assert outcome(f"{server.url}/good.png", reading) == "good"
    assert server.counts["/good.png"] <= 4


def test_name_resolution_has_a_deadline(monkeypatch, short_timeouts):
    release = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: release.wait(200) and [])
    with ends_soon():
        assert outcome("http://images.test/good.png") == "timeout"
    monkeypatch.setattr(reader, "FETCH_SECONDS", 100.0)
    reading = Reader()
    threading.Timer(0.2, reading.stop).start()
    with ends_soon():
        assert outcome("http://images.test/good.png", reading) == "io_error"
    release.set()


def test_one_private_address_blocks_the_host(monkeypatch):
    both = [(socket.AF_INET, 1, 6, "", (one, 80)) for one in ("93.184.216.34", "192.168.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    with pytest.raises(RemoteError):
        checked_addresses("images.test", 80, allow_private=False)
    assert len(checked_addresses("images.test", 80, allow_private=True)) == 2


PRIVATE = ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16"]
PRIVATE += ["100.64.0.0/10", "0.0.0.0/8", "224.0.0.0/4", "240.0.0.0/4", "192.0.0.0/24"]
PRIVATE += ["192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24"]


@st.composite
def inward(draw: st.DrawFn) -> ipaddress.IPv4Address:
    network = ipaddress.ip_network(draw(st.sampled_from(PRIVATE)))
    offset = draw(st.integers(0, network.num_addresses - 1))
    return ipaddress.IPv4Address(int(network[0]) + offset)


def notations(address: ipaddress.IPv4Address) -> list[str]:
    """All notations of an address that the system's resolver accepts."""
    number = int(address)
    a, b, c, d = address.packed
    rest = number & 0xFFFFFF
    return [
        str(address), str(number), hex(number), f"0{number:o}", f"{a}.{rest}", f"0x{a:x}.{rest:#x}",
        f"{a}.{b}.{c << 8 | d}", f"0{a:o}.0{b:o}.0{c:o}.0{d:o}", f"0x{a:x}.{b}.0{c:o}.{d}",
    ]  # fmt: skip


@given(inward())
def test_private_address_is_blocked_in_every_notation(address):
    for host in notations(address):
        with pytest.raises(RemoteError):
            checked_addresses(host, 80, allow_private=False)


@given(inward())
def test_private_address_embedded_in_ipv6_is_blocked(address):
    number = int(address)
    for outer in (0xFFFF << 32, 0, 0x64FF9B << 96, 0x2002 << 112):
        inner = number << 80 if outer == 0x2002 << 112 else number
        assert not is_public(str(ipaddress.IPv6Address(outer | inner))), hex(outer)


PUBLIC = """
    93.184.216.34 2606:2800:220:1:248:1893:25c8:1946 ::ffff:93.184.216.34 64:ff9b::5db8:d822
    2a00:1450:4001:80b::200e
""".split()
NOT_PUBLIC = """
    ::1 fe80::1%eth0 fc00::1 ff02::1 64:ff9b:1::7f00:1 2001:0:7f00:1:: 168.63.129.16 192.175.48.1
    ::ffff:0:808:808 2001:1::1 2001:db8::1 3fff::1 4000::1 100::1 nothing
""".split()


@pytest.mark.parametrize("text", [*PUBLIC, *NOT_PUBLIC])
def test_public_addresses_are_recognized(text):
    assert is_public(text) == (text in PUBLIC)


def test_credentials_in_a_url_are_rejected(server):
    host = f"user:p%40ss@127.0.0.1:{server.port}"
    assert outcome(f"http://{host}/good.png") == "url_blocked"
    assert outcome("s3://key:secret@bucket/good.png") == "url_blocked"
    server.redirects["/away.png"] = f"http://{host}/good.png"
    assert outcome(f"{server.url}/away.png") == "url_blocked"
    assert {path for path, _ in server.requests} == {"/away.png"}


def test_untrusted_certificate_is_rejected(monkeypatch, short_pauses):
    with Server(PNG, CERTIFICATE) as server:
        assert outcome(f"{server.url}/good.png") == "io_error"
        assert not server.requests
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        assert outcome(f"https://localhost:{server.port}/good.png") == "good"
        assert outcome(f"{server.url}/good.png") == "io_error"  # the certificate names another host
        server.redirects["/down.png"] = f"http://localhost:{server.port}/good.png"
        assert outcome(f"https://localhost:{server.port}/down.png") == "url_blocked"


def test_file_is_copied_once_and_removed_with_the_reader(server, short_pauses):
    server.files["/x.tar"] = bytes(range(256)) * 1000
    server.cut_at = [50, 700, 1]  # each try starts again
    reading = Reader(allow_private_hosts=True)
    copy = reading.local_copy(f"{server.url}/x.tar")
    assert copy.read_bytes() == server.files["/x.tar"]
    files = [reading.open(f"{server.url}/x.tar") for _ in range(2)]
    assert files[0].read() == files[1].read() == server.files["/x.tar"]
    assert server.counts["/x.tar"] == 4
    reading.stop()  # stops fetching; copies stay
    assert reading.open(f"{server.url}/x.tar").read(3) == b"\0\1\2"
    del reading
    assert not copy.parent.exists()


@pytest.mark.parametrize("path", ["loris.jsonl", "drip.jsonl", "silent.jsonl", "more.jsonl"])
def test_slow_manifest_times_out(server, short_timeouts, path):
    """Only received bytes extend a file's deadline: 20 in a second do not suffice."""
    with ends_soon(), pytest.raises(SourceUnavailable, match="did not answer in time"):
        Reader(allow_private_hosts=True).open(f"{server.url}/{path}")


@pytest.mark.parametrize("path", ["broken.jsonl", "short.jsonl", "dropped.jsonl", "broken.tar"])
def test_file_that_keeps_failing_says_to_try_again(server, short_pauses, path):
    with ends_soon(), pytest.raises(SourceUnavailable) as problem:
        Reader(allow_private_hosts=True).open(f"{server.url}/{path}")
    assert problem.value.exit_code == 14
    assert server.counts[f"/{path}"] == 4


def test_received_bytes_extend_the_deadline(server, monkeypatch):
    server.files["/x.tar"] = bytes(10**5)
    began, ends = time.monotonic(), list[float]()
    extend = reader.Deadline.extend

    def record(deadline: reader.Deadline, seconds: float) -> None:
        extend(deadline, seconds)
        ends.append(deadline.end)

    monkeypatch.setattr(reader.Deadline, "extend", record)
    monkeypatch.setattr(reader, "MIN_BYTES_PER_SECOND", 0.1)
    Reader(allow_private_hosts=True).open(f"{server.url}/x.tar")
    assert ends[-1] - began > 10**6


@pytest.mark.parametrize("path", ["huge.tar", "endless.tar", "chunks.tar"])
def test_file_larger_than_the_disk_is_rejected(server, monkeypatch, tmp_path, path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    free = reader.shutil.disk_usage(tmp_path).free
    monkeypatch.setattr(reader, "RESERVED_BYTES", free - 10**7)
    reading = Reader(allow_private_hosts=True)
    with pytest.raises(RemoteError, match="TMPDIR"):
        reading.open(f"{server.url}/{path}")
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_full_disk_is_named(server, monkeypatch):
    server.files["/x.tar"] = b"x"

    def fail(*_: Any) -> float:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(WebFiles, "download", fail)
    with pytest.raises(RemoteError, match="No space left on device"):
        Reader(allow_private_hosts=True).open(f"{server.url}/x.tar")


def test_stop_ends_every_wait(server, monkeypatch):
    monkeypatch.setattr(web, "READ_SECONDS", 500.0)
    monkeypatch.setattr(reader, "FETCH_SECONDS", 500.0)
    reading, codes = Reader(allow_private_hosts=True), list[str]()
    names = ["silent", "drip", "more", "loris"]
    threads = [
        threading.Thread(target=lambda x=x: codes.append(outcome(f"{server.url}/{x}.png", reading)))
        for x in names
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    with ends_soon():
        reading.stop()
        for thread in threads:
            thread.join()
    assert codes == ["io_error"] * len(names)
    assert outcome(f"{server.url}/good.png", reading) == "io_error"


def test_handshake_that_never_ends_times_out(short_timeouts, monkeypatch):
    monkeypatch.setattr(web, "CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent, ends_soon():
        assert outcome(f"https://127.0.0.1:{silent.getsockname()[1]}/good.png") == "timeout"


def test_pickled_reader_is_equal(server):
    for is_allowed, expected in ((True, "good"), (False, "url_blocked")):
        copy = pickle.loads(pickle.dumps(Reader(allow_private_hosts=is_allowed)))
        assert outcome(f"{server.url}/good.png", copy) == expected
    assert make_reader(allow_urls=False, allow_private_hosts=True) is None


ENDLESS = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from pgcli.records import Item
from pgcli.stores import Reader
reader = Reader(allow_private_hosts=True)
def fetch(number):
    with reader.fetched(Item(0, "x", "x", f"{sys.argv[1]}/endless.png?{number}")) as item:
        return item.fault.code
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with ThreadPoolExecutor(reader.fetch_threads) as pool:
    codes = set(pool.map(fetch, range(20)))
print(codes, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.slow
def test_twenty_endless_images_need_the_memory_of_a_few(server, monkeypatch):
    """Each is read up to 256 MiB; beyond 16 MiB, one at a time."""
    codes, _, megabytes = run_python(ENDLESS, server.url).rpartition(" ")
    assert codes == "{'too_large'}"
    assert int(megabytes) < 800
