"""A local web server; the requested path names the failure."""

import gzip
import ssl
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.servers import Answers, LocalServer

HTML = b"<!doctype html><title>Sign in</title>"
#: The statuses and redirects of paths without a body.
STATUSES = {"gone": 410, "forbidden": 403, "teapot": 418, "broken": 500}
LOCATIONS = {
    "ring": "/ring.png",
    "moved": "good.png",
    "loopback": "http://127.0.0.2:{port}/good.png",
    "metadata": "http://169.254.169.254/latest/meta-data/",
    "decimal": "http://2130706434:{port}/good.png",
    "local_file": "file:///etc/passwd",
}


class Server(LocalServer):
    """`requests` has the path and the headers of each request."""

    def __init__(self, image: bytes, certificate: Path | None = None):
        super().__init__(Answering, certificate)
        self.image = image
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.counts: Counter[str] = Counter()
        self.cut_at: list[int] = []
        self.pause_seconds = 0.0
        self.at_once = self.most_at_once = 0  # requests in their pause
        self.keeps_alive = False


class Answering(Answers):
    owner: Server

    def do_GET(self) -> None:
        owner, name = self.owner, self.path.lstrip("/").partition("?")[0].partition(".")[0]
        owner.requests.append((self.path, {k.lower(): v for k, v in self.headers.items()}))
        owner.counts[self.path] += 1
        owner.at_once += 1
        owner.most_at_once = max(owner.most_at_once, owner.at_once)
        time.sleep(owner.pause_seconds)
        owner.at_once -= 1
        with suppress(ConnectionError, ssl.SSLError):
            if self.path in owner.files:
                self.file(owner.files[self.path])
            elif self.path in owner.redirects:
                self.respond(302, Location=owner.redirects[self.path])
            elif name in LOCATIONS:
                self.respond(301, Location=LOCATIONS[name].format(port=owner.port))
            elif answer := getattr(self, name, None):
                answer()
            else:
                self.respond(STATUSES.get(name, 404))

    def respond(self, status: int, body: bytes = b"", **headers: Any) -> None:
        super().respond(status, body, **headers)
        self.close_connection = not self.owner.keeps_alive

    def file(self, data: bytes) -> None:
        """A file that ends early at the next of `cut_at`."""
        cut = self.owner.cut_at.pop(0) if self.owner.cut_at else len(data)
        self.respond(200, data[:cut], Content_Length=len(data))
        self.close_connection = True

    def first_times(self, times: int, status: int, **headers: Any) -> None:
        """Fail so many times, then send the image."""
        if self.owner.counts[self.path] <= times:
            self.respond(status, **headers)
        else:
            self.good()

    def good(self) -> None:
        self.respond(200, self.owner.image)

    def busy(self) -> None:
        self.first_times(1, 503)

    def often(self) -> None:
        self.first_times(1, 429, Retry_After=1)

    def later_today(self) -> None:
        self.respond(503, Retry_After=3600)

    def html(self) -> None:
        self.respond(200, HTML, Content_Type="image/png")

    def packed(self) -> None:
        self.respond(200, gzip.compress(bytes(10**5)), Content_Encoding="gzip")

    def short(self) -> None:
        self.respond(200, self.owner.image[:100], Content_Length=len(self.owner.image))

    def once(self) -> None:
        """Truncate the first response."""
        if self.owner.counts[self.path] == 1:
            self.short()
        else:
            self.good()

    def less(self) -> None:
        """Announce fewer bytes than are sent."""
        self.respond(200, self.owner.image, Content_Length=100)

    def more(self) -> None:
        """Announce more bytes than are sent, and leave the connection open."""
        self.respond(200, self.owner.image[:100], Content_Length=10**6)
        self.owner.closing.wait(30)

    def surplus(self) -> None:
        """Send a good response, then more bytes on the same connection."""
        self.respond(200, self.owner.image + b"surplus", Content_Length=len(self.owner.image))

    def hangup(self) -> None:
        """Send a good response, then close the connection without announcing it."""
        self.good()
        self.close_connection = True

    def huge(self) -> None:
        self.respond(200, b"x", Content_Length=10**15)

    def negative(self) -> None:
        self.respond(200, self.owner.image, Content_Length=-5)

    def endless(self) -> None:
        self.respond(200, Content_Length=None)
        while not self.owner.closing.is_set():
            self.wfile.write(bytes(2**16))

    def chunks(self) -> None:
        self.respond(200, Content_Length=None, Transfer_Encoding="chunked")
        while not self.owner.closing.is_set():
            self.wfile.write(b"8000\r\n" + bytes(0x8000) + b"\r\n")

    def loris(self) -> None:
        """Send the headers one byte at a time."""
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not self.owner.closing.wait(0.05):
            self.wfile.write(b"x")

    def drip(self) -> None:
        """Send the body one byte at a time."""
        self.respond(200, Content_Length=10**6)
        while not self.owner.closing.wait(0.05):
            self.wfile.write(b"x")

    def silent(self) -> None:
        self.owner.closing.wait(30)

    def headers_without_end(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        while not self.owner.closing.is_set():
            self.wfile.write(b"X-A: b\r\n" * 100)

    def nonsense(self) -> None:
        self.wfile.write(b"\x00\xff not HTTP\r\n\r\n")
        self.close_connection = True

    def dropped(self) -> None:
        self.close_connection = True
