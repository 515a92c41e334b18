"""A server on this machine that speaks the Hub's protocol, and can fail at it as the Hub may."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter, defaultdict
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

CHUNK_BYTES = 2**20
LARGE = (".safetensors", ".bin", "tokenizer.json", "tokenizer.model")  # kept outside of Git


class Hub:
    """Repositories and what is to go wrong with them; used in a `with` block.

    `sent` counts the bytes of each file that left, `asked` lists what was asked for, as tuples of
    method, path and headers. The switches are by a file's name.
    """

    def __init__(self):
        self.repositories = {}
        self.gated = False
        self.members = ()  # tokens whose users have accepted the licence
        self.strangers = ()  # tokens that are valid, and no more
        self.cut = defaultdict(list)  # after how many bytes the next answers break off
        self.flipped = {}  # at which place a byte is wrong
        self.claimed = {}  # how long the file is said to be
        self.missing = set()
        self.status = {}  # with what the file is answered, always or, a list, the next times
        self.listing_status = None
        self.takes_ranges = True
        self.held = {}  # after how many bytes the answer is held back until the Hub is left
        self.reached = threading.Event()  # it is held back
        self.left = threading.Event()
        self.elsewhere = None  # another server, to which large files are redirected
        self.listed = lambda listing: listing
        self.asked = []
        self.sent = Counter()

    def __enter__(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.left.set()
        self.server.shutdown()
        self.server.server_close()

    def add(self, name, files, *, revisions=("main",)):
        """A repository with one commit, which is returned; `files` are bytes by path."""
        commit = hashlib.sha1(
            repr(sorted((n, digest(n, d)) for n, d in files.items())).encode()
        ).hexdigest()
        known = self.repositories.setdefault(name, {"revisions": {}, "commits": {}})
        known["commits"][commit] = dict(files)
        known["revisions"] |= dict.fromkeys((*revisions, commit), commit)
        return commit

    def fetched(self):
        """The files whose contents were asked for, each once."""
        return {
            path.rpartition("/")[2]
            for method, path, _ in self.asked
            if method == "GET" and "/resolve/" in path
        }

    def ranges(self, file):
        """The Range header of each time that a file's contents were asked for."""
        return [
            headers.get("range")
            for method, path, headers in self.asked
            if method == "GET" and path.endswith(f"/{file}") and "/resolve/" in path
        ]


@cache
def digest(path, data):
    """What names a file's contents on the Hub: sha256 of large ones, Git's sha1 of the others."""
    if path.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def listing(name, commit, files):
    siblings = []
    for path, data in files.items():
        sibling = {"rfilename": path, "size": len(data), "blobId": digest(path, data)}
        if path.endswith(LARGE):
            sibling["blobId"] = hashlib.sha1(path.encode()).hexdigest()  # of a pointer, on the Hub
            sibling["lfs"] = {"sha256": digest(path, data), "size": len(data), "pointerSize": 134}
        siblings.append(sibling)
    return {"id": name, "sha": commit, "siblings": siblings}


def tree(files):
    """The files of a commit as the endpoint `tree` lists them."""
    entries = []
    for path, data in files.items():
        entry = {"type": "file", "path": path, "size": len(data), "oid": digest(path, data)}
        if path.endswith(LARGE):
            entry["oid"] = hashlib.sha1(path.encode()).hexdigest()  # of a pointer, on the Hub
            entry["lfs"] = {"oid": digest(path, data), "size": len(data), "pointerSize": 134}
        entries.append(entry)
    return entries


def handler(hub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def do_HEAD(self):
            self.answer()

        def do_GET(self):
            self.answer()

        def answer(self):
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(
                (self.command, path, {name.lower(): value for name, value in self.headers.items()})
            )
            name, action, revision, file = parts(path)
            if (known := hub.repositories.get(name)) is None:
                return self.refuse(404 if self.token() else 401, "RepoNotFound")
            if self.token() and self.token() not in (*hub.members, *hub.strangers):
                return self.refuse(401, None, "Invalid credentials in Authorization header")
            if revision not in known["revisions"]:
                return self.refuse(404, "RevisionNotFound")
            commit = known["revisions"][revision]
            files = known["commits"][commit]
            if action == "api":
                if hub.listing_status:
                    return self.refuse(hub.listing_status, None)
                return self.send_json(hub.listed(listing(name, commit, files)))
            if action == "tree":
                return self.send_json(tree(files))
            if hub.gated and self.token() not in hub.members:
                return self.refuse(403 if self.token() else 401, "GatedRepo")
            if file not in files or file in hub.missing:
                return self.refuse(404, "EntryNotFound")
            if status := hub.status.get(file):
                number = status.pop(0) if isinstance(status, list) else status
                return self.refuse(number, None)
            return self.send_file(commit, file, files[file])

        def token(self):
            return self.headers.get("Authorization", "").removeprefix("Bearer ")

        def refuse(self, status, code, message=None):
            self.send_response(status)
            for header, value in (("X-Error-Code", code), ("X-Error-Message", message)):
                if value:
                    self.send_header(header, value)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send_json(self, value):
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_file(self, commit, file, data):
            tag = f'"{digest(file, data)}"'
            if hub.elsewhere is not None and file.endswith(LARGE):
                self.send_response(302)
                self.send_header("Location", hub.elsewhere.url + self.path)
                self.send_header("X-Linked-Etag", tag)
                self.send_header("X-Linked-Size", str(len(data)))
                self.send_header("X-Repo-Commit", commit)
                self.send_header("Content-Length", "0")
                return self.end_headers()
            start, asked = 0, self.headers.get("Range")
            if asked and hub.takes_ranges:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206 if start else 200)
            body = spoilt(data, hub.flipped.get(file))[: hub.claimed.get(file)][start:]
            body += bytes(max(0, hub.claimed.get(file, 0) - len(data)))
            self.send_header("ETag", tag)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Content-Length", str(len(body)))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
            self.end_headers()
            if self.command == "HEAD":
                return None
            return self.send_body(file, body)

        def send_body(self, file, body):
            cuts = hub.cut[file]
            sent = body[: cuts.pop(0)] if cuts else body
            if file in hub.held:
                sent = body[: hub.held[file]]
            self.close_connection = len(sent) < len(body)
            for start in range(0, len(sent), CHUNK_BYTES):
                chunk = memoryview(sent)[start : start + CHUNK_BYTES]
                try:
                    self.wfile.write(chunk)
                except ConnectionError:  # the client has closed the connection
                    return
                hub.sent[file] += len(chunk)
            if file in hub.held:
                hub.reached.set()
                hub.left.wait()

    return Handler


def spoilt(data, place):
    if place is None:
        return data
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def parts(path):
    """A path of the Hub -> repository, `api`, `tree` or `resolve`, revision, file."""
    if path.startswith("/api/models/"):
        name, slash, revision = path.removeprefix("/api/models/").partition("/tree/")
        if slash:
            return name, "tree", revision, None
        name, _, revision = name.partition("/revision/")
        return name, "api", revision or "main", None
    name, _, rest = path.lstrip("/").partition("/resolve/")
    revision, _, file = rest.partition("/")
    return name, "resolve", revision, file
