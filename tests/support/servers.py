"""Local web servers: the common parts, and one that answers as the Hub does."""

from __future__ import annotations

import hashlib
import json
import ssl
import sys
import threading
from collections import Counter, defaultdict
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote, urlsplit


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


CHUNK_BYTES = 2**20
LARGE = (".safetensors", ".bin", "tokenizer.json", "tokenizer.model")  # stored outside of Git


class Hub(LocalServer):
    """Repositories, and the failures of their files by name; for a `with` block.

    `sent_bytes` counts the sent bytes of each file; `requests` lists method, path and headers.
    """

    def __init__(self):
        super().__init__(Answering)
        self.repositories = {}
        self.gated = False
        self.accepted_tokens = ()  # tokens with an accepted licence
        self.other_tokens = ()  # valid tokens without it
        self.cut_after = defaultdict(list)  # byte counts after which the next responses end
        self.corrupted_at = {}  # the offset of a wrong byte
        self.status = {}  # the status of all responses
        self.listing_status = None
        self.stall_after = {}  # byte counts after which responses stall
        self.stalled = threading.Event()  # a response has stalled
        self.requests = []
        self.sent_bytes = Counter()

    def add(self, name, files, *, revisions=("main",)):
        """Add a repository with one commit, which is returned; `files` are bytes by path."""
        commit = hashlib.sha1(
            repr(sorted((n, digest(n, d)) for n, d in files.items())).encode()
        ).hexdigest()
        known = self.repositories.setdefault(name, {"revisions": {}, "commits": {}})
        known["commits"][commit] = dict(files)
        known["revisions"] |= dict.fromkeys((*revisions, commit), commit)
        return commit

    def ranges(self, file):
        """The Range header of each request for a file."""
        return [
            headers.get("range")
            for method, path, headers in self.requests
            if method == "GET" and path.endswith(f"/{file}") and "/resolve/" in path
        ]


@cache
def digest(path, data):
    """The digest of a file on the Hub: SHA-256 of large files, Git's SHA-1 of the others."""
    if path.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def listing(name, commit, files):
    """The Hub's description of a commit and its files."""
    siblings = []
    for path, data in files.items():
        sibling = {"rfilename": path, "size": len(data), "blobId": digest(path, data)}
        if path.endswith(LARGE):
            sibling["blobId"] = hashlib.sha1(path.encode()).hexdigest()  # on the Hub, the pointer's
            sibling["lfs"] = {"sha256": digest(path, data), "size": len(data), "pointerSize": 134}
        siblings.append(sibling)
    return {"id": name, "sha": commit, "siblings": siblings}


def tree(siblings):
    """The same files, as the endpoint `tree` lists them."""
    for file in siblings:
        lfs = {"lfs": file["lfs"] | {"oid": file["lfs"]["sha256"]}} if "lfs" in file else {}
        known = {"path": file["rfilename"], "size": file["size"], "oid": file["blobId"]}
        yield {"type": "file"} | known | lfs


class Answering(Answers):
    def do_GET(self):
        hub, path = self.owner, unquote(urlsplit(self.path).path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        hub.requests.append((self.command, path, headers))
        name, action, revision, file = parts(path)
        if (known := hub.repositories.get(name)) is None:
            return self.refuse(404 if self.token() else 401, "RepoNotFound")
        if self.token() and self.token() not in (*hub.accepted_tokens, *hub.other_tokens):
            return self.refuse(401, None, "Invalid credentials in Authorization header")
        if revision not in known["revisions"]:
            return self.refuse(404, "RevisionNotFound")
        commit = known["revisions"][revision]
        files = known["commits"][commit]
        if action == "api":
            if hub.listing_status:
                return self.refuse(hub.listing_status, None)
            return self.send_json(listing(name, commit, files))
        if action == "tree":
            return self.send_json([*tree(listing(name, commit, files)["siblings"])])
        if hub.gated and self.token() not in hub.accepted_tokens:
            return self.refuse(403 if self.token() else 401, "GatedRepo")
        status = hub.status.get(file, 200 if file in files else 404)
        if status != 200:
            return self.refuse(status, "EntryNotFound" if status == 404 else None)
        return self.send_file(commit, file, files[file])

    def token(self):
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def refuse(self, status, code, message=None):
        self.respond(status, X_Error_Code=code, X_Error_Message=message)

    def send_json(self, value):
        self.respond(200, json.dumps(value).encode(), Content_Type="application/json")

    def send_file(self, commit, file, data):
        """A file, or only its beginning with `cut_after` and `stall_after`."""
        hub = self.owner
        status, body, headers = self.part(corrupted(data, hub.corrupted_at.get(file)))
        headers |= {"ETag": f'"{digest(file, data)}"', "X_Repo_Commit": commit}
        self.respond(status, Content_Length=len(body), **headers)
        if self.command == "HEAD":
            return
        cuts = hub.cut_after[file]
        sent = body[: cuts.pop(0)] if cuts else body
        if file in hub.stall_after:
            sent = body[: hub.stall_after[file]]
        self.close_connection = len(sent) < len(body)
        for start in range(0, len(sent), CHUNK_BYTES):
            chunk = memoryview(sent)[start : start + CHUNK_BYTES]
            try:
                self.wfile.write(chunk)
            except ConnectionError:  # the client has closed the connection
                return
            hub.sent_bytes[file] += len(chunk)
        if file in hub.stall_after:
            hub.stalled.set()
            hub.closing.wait()


def corrupted(data, offset):
    if offset is None:
        return data
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def parts(path):
    """Split a path into repository, `api`, `tree` or `resolve`, revision and file."""
    if path.startswith("/api/models/"):
        name, slash, revision = path.removeprefix("/api/models/").partition("/tree/")
        if slash:
            return name, "tree", revision, None
        name, _, revision = name.partition("/revision/")
        return name, "api", revision or "main", None
    name, _, rest = path.lstrip("/").partition("/resolve/")
    revision, _, file = rest.partition("/")
    return name, "resolve", revision, file
