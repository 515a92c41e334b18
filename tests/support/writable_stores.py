"""Local servers that accept objects like S3."""

import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import formatdate
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest

from pgcli.stores import objects, web
from tests.support.stores import S3, Files, etag, serve

BUCKET = "s3://bucket"
ROOT = Path(__file__).parents[2]


def shorten_retries(patch: pytest.MonkeyPatch, seconds: float = 1.0) -> None:
    """Pauses of hundredths of a second between tries, for at most so many seconds."""
    backoff = {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.05)}
    retries = {"max_retries": 1000, "retry_timeout": timedelta(seconds=seconds)}
    patch.setattr(objects, "RETRIES", {**retries, "backoff": {**backoff, "base": 2}})
    patch.setattr(web, "FIRST_PAUSE_SECONDS", 0.01)
    patch.setattr(web, "LONGEST_PAUSE_SECONDS", 0.05)
    patch.setattr(web, "PATIENCE_SECONDS", seconds)


class WritableS3(S3):
    """S3 with conditional puts. A bucket exists while it has objects."""

    files: Files
    times: dict[str, float]
    lock = threading.Lock()

    def do_PUT(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        data = self.rfile.read(length)
        if len(data) < length:  # the client was killed: as in S3, nothing is stored
            self.close_connection = True
            return
        self.respond(self.put(self.key, data), ETag=etag(data))

    def put(self, key: str, data: bytes) -> int:
        """Store an object; return the status of the response."""
        with self.lock:
            if self.is_refused(key):
                return 412
            self.files[key], self.times[key] = data, time.time()
        return 200

    def is_refused(self, key: str) -> bool:
        """Whether a put fails because the object exists, or has another version."""
        if self.headers.get("If-None-Match") == "*":
            return key in self.files
        tag = self.headers.get("If-Match")
        return tag is not None and (key not in self.files or tag != etag(self.files[key]))

    def do_POST(self) -> None:
        """Delete the objects of a list."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        keys = [node.text for node in ElementTree.fromstring(body).iterfind("{*}Object/{*}Key")]
        with self.lock:
            for key in keys:
                self.files.pop(f"{self.key}/{key}", None)
        removed = "".join(f"<Deleted><Key>{escape(key or '')}</Key></Deleted>" for key in keys)
        self.respond(200, f"<DeleteResult>{removed}</DeleteResult>".encode())

    @property
    def key(self) -> str:
        """The bucket and the key of the request's object."""
        return unquote(urlsplit(self.path).path).lstrip("/")


class Unconditional(WritableS3):
    """S3 like on servers that ignore the condition of a put."""

    def is_refused(self, key: str) -> bool:
        return False


class Denied(WritableS3):
    """S3 that accepts no objects."""

    def put(self, key: str, data: bytes) -> int:
        return 403


class Busy(WritableS3):
    """S3 that answers every other put with 503, after having stored every fourth."""

    puts: dict[str, int]

    def put(self, key: str, data: bytes) -> int:
        with self.lock:
            count = self.puts[key] = self.puts.get(key, 0) + 1
        if count % 2 == 0:
            return super().put(key, data)
        if len(self.puts) % 2 == 0:
            super().put(key, data)
        return 503


@dataclass
class Trouble:
    """Replaces the response to requests that match a pattern, so many `times`.

    By a `status` with a body and headers, or by `silent`, `reset` or `cut`, as in `how`.
    """

    pattern: str  # matches a method and target such as `GET /bucket?list-type=2`
    how: int | str
    times: float = inf
    body: bytes = b""
    headers: dict[str, Any] = field(default_factory=dict)


class Unreliable(WritableS3):
    """S3 with `troubles`; `requests` has the time, method and target of each request."""

    troubles: list[Trouble]
    requests: list[tuple[float, str]]

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        request = f"{self.command} {self.path}"
        self.requests.append((time.monotonic(), request))
        for trouble in self.troubles:
            if trouble.times > 0 and re.search(trouble.pattern, request):
                trouble.times -= 1
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.fail(trouble)
                self.close_connection = True
                return False
        return True

    def fail(self, trouble: Trouble) -> None:
        if trouble.how == "silent":
            self.owner.closing.wait(300)
        elif trouble.how == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.connection.close()
        elif trouble.how == "cut":
            data = self.files.get(self.key, b"<?xml")
            status, body, headers = self.part(data)
            length = len(body) if self.key in self.files else 10**5
            headers |= {"ETag": etag(data), "Last_Modified": formatdate(0, usegmt=True)}
            self.respond(status, body[: len(body) // 2], Content_Length=length, **headers)
        else:
            self.respond(int(trouble.how), trouble.body, Connection="close", **trouble.headers)


@contextmanager
def serve_writable(kind: type[WritableS3] = WritableS3) -> Iterator[tuple[str, Files]]:
    """The URL of a server with a bucket, and its objects by `bucket/key`."""
    files: Files = {"bucket/exists": b""}
    state = {"times": {}, "puts": {}, "lock": threading.Lock()}
    with serve(type(kind.__name__, (kind,), state), files) as endpoint:
        yield endpoint, files


def environment(endpoint: str) -> dict[str, str]:
    """The environment variables that point to the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@contextmanager
def unreliable_store() -> Iterator[type[Unreliable]]:
    """A server for `s3://bucket`; the block adds its `troubles`."""
    kind = type("Unreliable", (Unreliable,), {"troubles": [], "requests": []})
    with used_store(kind) as files:
        kind.files = files
        yield kind


@contextmanager
def used_store(kind: type[WritableS3] = WritableS3) -> Iterator[Files]:
    """The objects of a server for `s3://bucket` in the block."""
    with serve_writable(kind) as (endpoint, files), pytest.MonkeyPatch.context() as patch:
        for name, value in environment(endpoint).items():
            patch.setenv(name, value)
        yield files
