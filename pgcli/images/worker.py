"""A decoding process: its main loop, and the parent's side, which restarts it when it dies."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    item_from,
    item_header,
    load_decoder,
    without_data,
)
from pgcli.records import MAX_IMAGE_BYTES, DecodedImage, Fault, Item

#: Processor time for one image: a slow or busy machine loses no image.
PROCESSOR_SECONDS = 30
#: Wall time for one image, including waits for a disk.
TIME_LIMIT_SECONDS = 300
#: The claims of an image: for its file, and for its pixels.
MAX_CLAIMS = 2
CRASHED = Fault("worker_crashed", "The process that decodes the image crashed twice.")


def serve(connection: Connection, settings: Mapping[str, Any]) -> None:
    """Decode items until the connection ends; the main loop of a decoding process.

    An image that takes too much processor time ends the process by SIGPROF.
    """

    def claim(size: int) -> None:
        connection.send({"claim": size})
        connection.receive(0)

    decode = load_decoder(settings)
    ask_for_memory(claim)
    Image.MAX_IMAGE_PIXELS = None  # the decoder checks --max-pixels itself
    start_serving(connection)
    while True:
        item = item_from(*connection.receive(MAX_IMAGE_BYTES))
        limit_processor_time(settings["processor_seconds"])
        message = image_message(decode(item))
        limit_processor_time(0)
        connection.send(*message)


class Worker:
    """A decoding process, restarted whenever it has died. One thread at a time decodes with it."""

    def __init__(self, decoder: Decoder, memory: Budget):
        limit = {"processor_seconds": PROCESSOR_SECONDS}
        self._decoder, self._memory = decoder, memory
        self._settings = {**describe_decoder(decoder), **limit}
        self._lock = threading.Lock()
        self._stopped = False
        self._process = self._start()

    def decode(self, item: Item) -> DecodedImage:
        """The decoded item. If the process dies, the item is tried once more in a new process."""
        if item.fault is not None:
            return with_fault(item, item.fault)
        for _ in range(2):
            with start_errors():
                self._process.wait_until_ready()
            try:
                return self._request(item)
            except ProcessFailed as problem:
                code = self._restart()
                limit = f"{TIME_LIMIT_SECONDS} seconds" if problem.is_late else ""
                if not limit and code == -signal.SIGPROF:
                    limit = f"{PROCESSOR_SECONDS} seconds of processor time"
                if limit:
                    message = f"Decoding the image takes longer than {limit}."
                    return with_fault(item, Fault("timeout", message))
        return with_fault(item, CRASHED)

    def stop(self) -> None:
        """End the process for good. A thread that is decoding with it gets an error."""
        with self._lock:
            self._stopped = True
            self._process.kill()

    def close(self) -> None:
        """Release the memory claimed by the process, once no thread uses it any more."""
        self._process.close()

    def _request(self, item: Item) -> DecodedImage:
        header, data = item_header(item), item.data or b""
        claimed = len(data) if len(data) > UNCLAIMED_BYTES else 0
        for _ in range(MAX_CLAIMS + 1):
            try:
                if not self._memory.take(claimed):  # a process that waits holds nothing
                    raise ProcessFailed
                self._process.send(header, data, TIME_LIMIT_SECONDS)
                reply, pixels = self._process.receive(MAX_PIXEL_BYTES, TIME_LIMIT_SECONDS)
            finally:
                self._memory.give(claimed)
            if "claim" not in reply:
                return image_from(reply, pixels, item, self._decoder)
            header, data, claimed = {}, b"", claim_of(reply)
        raise ProcessFailed("too many claims")

    def _start(self) -> ChildProcess:
        with start_errors():
            return ChildProcess(__name__, self._settings)

    def _restart(self) -> int | None:
        """Start a new process; return the exit code of the previous one."""
        with self._lock:
            if self._stopped:
                raise ProcessFailed
            code = self._process.close()
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
