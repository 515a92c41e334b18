"""The server of a page: on this machine only, for those who know its token."""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import parse_qs, urlsplit

from pgcli.errors import PgcliError
from pgcli.images import ImageLimits
from pgcli.labels.json_values import InvalidValue
from pgcli.records import Item
from pgcli.results.gallery import (
    SCRIPTS,
    ThumbnailMaker,
    read_run_info,
    small_copies,
    thumbnail_entry,
)
from pgcli.results.image_locator import ImageLocator, ImageRef
from pgcli.results.overlay import LabelColours
from pgcli.results.pages import Cards, label_colours, page_policy, page_row, render_page
from pgcli.results.serving.edits_log import EditsLog
from pgcli.results.serving.rows import ServedRows
from pgcli.text import count, json_object, listed

ADDRESS = "127.0.0.1"
MAX_BODY = 2**20  # bytes of a request: an edit of thousands of boxes
MAX_OFFERED = 1000  # prompts and labels
SIDE = 768  # of thumbnails: large enough to correct boxes
IDLE_SECONDS = 60  # after which a silent connection is closed


class Thumbnails:
    """Makes thumbnails one after the other, by processes with limits of memory and time."""

    def __init__(self, locator: ImageLocator, side: int):
        self._locator, self._maker = locator, ThumbnailMaker(side, ImageLimits())
        self._wanted: SimpleQueue[tuple[ImageRef, SimpleQueue[str]] | None] = SimpleQueue()
        self._replies: deque[SimpleQueue[str]] = deque()
        threading.Thread(target=self._run, daemon=True).start()

    def entry(self, image: ImageRef) -> str:
        """The page's entry of an image: its thumbnail, or why there is none."""
        reply: SimpleQueue[str] = SimpleQueue()
        self._wanted.put((image, reply))
        return reply.get()

    def close(self) -> None:
        """End the processes."""
        self._wanted.put(None)

    def _items(self) -> Iterator[Item]:
        while (wanted := self._wanted.get()) is not None:
            image, reply = wanted
            self._replies.append(reply)
            yield self._locator.item(image.index, image)

    def _run(self) -> None:
        try:
            for image in small_copies(self._items(), sys.maxsize, self._locator, self._maker):
                self._replies.popleft().put(thumbnail_entry(image))
        except PgcliError as problem:  # no process can start, or credentials have expired
            failed = json.dumps([0, None, None, "io_error", str(problem)])
            for _ in self._items():
                while self._replies:
                    self._replies.popleft().put(failed)


class PageServer(ThreadingHTTPServer):
    """Serves the page of a result file at `url`, which has its token, and saves its edits."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, output: Path, locator: ImageLocator, side: int | None, reviewer: str | None):
        self.rows = ServedRows(output)
        self.log = EditsLog(self.rows, reviewer)
        super().__init__((ADDRESS, 0), PageRequest)
        self.token = secrets.token_urlsafe(32)
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        self.url = f"http://{ADDRESS}:{self.server_port}/?token={self.token}"
        self._locator, self._thumbnails = locator, Thumbnails(locator, side or SIDE)
        info, cards = read_run_info(output, output.name, output.parent), Cards()
        self._colours = LabelColours(info.labels)
        cards.add(info, ())
        more = ("connect-src 'self'",)
        data = {**cards.data(), "isServed": True}
        page = render_page("pgcli.results", SCRIPTS, data, title=output.name, policy=more)
        self.page = "".join(page).encode()
        self.policy = page_policy("pgcli.results", SCRIPTS, (*more, "frame-ancestors 'none'"))
        self.answers: dict[tuple[str, str], Callable[[Mapping[str, Any]], Any]] = {
            ("GET", "/state"): self._state,
            ("GET", "/order"): self._order,
            ("GET", "/row"): self._row,
            ("POST", "/edit"): self._edit,
            ("POST", "/undo"): lambda values: {"number": self.log.undo()},
        }
        self._notes: list[str] = []  # on the page: which rows or edits are not shown
        threading.Thread(target=self._index, daemon=True).start()

    def _index(self) -> None:
        """Find all rows and their saved edits."""
        try:
            self.rows.index(self.log.match)
        except PgcliError as problem:
            self.rows.is_complete = True  # no more are found
            self._notes.append(f"rows are missing: {problem}")
            self._locator.say(str(problem), problem.hint)
            return
        for reason, edits in self.log.unapplied().items():
            if edits:
                note = f"not applied, {reason}: "
                self._notes.append(note + count(len(edits), "edit"))
                self._locator.say(note + listed(edits, separator=";"), "review these rows again")

    def _state(self, words: Mapping[str, Any]) -> Any:
        """What has been found of the rows, and the edits since the place that the page knows."""
        end, edits = self.log.changed_since(int(words["since"]))
        state = {"since": end, "edits": edits, "note": " \u00b7 ".join(self._notes)}
        if len(self.rows) == int(words["total"]):
            return state
        facts = self.rows.facts()
        labels, prompts = (facts[name][:MAX_OFFERED] for name in ("labels", "prompts"))
        self._colours.extend(label for label, _ in labels)
        labels = [[*label, *label_colours(self._colours, label[0])] for label in labels]
        return {**state, "facts": {**facts, "labels": labels, "prompts": prompts}}

    def _order(self, words: Mapping[str, Any]) -> bytes:
        """1 if more rows may match later, else 0, then the numbers of those that match."""
        is_complete, states = self.rows.is_complete, self.log.states(len(self.rows))
        order, is_searched = self.rows.order(json.loads(words["query"]), states)
        is_open = not (is_searched and is_complete)
        return int(is_open).to_bytes(4, "little") + order.tobytes()

    def _row(self, words: Mapping[str, Any]) -> Any:
        """A row as the page reads it, and its image."""
        row = self.rows.row(self._known(int(words["number"])))
        image = self._thumbnails.entry(ImageRef.of(row, self.rows.output))
        return {"row": page_row(row), "image": json.loads(image)}

    def _edit(self, values: Mapping[str, Any]) -> Any:
        """Save an edit of a row."""
        names = ("digest", "state", "answer", "boxes")
        changes = {name: values[name] for name in names if values.get(name) is not None}
        self.log.add(self._known(int(values["number"])), changes)
        return {}

    def _known(self, number: int) -> int:
        if not 0 <= number < len(self.rows):
            raise InvalidValue("there is no such row")
        return number

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that is closed breaks its connections; anything else is a bug."""
        if not isinstance(sys.exc_info()[1], OSError):
            raise

    def serve(self) -> None:
        """Serve until a signal; then everything is saved."""
        try:
            self.serve_forever()
        finally:
            self._thumbnails.close()
            self.server_close()
            self.log.close()


class PageRequest(BaseHTTPRequestHandler):
    """Answers one connection of the page."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "pgcli", ""
    timeout = IDLE_SECONDS

    def do_GET(self) -> None:
        """Answer with the page, or with data for it."""
        address = urlsplit(self.path)
        words = {name: values[-1] for name, values in parse_qs(address.query).items()}
        if address.path != "/":
            self._answer(address.path, words)
        elif self._is_allowed(words.get("token", "")):
            self._send(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")

    def do_POST(self) -> None:
        """Save an edit: as JSON and with a header, which no form of another page sends."""
        length = self.headers.get("Content-Length", "")
        is_short = length.isdecimal() and int(length) <= MAX_BODY
        body = self.rfile.read(int(length)) if is_short else None
        is_json = self.headers.get_content_type() == "application/json"
        self._answer(self.path, json_object(body) if is_json else None)

    def _is_allowed(self, token: str) -> bool:
        """Whether the request has the token and is for this server, not for another name of it."""
        hosts = self.headers.get_all("Host", [])
        has_token = hmac.compare_digest(token.encode(), self.server.token.encode())
        is_allowed = has_token and len(hosts) == 1 and hosts[0] in self.server.hosts
        if not is_allowed:
            self._refuse(HTTPStatus.FORBIDDEN, "open the address that pgcli view printed")
        return is_allowed

    def _answer(self, path: str, words: Mapping[str, Any] | None) -> None:
        if not self._is_allowed(self.headers.get("X-Pgcli-Token", "")):
            return
        answer = self.server.answers.get((self.command, path))
        if answer is None or words is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "there is nothing here")
        try:
            content = answer(words)
        except (ValueError, TypeError, KeyError, AttributeError) as problem:
            return self._refuse(HTTPStatus.BAD_REQUEST, str(problem))
        except PgcliError as problem:
            return self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, str(problem))
        if isinstance(content, bytes):
            return self._send(HTTPStatus.OK, content, "application/octet-stream")
        self._send(HTTPStatus.OK, json.dumps(content, allow_nan=False).encode())

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self.close_connection = True
        self._send(status, json.dumps({"error": reason}).encode())

    def _send(self, status: HTTPStatus, content: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Cache-Control", "no-store")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Requests are not logged."""
