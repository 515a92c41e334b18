"""Object stores on this machine: for reading, for writing, and the bytes that are read."""

from __future__ import annotations

import hashlib
import io
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from math import inf
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgcli.stores import objects, web
from tests.support.awkward import drawing, encoded, tar_of
from tests.support.servers import Answers, LocalServer

Files = dict[str, bytes]
PAGE = 1000  # objects in a page of a listing
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def etag(data: bytes) -> str:
    """The tag of an object with this content."""
    return f'"{hashlib.md5(data).hexdigest()}"'


@contextmanager
def serve(answer: type[Store], files: Files) -> Iterator[str]:
    """The URL of a server with these files, by `bucket/key`."""
    with LocalServer(type("", (answer,), {"files": files})) as server:
        yield server.url


class Store(Answers):
    """The requests that all stores have."""

    files: Mapping[str, bytes] = {}
    times: Mapping[str, float] = {}  # when files were written; others in 2026

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.answer(parts.path, query)

    def answer(self, path: str, query: Mapping[str, str]) -> None:
        raise NotImplementedError

    def list_keys(self, bucket: str, prefix: str, delimiter: str) -> tuple[list[str], list[str]]:
        """The keys and folders directly below a prefix; without a delimiter, all keys."""
        keys = sorted(
            name[len(bucket) + 1 :] for name in self.files if name.startswith(f"{bucket}/{prefix}")
        )
        if not delimiter:
            return keys, []
        here = [key for key in keys if delimiter not in key[len(prefix) :]]
        rest = {key[len(prefix) :].partition("/")[0] for key in keys if key not in here}
        return here, sorted(f"{prefix}{folder}/" for folder in rest)

    def send_file(self, key: str) -> None:
        data = self.files.get(key)
        if data is None:
            return self.respond(404)
        status, body, headers = self.part(data)
        tag, written = etag(data), formatdate(self.times.get(key, 0), usegmt=True)
        if self.headers.get("If-Match", tag) != tag:
            return self.respond(412)
        return self.respond(status, body, ETag=tag, Last_Modified=written, **headers)


class S3(Store):
    def answer(self, path: str, query: Mapping[str, str]) -> None:
        bucket, _, key = unquote(path).lstrip("/").partition("/")
        if key:
            return self.send_file(f"{bucket}/{key}")
        if not any(name.startswith(f"{bucket}/") for name in self.files):
            return self.respond(404, b"<Error><Code>NoSuchBucket</Code></Error>")
        keys, folders = self.list_keys(bucket, query.get("prefix", ""), query.get("delimiter", ""))
        after = query.get("continuation-token") or query.get("start-after") or ""
        keys = [key for key in keys if key > after]
        keys, has_more = keys[:PAGE], len(keys) > PAGE
        size = {key: len(self.files[f"{bucket}/{key}"]) for key in keys}
        times = {key: self.times.get(f"{bucket}/{key}", NEW_YEAR) for key in keys}
        rows = [
            f"<Contents><Key>{escape(key)}</Key><Size>{size[key]}</Size>"
            f"<LastModified>{datetime.fromtimestamp(times[key], UTC):%FT%TZ}</LastModified>"
            "</Contents>"
            for key in keys
        ]
        rows += [
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders
        ]
        namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
        body = (
            f'<?xml version="1.0"?><ListBucketResult xmlns="{namespace}"><Name>{bucket}</Name>'
            f"<IsTruncated>{str(has_more).lower()}</IsTruncated><KeyCount>{len(rows)}</KeyCount>"
            f"{''.join(rows)}"
            + f"<NextContinuationToken>{escape(''.join(keys[-1:]))}</NextContinuationToken>"
            * has_more
            + "</ListBucketResult>"
        )
        return self.respond(200, body.encode(), Content_Type="application/xml")


class Google(S3):
    """Google Cloud Storage through its XML interface, which is the same as S3's."""


class Azure(Store):
    """Azure Blob Storage: an account, its containers and their blobs."""

    def answer(self, path: str, query: Mapping[str, str]) -> None:
        container, _, key = unquote(path).removeprefix("/account/").partition("/")
        if query.get("comp") != "list":
            return self.send_file(f"{container}/{key}")
        keys, _ = self.list_keys(container, query.get("prefix", ""), "")
        rows = [
            f"<Blob><Name>{escape(key)}</Name><Properties><Last-Modified>{formatdate(usegmt=True)}"
            f"</Last-Modified><Content-Length>{len(self.files[f'{container}/{key}'])}"
            "</Content-Length><Content-Type>application/octet-stream</Content-Type>"
            "<Etag>1</Etag></Properties></Blob>"
            for key in keys
        ]
        body = (
            '<?xml version="1.0" encoding="utf-8"?><EnumerationResults>'
            f"<Blobs>{''.join(rows)}</Blobs><NextMarker/></EnumerationResults>"
        )
        return self.respond(200, body.encode(), Content_Type="application/xml")


class Hub(Store):
    """The data set `somebody/images` of a Hub, with the files of the bucket."""

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        requested = self.rfile.read(size).decode()
        is_json = requested.startswith("{")
        paths = json.loads(requested)["paths"] if is_json else parse_qs(requested)["paths"]
        self.send_json([one for path in paths if (one := self.entry(path))])

    def answer(self, path: str, query: Mapping[str, str]) -> None:
        path = unquote(path)
        if "/resolve/" in path:
            key = path.partition("/resolve/")[2].partition("/")[2]
            return self.send_file(f"images/{key}")
        if "/tree/" in path:
            folder = path.partition("/tree/")[2].partition("/")[2]
            prefix = f"{folder}/" if folder else ""
            keys, folders = self.list_keys("images", prefix, "/")
            found = [self.entry(one.rstrip("/")) for one in (*keys, *folders)]
            if query.get("recursive", "").lower() == "true":
                keys, _ = self.list_keys("images", prefix, "")
                folders = sorted(
                    {
                        k[: n + 1]
                        for k in keys
                        for n, c in enumerate(k)
                        if c == "/" and n > len(prefix)
                    }
                )
                found = [self.entry(one.rstrip("/")) for one in (*keys, *folders)]
            return self.send_json([one for one in found if one] or None)
        return self.send_json(
            {"id": "somebody/images", "sha": "a" * 40, "siblings": [], "private": False}
            | {"downloads": 0, "tags": [], "likes": 0, "disabled": False, "gated": False}
        )

    def entry(self, path: str) -> dict[str, object] | None:
        data = self.files.get(f"images/{path}")
        if data is not None:
            oid = hashlib.sha1(data).hexdigest()
            return {"type": "file", "oid": oid, "size": len(data), "path": path}
        if any(name.startswith(f"images/{path}/") for name in self.files):
            return {"type": "directory", "oid": "b" * 40, "size": 0, "path": path}
        return None

    def send_json(self, value: object) -> None:
        if value is None:
            return self.respond(404, b"{}", X_Error_Code="EntryNotFound")
        return self.respond(200, json.dumps(value).encode())


PNG, JPEG = encoded(drawing(), "PNG"), encoded(drawing(), "JPEG")
#: Names that sort differently if folders are sorted separately, and that URLs must quote.
IMAGES = {
    "a/b c.png": PNG,
    "a-b.jpg": JPEG,
    "a/é#?%41.png": PNG,
    "z.jpg": JPEG,
    "broken.png": b"x",
}


def rows_of_tar() -> bytes:
    return tar_of([("0.png", PNG), ("0.json", b'{"n": 1}'), ("1.jpg", JPEG)])


def parquet(count: int) -> bytes:
    held = io.BytesIO()
    images = [{"bytes": PNG, "path": f"{n}.png"} for n in range(count)]
    pq.write_table(pa.table({"image": images, "label": list(range(count))}), held)
    return held.getvalue()


FILES = {
    **{f"photos/{name}": data for name, data in IMAGES.items()},
    "photos/.h/x.png": PNG,
    "photos/a/.x.png": PNG,
    "sets/x.tar": rows_of_tar(),
    "parts/0.parquet": parquet(2),
    "parts/deep/1.parquet": parquet(1),
}


class StoreLocation(NamedTuple):
    """The URL of files in a store, and the environment variables for reading them."""

    base: str
    environment: dict[str, str]


def locate_store(kind: str, endpoint: str) -> StoreLocation:
    bases = {
        "gs": "gs://anonymous@images",
        "az": "az://images",
        "hf": "hf://datasets/somebody/images",
    }
    variables = {
        **environment(endpoint),
        "GOOGLE_BASE_URL": endpoint,
        "GOOGLE_SKIP_SIGNATURE": "true",
        "AZURE_STORAGE_ENDPOINT": f"{endpoint}/account",
        "AZURE_STORAGE_ACCOUNT_NAME": "account",
        "AZURE_STORAGE_ACCOUNT_KEY": "a2V5",
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_TOKEN": "secret",
    }
    return StoreLocation(bases.get(kind, "s3://images"), variables)


BUCKET = "s3://bucket"
ROOT = Path(__file__).parents[2]


def shorten_retries(patch: pytest.MonkeyPatch, seconds: float = 1.0) -> None:
    """Pauses of hundredths of a second between tries, for at most so many seconds."""
    backoff = {"init_backoff": timedelta(seconds=0.01), "max_backoff": timedelta(seconds=0.05)}
    retries = {"max_retries": 1000, "retry_timeout": timedelta(seconds=seconds)}
    patch.setattr(objects, "RETRIES", {**retries, "backoff": {**backoff, "base": 2}})
    patch.setattr(web, "FIRST_PAUSE_SECONDS", 0.01)


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


def bytes_read() -> int:
    """The bytes that this process has read so far, from files and otherwise; only on Linux."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["rchar"])
