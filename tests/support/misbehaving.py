"""A server of the web on this machine that fails as servers do, by the path it is asked for."""

from __future__ import annotations

import gzip
import ssl
import threading
import time
from collections import Counter
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HTML = b"<!doctype html><title>Sign in</title>"


class Server:
    """Used in a `with` block. `asked` has the path and the headers of every question."""

    def __init__(self, picture: bytes, certificate: Path | None = None):
        self.picture = picture
        self.files: dict[str, bytes] = {}
        self.leads: dict[str, str] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.times: list[float] = []
        self.counts: Counter[str] = Counter()
        self.takes_ranges = True
        self.cut_at: list[int] = []
        self.pause_seconds = 0.0
        self.keeps_alive = False
        self.left = threading.Event()
        self._certificate = certificate

    def __enter__(self) -> Self:
        owner = {"owner": self}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("", (Answering,), owner))
        self._server.daemon_threads = True
        kind = "http"
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            kind = "https"
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]
        self.port = self._server.server_port
        self.url = f"{kind}://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.left.set()
        self._server.shutdown()
        self._server.server_close()


class Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        owner, name = self.owner, self.path.lstrip("/").partition("?")[0].partition(".")[0]
        owner.asked.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        owner.times.append(time.monotonic())
        owner.counts[self.path] += 1
        time.sleep(owner.pause_seconds)
        with suppress(ConnectionError, ssl.SSLError):
            if self.path in owner.files:
                self.file(owner.files[self.path])
            elif self.path in owner.leads:
                self.say(302, Location=owner.leads[self.path])
            else:
                getattr(self, name, self.unknown)()

    def say(self, status: int, body: bytes = b"", **headers: Any) -> None:
        self.send_response(status)
        for key, value in {"Content_Length": len(body), **headers}.items():
            if value is not None:
                self.send_header(key.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = not self.owner.keeps_alive

    def file(self, data: bytes) -> None:
        """A file that may be asked for from any place, and breaks off as often as it is to."""
        start, status = 0, 200
        headers: dict[str, Any] = {"ETag": f'"{hash(data)}"'}
        if (asked := self.headers.get("Range")) and self.owner.takes_ranges:
            start, status = int(asked.removeprefix("bytes=").partition("-")[0]), 206
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        body = data[start:]
        cut = self.owner.cut_at.pop(0) if self.owner.cut_at else len(body)
        self.send_response(status)
        for key, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(key, str(value))
        self.end_headers()
        self.wfile.write(body[:cut])
        self.close_connection = True

    def first_times(self, times: int, status: int, **headers: Any) -> None:
        """Fail so often, then give the picture."""
        if self.owner.counts[self.path] <= times:
            self.say(status, **headers)
        else:
            self.good()

    def good(self) -> None:
        self.say(200, self.owner.picture)

    def unknown(self) -> None:
        self.say(404)

    def gone(self) -> None:
        self.say(410)

    def forbidden(self) -> None:
        self.say(403)

    def teapot(self) -> None:
        self.say(418)

    def broken(self) -> None:
        self.say(500)

    def busy(self) -> None:
        self.first_times(1, 503)

    def often(self) -> None:
        self.first_times(1, 429, Retry_After=1)

    def html(self) -> None:
        self.say(200, HTML, Content_Type="image/png")

    def packed(self) -> None:
        self.say(200, gzip.compress(bytes(10**7)), Content_Encoding="gzip")

    def short(self) -> None:
        self.say(200, self.owner.picture[:100], Content_Length=len(self.owner.picture))

    def once(self) -> None:
        """Cut at the first time."""
        if self.owner.counts[self.path] == 1:
            self.short()
        else:
            self.good()

    def less(self) -> None:
        """Says that it is shorter than it is."""
        self.say(200, self.owner.picture, Content_Length=100)

    def more(self) -> None:
        """Announces more bytes, and leaves the connection open."""
        self.say(200, self.owner.picture[:100], Content_Length=10**6)
        self.owner.left.wait(30)

    def surplus(self) -> None:
        """A good answer, and bytes beyond it on the same connection."""
        self.say(200, self.owner.picture + b"surplus", Content_Length=len(self.owner.picture))

    def hangup(self) -> None:
        """A good answer, after which the connection is closed without a header that says so."""
        self.good()
        self.close_connection = True

    def huge(self) -> None:
        self.say(200, b"x", Content_Length=10**15)

    def negative(self) -> None:
        self.say(200, self.owner.picture, Content_Length=-5)

    def endless(self) -> None:
        self.say(200, Content_Length=None)
        while not self.owner.left.is_set():
            self.wfile.write(bytes(2**16))

    def chunks(self) -> None:
        self.say(200, Content_Length=None, Transfer_Encoding="chunked")
        while not self.owner.left.is_set():
            self.wfile.write(b"8000\r\n" + bytes(0x8000) + b"\r\n")

    def loris(self) -> None:
        """A byte now and then, of the headers."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not self.owner.left.wait(0.05):
            self.wfile.write(b"x")

    def drip(self) -> None:
        """A byte now and then, of the body."""
        self.say(200, Content_Length=10**6)
        while not self.owner.left.wait(0.05):
            self.wfile.write(b"x")

    def silent(self) -> None:
        self.owner.left.wait(30)

    def headers_without_end(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not self.owner.left.is_set():
            self.wfile.write(b"X-A: b\r\n" * 100)

    def nonsense(self) -> None:
        self.wfile.write(b"\x00\xff nothing like it\r\n\r\n")
        self.close_connection = True

    def dropped(self) -> None:
        self.close_connection = True

    def ring(self) -> None:
        self.say(302, Location="/ring.png")

    def loopback(self) -> None:
        self.say(302, Location=f"http://127.0.0.2:{self.owner.port}/good.png")

    def metadata(self) -> None:
        self.say(302, Location="http://169.254.169.254/latest/meta-data/")

    def decimal(self) -> None:
        self.say(302, Location=f"http://2130706434:{self.owner.port}/good.png")

    def local_file(self) -> None:
        self.say(302, Location="file:///etc/passwd")

    def moved(self) -> None:
        self.say(301, Location="good.png")
