"""A decoding process: its messages, its main loop, and the parent's side, which restarts it."""

from __future__ import annotations

import signal
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, Protocol, get_type_hints

import numpy as np
from PIL import Image

from pgcli.errors import NoUsableDevice
from pgcli.images.child_process import (
    ChildProcess,
    Connection,
    ProcessFailed,
    limit_processor_time,
    release_memory,
    share_memory,
    start_serving,
)
from pgcli.images.decode import silence_decoders
from pgcli.records import MAX_IMAGE_BYTES, DecodedImage, Fault, Item

#: The most bytes of a decoded image; 896 x 896 RGB pixels are 2.4 MB.
MAX_PIXEL_BYTES = 64 * 2**20


class Decoder(Protocol):
    """Decodes items. A dataclass of plain values, which a process rebuilds from them."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __call__(self, item: Item) -> DecodedImage:
        """The decoded item, or its fault. Raises nothing for a bad image."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the pixels that this decoder makes; -1 is any length."""


def describe_decoder(decoder: Decoder) -> dict[str, Any]:
    """The decoder's class and fields as JSON."""
    kind = type(decoder)
    names = {"module": kind.__module__, "class": kind.__qualname__}
    return {**names, "fields": asdict(decoder)}


def from_fields(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """The dataclass with these values, which `asdict` made."""
    kinds = get_type_hints(kind)
    return kind(
        **{
            name: from_fields(kinds[name], value) if isinstance(value, dict) else value
            for name, value in values.items()
        }
    )


def item_message(item: Item) -> tuple[dict[str, Any], bytes]:
    """What decoding needs of an item; prompts and columns stay here."""
    header = {"index": item.index, "id": item.id, "path": item.path}
    header |= {"span": item.span, "root": item.root, "has_data": item.data is not None}
    return header, item.data or b""


def image_message(image: DecodedImage) -> tuple[dict[str, Any], memoryview | bytes]:
    """A decoded image without its item, which the parent keeps."""
    fault, pixels = image.fault, image.pixels
    header = {
        "width": image.width,
        "height": image.height,
        "load_ms": image.load_ms,
        "fault": None if fault is None else [fault.code, fault.message],
        "stamp": image.stamp,
    }
    return header, b"" if pixels is None else np.ascontiguousarray(pixels).reshape(-1).data


def image_from(
    header: Mapping[str, Any], data: memoryview, item: Item, decoder: Decoder
) -> DecodedImage:
    """The decoded item. Raises ProcessFailed for a message of another kind.

    NumPy's integers have a range, as the columns that they are written to.
    """
    try:
        fault = None if header["fault"] is None else Fault(*map(str, header["fault"]))
        pixels = None if fault else np.frombuffer(data, np.uint8).reshape(decoder.shape)
        width, height, stamp = header["width"], header["height"], header["stamp"]
        if fault is None or width is not None:
            width, height = max(1, int(np.int32(width))), max(1, int(np.int32(height)))
        if stamp is not None:
            size, time_ns, digest = (int(np.int64(number)) for number in stamp)
            stamp = size, time_ns, digest
        load_ms = round(1000 * header["load_ms"]) / 1000  # refuses NaN and infinity
    except (LookupError, TypeError, ValueError, OverflowError) as problem:
        raise ProcessFailed(str(problem)) from problem
    return DecodedImage(without_data(item), width, height, pixels, load_ms, fault, stamp)


def without_data(item: Item) -> Item:
    """The item without its bytes."""
    return item if item.data is None else replace(item, data=None)


#: Processor time for one image: a slow or busy machine loses no image.
PROCESSOR_SECONDS = 30
#: Wall time for one image, including waits for a disk.
TIME_LIMIT_SECONDS = 300
#: The work that waits in a process, so that it never waits for its next item.
WAITING_MS = 15.0
#: Items that wait there; the system's buffers have room for them.
MAX_WAITING_BYTES = 2**17
CRASHED = Fault("worker_crashed", "The process that decodes the image crashed twice.")


def serve(connection: Connection, settings: Mapping[str, Any]) -> None:
    """Decode items until the connection ends; the main loop of a decoding process.

    An image that takes too much processor time ends the process by SIGPROF.
    """
    kind = getattr(import_module(settings["module"]), settings["class"])
    decode: Decoder = from_fields(kind, settings["fields"])
    share_memory(settings["lock"])
    Image.MAX_IMAGE_PIXELS = None  # the decoder checks --max-pixels itself
    start_serving(connection)
    while True:
        header, data = connection.receive(MAX_IMAGE_BYTES)
        content = bytes(data) if header["has_data"] else None
        span = tuple(header["span"]) if header["span"] else None
        names = header["id"], header["id"], header["path"]
        item = Item(header["index"], *names, content, root=header["root"], span=span)
        limit_processor_time(settings["processor_seconds"])
        message = image_message(decode(item))
        limit_processor_time(0)
        release_memory()
        connection.send(*message)


@dataclass(eq=False, slots=True)
class Job:
    """An item to decode, and its image once it is `done`.

    It has `reserved` so many bytes of memory. `held` is closed once its bytes are not needed.
    """

    item: Item
    reserved: int
    image: DecodedImage | None = None
    done: threading.Event = field(default_factory=threading.Event)
    held: ExitStack | None = None
    fetch_ms: float = 0.0
    has_crashed: bool = False

    def release(self) -> None:
        """Release the bytes that were fetched for it."""
        if self.held is not None:
            self.held.close()


#: The jobs that no process has yet; None ends the threads that take them.
JobQueue = SimpleQueue[Job | None]


class LocalWorker:
    """Decodes jobs in this process."""

    def __init__(self, decoder: Decoder):
        silence_decoders()
        self._decoder = decoder
        self.jobs: list[Job] = []

    def take(self, waiting: JobQueue) -> bool:
        """Wait for the next job. False once there are no more."""
        job = waiting.get()
        self.jobs = [] if job is None else [job]
        return job is not None

    def decode(self) -> tuple[Job, DecodedImage]:
        """The job and its image."""
        image = self._decoder(self.jobs[0].item)
        return self.jobs.pop(), replace(image, item=without_data(image.item))


class Worker:
    """A decoding process with its jobs, restarted whenever it has died. One thread uses it.

    It decodes the jobs in order and returns each image at once, so the first job without an image
    is the one that kills it.
    """

    def __init__(self, decoder: Decoder, lock: str):
        self._decoder = decoder
        limits = {"processor_seconds": PROCESSOR_SECONDS, "lock": lock}
        self._settings = {**describe_decoder(decoder), **limits}
        self._lock = threading.Lock()
        self._stopped = False
        self.jobs: deque[Job] = deque()
        self._sent: deque[int] = deque()
        self._max_jobs = 1
        self._process = self._start()

    def take(self, waiting: JobQueue) -> bool:
        """Take the next jobs, and wait for the first. False once there are no more."""
        while len(self.jobs) < self._max_jobs:
            try:
                job = waiting.get(block=not self.jobs)
            except Empty:
                break
            if job is None:
                waiting.put(None)
                break
            self.jobs.append(job)
        return bool(self.jobs)

    def decode(self) -> tuple[Job, DecodedImage]:
        """The first job and its image. If the process dies, it is tried once more in a new one."""
        job, image = self.jobs[0], None
        while image is None:
            self._wait_until_ready()
            try:
                image = self._request(job)
                self._max_jobs = 1 + int(WAITING_MS / max(image.load_ms, 1.0))
            except ProcessFailed as problem:
                late = f"{TIME_LIMIT_SECONDS} seconds" if problem.is_late else ""
                if self._restart() == -signal.SIGPROF and not late:
                    late = f"{PROCESSOR_SECONDS} seconds of processor time"
                if late:
                    fault = Fault("timeout", f"Decoding the image takes longer than {late}.")
                    image = with_fault(job.item, fault)
                elif job.has_crashed:
                    image = with_fault(job.item, CRASHED)
                job.has_crashed = True
        self.jobs.popleft()
        if self._sent:
            self._sent.popleft()
        return job, image

    def stop(self) -> None:
        """End the process for good. A thread that is decoding with it gets an error."""
        with self._lock:
            self._stopped = True
            self._process.kill()

    def close(self) -> None:
        """Release the process, once no thread uses it any more."""
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
        for unsent in list(self.jobs)[len(self._sent) :]:
            item = unsent.item
            names = len(item.id) + len(item.path or "") + len(item.root or "")
            size = len(item.data or b"") + 6 * names  # or less: JSON escapes a character in six
            if self._sent and sum(self._sent) + size > MAX_WAITING_BYTES:
                break
            self._sent.append(size)
            self._process.send(*item_message(unsent.item), TIME_LIMIT_SECONDS)
        reply, pixels = self._process.receive(MAX_PIXEL_BYTES, TIME_LIMIT_SECONDS)
        return image_from(reply, pixels, job.item, self._decoder)

    def _start(self) -> ChildProcess:
        with start_errors():
            return ChildProcess(__name__, self._settings)

    def _restart(self) -> int | None:
        """Start a new process; return the exit code of the previous one."""
        with self._lock:
            if self._stopped:
                raise ProcessFailed
            code = self._process.close()
            self._sent.clear()
            self._process = self._start()
            return code


def with_fault(item: Item, fault: Fault) -> DecodedImage:
    """The item with its fault instead of pixels."""
    return DecodedImage(without_data(item), None, None, None, 0.0, fault)


@contextmanager
def start_errors() -> Iterator[None]:
    """Turn a failed start of a process into NoUsableDevice."""
    try:
        yield
    except ProcessFailed as problem:
        raise NoUsableDevice(
            f"a process that decodes images cannot start: {problem}",
            hint="free memory or processes of this machine or container, or start fewer with "
            "<--workers=>; <--workers 0> decodes in this process. The same command resumes the run",
        ) from problem
