"""One file of the Hub -> its place in the cache: what was cut goes on, what arrives is verified."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from huggingface_hub import constants, get_session, hf_raise_for_status
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # it loads them lazily
    WeakFileLock,
    build_hf_headers,
)

from pgcli.errors import InvalidCheckpoint

#: Waits before each new try, in seconds; bytes that arrive begin the count anew.
PAUSES = (1, 2, 4, 8, 8)
SHA256 = re.compile(r"[0-9a-f]{64}")
CHUNK = 2**20
# whichever library the Hub's client calls with, this is what its errors are
TRANSPORT: Any = HfHubHTTPError.__bases__[0]
TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)


class Abandoned(Exception):
    """Another file of the same download has failed."""


class CutShort(TRANSPORT):  # type: ignore[misc]
    """The answer ended before the file did, and the connection did not say so."""


@dataclass(frozen=True, slots=True)
class Remote:
    """A file of the Hub: where it is, its size in bytes and the digest that names it in the cache.

    The digest is sha256 for large files, and Git's sha1 of a blob for small ones.
    """

    name: str
    url: str
    size: int
    digest: str


class Part:
    """What has arrived of a file, and the digest of it; a file with `.incomplete` to its name."""

    def __init__(self, path: Path, remote: Remote):
        self.remote = remote
        self._path = path
        self._file = path.open("a+b")
        self._file.seek(0)
        self._begin()
        while chunk := self._file.read(CHUNK):
            self._digest.update(chunk)
            self.size += len(chunk)

    def add(self, chunk: bytes) -> None:
        self._file.write(chunk)
        self._digest.update(chunk)
        self.size += len(chunk)

    def start_over(self) -> None:
        self._file.truncate(0)
        self._begin()

    def settle(self, blob: Path) -> None:
        """Become `blob`, if all is as the Hub says; else InvalidCheckpoint, and nothing is kept."""
        if self._digest.hexdigest() != self.remote.digest:
            self._path.unlink()
            raise InvalidCheckpoint(
                f"{self.remote.name} arrived damaged: its checksum is not the one that the Hub has",
                hint="nothing of this file is kept: the same command again downloads it anew",
            )
        self._file.flush()
        os.fsync(self._file.fileno())  # the name vouches for the contents, after a power cut too
        self._path.replace(blob)

    def close(self) -> None:
        self._file.close()
        if not self.size:
            self._path.unlink(missing_ok=True)

    def _begin(self) -> None:
        self.size = 0
        if SHA256.fullmatch(self.remote.digest):
            self._digest = hashlib.sha256()
        else:
            self._digest = hashlib.sha1(b"blob %d\0" % self.remote.size, usedforsecurity=False)


def part_of(blob: Path) -> Path:
    """Where the bytes of a file are until all have arrived."""
    return blob.with_name(f"{blob.name}.incomplete")


def arrived(blob: Path, remote: Remote) -> int:
    """How many bytes of a file are in the cache."""
    for path in (blob, part_of(blob)):
        with suppress(FileNotFoundError):
            return min(path.stat().st_size, remote.size)
    return 0


def fetch(
    remote: Remote,
    blob: Path,
    lock: Path,
    *,
    at: Callable[[int], None],
    remark: Callable[[str], None],
    over: Event,
) -> None:
    """Put a file of the Hub at `blob`; what lies there has the digest that is its name.

    Goes on where an earlier try was cut, and tries again where one breaks off. `at` is told how
    many bytes of the file are there. Raises InvalidCheckpoint for other contents than the Hub says
    it has, of which nothing is kept, and the client's errors; Abandoned once it is `over`.
    """
    for folder in (blob.parent, lock.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(WeakFileLock(lock, timeout=1))
        except TimeoutError:
            remark(f"{remote.name} is being downloaded by another process, which is waited for")
            held.enter_context(WeakFileLock(lock))
        if not blob.exists():
            part = held.enter_context(closing(Part(part_of(blob), remote)))
            _fill(part, at, remark, over)
            part.settle(blob)
        at(remote.size)


def _fill(
    part: Part, at: Callable[[int], None], remark: Callable[[str], None], over: Event
) -> None:
    if part.size > part.remote.size:
        part.start_over()
    tries = 0
    while part.size < part.remote.size:
        before = part.size
        at(before)
        try:
            _stream(part, at, over)
        except TRANSPORT as error:
            tries = 0 if part.size > before else tries + 1
            if tries == len(PAUSES) or not _is_transient(error):
                raise
            remark(
                f"{part.remote.name} broke off after {part.size:,} of {part.remote.size:,} bytes; "
                "trying again"
            )
            over.wait(PAUSES[tries])


def _stream(part: Part, at: Callable[[int], None], over: Event) -> None:
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if part.size:
        headers["Range"] = f"bytes={part.size}-"
    wanted, timeout = part.remote.size, constants.HF_HUB_DOWNLOAD_TIMEOUT
    # a redirect to another host leaves the token behind: the client takes care of that
    with get_session().stream("GET", part.remote.url, headers=headers, timeout=timeout) as answer:
        hf_raise_for_status(answer)
        if part.size and answer.status_code != 206:
            part.start_over()
        for chunk in answer.iter_bytes():
            if over.is_set():
                raise Abandoned
            part.add(chunk)
            at(min(part.size, wanted))
            if part.size > wanted:
                return
    if part.size < wanted:
        raise CutShort(f"{part.remote.name} ended after {part.size} of {wanted} bytes")


def _is_transient(error: Exception) -> bool:
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in TRANSIENT_STATUS
    return True
