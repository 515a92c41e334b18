"""A decoding process: its main loop, and the parent's side, which restarts it when it dies."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from PIL import Image

from pgcli.errors import NoUsableDevice
from pgcli.images.child_process import ChildProcess, Connection, ProcessFailed, start_serving
from pgcli.images.limits import UNCLAIMED_BYTES, Budget, ask_for_memory, limit_processor_time
from pgcli.images.messages import (
    MAX_PIXEL_BYTES,
    Decoder,
    claim_of,
    describe_decoder,
    image_from,
    image_message,
    items_from,
    items_message,
    load_decoder,
    without_data,
)
from pgcli.records import MAX_IMAGE_BYTES, DecodedImage, Fault, Item

#: Processor time for one image: a slow or busy machine loses no image.
PROCESSOR_SECONDS = 30
#: Wall time for one image, including waits for a disk.
TIME_LIMIT_SECONDS = 300
#: The work that waits in a process, so that it never waits for its next item.
WAITING_MS = 15.0
#: Items that wait there; the system's buffers have room for them.
MAX_WAITING_BYTES = 2**17
#: The claims of an image: for its file, and for its pixels.
MAX_CLAIMS = 2
CRASHED = Fault("worker_crashed", "The process that decodes the image crashed twice.")


def serve(connection: Connection, settings: Mapping[str, Any]) -> None:
    """Decode items until the connection ends; the main loop of a decoding process.

    An image that takes too much processor time ends the process by SIGPROF.
    """
    items: deque[Item] = deque()

    def receive() -> bool:
        """Receive more items; False for none, which grants a claim."""
        received = items_from(*connection.receive(MAX_IMAGE_BYTES))
        items.extend(received)
        return bool(received)

    def claim(size: int) -> None:
        connection.send({"claim": size})
        while receive():
            pass

    decode = load_decoder(settings)
    ask_for_memory(claim)
    Image.MAX_IMAGE_PIXELS = None  # the decoder checks --max-pixels itself
    start_serving(connection)
    while True:
        while not items:
            receive()
        limit_processor_time(settings["processor_seconds"])
        message = image_message(decode(items.popleft()))
        limit_processor_time(0)
        connection.send(*message)


@dataclass(eq=False, slots=True)
class Job:
    """An item to decode, and its image once it is decoded.

    It has `reserved` so many bytes of memory, and `size` is the most that it takes in a message.
    `held` is closed once its bytes are not needed.
    """

    item: Item
    reserved: int
    size: int = 0
    image: DecodedImage | None = None
    held: ExitStack | None = None
    fetch_ms: float = 0.0
    has_crashed: bool = False


class Worker:
    """A decoding process with its jobs, restarted whenever it has died. One thread uses it.

    It decodes the jobs in order and returns each image at once, so the first job without an image
    is the one that kills it.
    """

    def __init__(self, decoder: Decoder, memory: Budget):
        limit = {"processor_seconds": PROCESSOR_SECONDS}
        self._decoder, self._memory = decoder, memory
        self._settings = {**describe_decoder(decoder), **limit}
        self._lock = threading.Lock()
        self._stopped = False
        self.jobs: deque[Job] = deque()
        self._sent = self._bytes = 0  # of the jobs
        self._claimed = 0
        self._max_jobs = 1
        self._process = self._start()

    @property
    def wants_jobs(self) -> bool:
        """Whether the process has done half of its jobs."""
        return len(self.jobs) <= self._max_jobs // 2

    def take(self, waiting: deque[Job], limit: int) -> None:
        """Take the first of the waiting jobs, at most so many."""
        limit = min(self._max_jobs, len(self.jobs) + limit)
        while waiting and len(self.jobs) < limit:
            if self.jobs and self._bytes + waiting[0].size > MAX_WAITING_BYTES:
                return
            self._bytes += waiting[0].size
            self.jobs.append(waiting.popleft())

    def decode(self) -> tuple[Job, DecodedImage]:
        """The first job and its image. If the process dies, it is tried once more in a new one."""
        while True:
            self._wait_until_ready()
            job = self.jobs[0]
            try:
                image = self._request(job)
                self._max_jobs = 1 + int(WAITING_MS / max(image.load_ms, 1.0))
                break
            except ProcessFailed as problem:
                if fault := self._fault(job, problem.is_late, self._restart()):
                    image = with_fault(job.item, fault)
                    break
        self.jobs.popleft()
        self._sent = max(0, self._sent - 1)
        self._bytes -= job.size
        return job, image

    def stop(self) -> None:
        """End the process for good. A thread that is decoding with it gets an error."""
        with self._lock:
            self._stopped = True
            self._process.kill()

    def close(self) -> None:
        """Release the memory claimed by the process, once no thread uses it any more."""
        self._process.close()

    def _wait_until_ready(self) -> None:
        """Wait for the process to start; one that is killed meanwhile is started once more."""
        try:
            return self._process.wait_until_ready()
        except ProcessFailed:
            self._restart()
        with start_errors():
            self._process.wait_until_ready()

    def _request(self, job: Job) -> DecodedImage:
        size = len(job.item.data or b"")
        try:
            if not self._sent:
                self._claim(size if size > UNCLAIMED_BYTES else 0)
            if items := [job.item for job in islice(self.jobs, self._sent, None)]:
                self._process.send(*items_message(items), TIME_LIMIT_SECONDS)
                self._sent = len(self.jobs)
            for _ in range(MAX_CLAIMS + 1):
                reply, pixels = self._process.receive(MAX_PIXEL_BYTES, TIME_LIMIT_SECONDS)
                if "claim" not in reply:
                    return image_from(reply, pixels, job.item, self._decoder)
                self._claim(claim_of(reply))
                self._process.send(*items_message([]), TIME_LIMIT_SECONDS)
            raise ProcessFailed("too many claims")
        finally:
            self._claim(0)

    def _claim(self, size: int) -> None:
        """Wait for so much memory in place of the earlier claim: a waiting process holds none."""
        if self._claimed:
            self._memory.give(self._claimed)
        self._claimed = size
        if size and not self._memory.take(size):
            raise ProcessFailed

    def _fault(self, job: Job, is_late: bool, code: int | None) -> Fault | None:
        """The fault of a job whose process had to be restarted; None to try once more."""
        limit = f"{TIME_LIMIT_SECONDS} seconds" if is_late else ""
        if not limit and code == -signal.SIGPROF:
            limit = f"{PROCESSOR_SECONDS} seconds of processor time"
        if limit:
            return Fault("timeout", f"Decoding the image takes longer than {limit}.")
        if job.has_crashed:
            return CRASHED
        job.has_crashed = True
        return None

    def _start(self) -> ChildProcess:
        with start_errors():
            return ChildProcess(__name__, self._settings)

    def _restart(self) -> int | None:
        """Start a new process; return the exit code of the previous one."""
        with self._lock:
            if self._stopped:
                raise ProcessFailed
            code = self._process.close()
            self._sent = 0
            self._process = self._start()
            return code


def with_fault(item: Item, fault: Fault) -> DecodedImage:
    """The item with its fault instead of pixels."""
    return DecodedImage(without_data(item), None, None, None, 0.0, fault)


@contextmanager
def start_errors() -> Iterator[None]:
    """Turn a failed start of a process or thread into NoUsableDevice."""
    try:
        yield
    except (ProcessFailed, RuntimeError) as problem:
        is_thread = isinstance(problem, RuntimeError)
        if is_thread and "start new thread" not in str(problem):
            raise
        raise NoUsableDevice(
            f"a process that decodes images cannot start: {problem}{' for it' * is_thread}",
            hint="free memory or processes of this machine or container, or start fewer with "
            "<--workers=>; <--workers 0> decodes in this process. The same command resumes the run",
        ) from problem
