"""Local web servers: the common parts of the tests' servers."""

from __future__ import annotations

import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self


class QuietServer(ThreadingHTTPServer):
    """A server that prints nothing about clients that are killed or give up."""

    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        if not isinstance(sys.exception(), OSError):
            raise


class LocalServer:
    """A server for a `with` block, with a `port` and a `url`."""

    def __init__(self, answers: type[Answers], certificate: Path | None = None):
        self.closing = threading.Event()
        self._answers, self._certificate = answers, certificate

    def __enter__(self) -> Self:
        answers = type("", (self._answers,), {"owner": self})
        self._server = QuietServer(("127.0.0.1", 0), answers)
        kind = "http"
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
            kind = "https"
        self.port = self._server.server_port
        self.url = f"{kind}://127.0.0.1:{self.port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()


class Answers(BaseHTTPRequestHandler):
    """A server's responses, without a log; `do_GET` also answers HEAD."""

    protocol_version = "HTTP/1.1"
    owner: Any  # the server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        raise NotImplementedError

    def do_HEAD(self) -> None:
        self.do_GET()

    def respond(self, status: int, body: bytes = b"", **headers: Any) -> None:
        """Underscores in header names become hyphens; None omits a header."""
        self.send_response(status)
        for key, value in {"Content_Length": len(body), **headers}.items():
            if value is not None:
                self.send_header(key.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def part(self, data: bytes) -> tuple[int, bytes, dict[str, str]]:
        """The status, the requested part of a file, and the headers that describe it."""
        requested = self.headers.get("Range")
        if requested is None:
            return 200, data, {}
        first, _, last = requested.removeprefix("bytes=").partition("-")
        body = data[int(first) : int(last) + 1 if last else None]
        place = f"bytes {first}-{int(first) + len(body) - 1}/{len(data)}"
        return 206, body, {"Content_Range": place}
