"""Look at pictures ahead of the model, in processes of their own, bounded by bytes."""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any

from PIL import Image

from pgcli.records import Fault, Item, Picture

Look = Callable[[Item], Picture]

TIME_LIMIT_SECONDS = 30
START_LIMIT_SECONDS = 120
DEFAULT_WORKERS = 4

#: What a decoded square is taken to need until one was seen: 896 pixels a side, the largest model.
LARGEST_SQUARE_BYTES = 896 * 896 * 3

_LENGTH = struct.Struct("<Q")
_READY = "ready"

#: The parent's module path is passed on, so that a checkout works that is not installed; -P keeps
#: the current folder, where pictures may be, from becoming a place that modules come from.
_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; from pgcli.workers import serve; serve()"


class WorkerDied(Exception):
    """The process ended in the middle of a picture."""


class TookTooLong(Exception):
    """The process was still at a picture when its time was over."""


def look_ahead(
    items: Iterable[Item],
    look: Look,
    *,
    workers: int | None,
    few: bool,
    ahead_bytes: int = 256 * 2**20,
) -> Iterator[Picture]:
    """The items' pictures, in order, looked at by `workers` processes ahead of who takes them.

    With `few`, or no workers, each is looked at in this process when it is asked for. Item bytes
    are let go once looked at. A picture that kills its process, twice, or takes longer than
    `TIME_LIMIT_SECONDS` has a fault; closing the iterator ends the processes.
    """
    if few or workers == 0:
        for item in items:
            yield _without_data(look(item))
        return
    count = workers or min(DEFAULT_WORKERS, os.cpu_count() or 1)
    with _Ahead(look, count, ahead_bytes) as ahead:
        threading.Thread(target=ahead.feed, args=(items,), daemon=True).start()
        yield from ahead.pictures()


def serve() -> None:
    """The worker process: a look, then items, come on stdin; pictures go out on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a supervisor's too: the parent decides
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b") as nothing:  # what a decoder prints must not enter the stream
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    look = _receive(requests)
    Image.MAX_IMAGE_PIXELS = None  # this process is ours, and `look` has the limit that counts
    with suppress(BrokenPipeError):
        _send(replies, _READY)
        while (item := _receive(requests)) is not None:
            signal.alarm(TIME_LIMIT_SECONDS + 5)  # no orphan, should the parent die meanwhile
            picture = _without_data(look(item))
            signal.alarm(0)
            _send(replies, picture)


def _send(pipe: IO[bytes], thing: object) -> None:
    data = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    """What the other side sent, None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    return pickle.loads(data) if len(data) == length else None


def _without_data(picture: Picture) -> Picture:
    return replace(picture, item=replace(picture.item, data=None))


class _Worker:
    """A worker process, started when made and again whenever it has died."""

    def __init__(self, look: Look):
        self._look = look
        self._lock = threading.Lock()
        self._stopped = False
        self._ready = False
        self._start()

    def look(self, item: Item) -> Picture:
        """The item's picture. One that the process dies of is tried once more, in a fresh one."""
        fault = Fault("worker_crashed", "The process that decodes the picture died of it, twice.")
        for _ in range(2):
            try:
                return self._answer(item)
            except WorkerDied:
                self._restart()
            except TookTooLong:
                self._restart()
                message = f"Decoding the picture takes longer than {TIME_LIMIT_SECONDS} seconds."
                fault = Fault("timeout", message)
                break
        return Picture(replace(item, data=None), None, None, None, 0.0, fault)

    def stop(self) -> None:
        """End the process, and let no new one start."""
        with self._lock:
            self._stopped = True
            self._end()

    def _answer(self, item: Item) -> Picture:
        self._wait_until_ready()
        try:
            # what only the output needs stays here
            _send(self._requests, replace(item, fields={}, kept={}))
        except OSError as problem:
            raise WorkerDied from problem
        picture: Picture = self._reply(TIME_LIMIT_SECONDS)
        return replace(picture, item=replace(item, data=None))

    def _wait_until_ready(self) -> None:
        """Keep the time that starting takes from counting as the first picture's."""
        if self._ready:
            return
        try:
            self._ready = self._reply(START_LIMIT_SECONDS) == _READY
        except (WorkerDied, TookTooLong) as problem:
            if self._stopped:
                raise
            raise RuntimeError(f"A worker process did not start: {sys.executable}") from problem

    def _reply(self, seconds: float) -> Any:
        poll = select.poll()
        poll.register(self._replies, select.POLLIN)
        if not poll.poll(seconds * 1000):
            raise TookTooLong
        reply = _receive(self._replies)
        if reply is None:
            raise WorkerDied
        return reply

    def _start(self) -> None:
        home = str(Path(__file__).parent.parent)
        path = [entry for entry in sys.path if entry]
        command = [sys.executable, "-P", f"-Xutf8={sys.flags.utf8_mode}", "-c", _PROGRAM]
        self._process = subprocess.Popen(
            [*command, *path, *([] if home in path else [home])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # the terminal's Ctrl-C is for the parent, also while this one starts
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._replies = self._process.stdin, self._process.stdout
        self._ready = False
        with suppress(OSError):  # one that died at once is noticed when it is not ready
            _send(self._requests, self._look)

    def _restart(self) -> None:
        with self._lock:
            if self._stopped:
                raise WorkerDied
            self._end()
            self._start()

    def _end(self) -> None:
        self._process.kill()
        with suppress(OSError):  # bytes that were not taken any more
            self._requests.close()
        with suppress(subprocess.TimeoutExpired):  # it may hang in a dead disk, beyond signals
            self._process.wait(timeout=5)


class _Ahead:
    """Pictures under way: a thread for each worker, and one that takes items as they come.

    Items may come slowly (a pipe), so they are waited for apart from the pictures; the bytes
    claimed by pictures not yet taken stay below `ahead_bytes`, but for a single one.
    """

    def __init__(self, look: Look, count: int, ahead_bytes: int):
        self._workers = [_Worker(look) for _ in range(count)]
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        self._pool = ThreadPoolExecutor(count, "pgcli-look")
        self._coming: SimpleQueue[tuple[Future[Picture], int] | Exception | None] = SimpleQueue()
        self._room = threading.Condition()
        self._ahead_bytes = ahead_bytes
        self._claimed_bytes = 0
        self._square_bytes = LARGEST_SQUARE_BYTES
        self._stopped = False

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        with self._room:
            self._stopped = True
            self._room.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.stop()
        self._pool.shutdown(wait=True)

    def feed(self, items: Iterable[Item]) -> None:
        """Hand items to the workers as they come and as there is room, until stopped."""
        end: Exception | None = None
        try:
            for item in items:
                claim = self._claimed(len(item.data or b""))
                if self._stopped:
                    return
                self._coming.put((self._pool.submit(self._looked_at, item), claim))
        except Exception as problem:  # noqa: BLE001 - raised where the pictures are taken
            end = problem
        self._coming.put(end)

    def pictures(self) -> Iterator[Picture]:
        """The pictures in the items' order; what the items raised, after those before it."""
        while isinstance(coming := self._coming.get(), tuple):
            future, claim = coming
            picture = future.result()
            with self._room:
                self._claimed_bytes -= claim
                if picture.pixels is not None:
                    self._square_bytes = picture.pixels.nbytes
                self._room.notify()
            yield picture
        if coming is not None:
            raise coming

    def _claimed(self, data_bytes: int) -> int:
        with self._room:
            claim = data_bytes + self._square_bytes
            self._room.wait_for(lambda: self._stopped or self._has_room(claim))
            self._claimed_bytes += claim
            return claim

    def _has_room(self, claim: int) -> bool:
        return not self._claimed_bytes or self._claimed_bytes + claim <= self._ahead_bytes

    def _looked_at(self, item: Item) -> Picture:
        worker = self._idle.get()
        try:
            return worker.look(item)
        finally:
            self._idle.put(worker)
