"""Local servers with enough of the protocols of S3, Google Cloud Storage and the Hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import formatdate
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.support.http_server import Answers, LocalServer

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
