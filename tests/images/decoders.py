"""Decoders that decoding processes import by name, and a list of these processes."""

import contextlib
import json
import os
import signal
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from pgcli.images.child_process import claim_memory
from pgcli.records import DecodedImage, Fault, Item

REPLY = {"width": 1, "height": 1, "load_ms": 0.0, "fault": None, "stamp": None}


@dataclass(frozen=True)
class ScriptedDecoder:
    """A decoder that behaves as the item's id says. Every image has one pixel."""

    def __call__(self, item: Item) -> DecodedImage:
        match item.id:
            case "crash":
                os.abort()
            case "hang":
                time.sleep(60)
            case "crash once" if item.path and not Path(item.path).exists():
                Path(item.path).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            case "compute":
                while True:
                    pass
            case "slow":
                time.sleep(0.2)
            case "large" if item.path:
                claim_memory(2**50)
                return alone(item, Path(item.path))
            case "fault":
                return DecodedImage(item, None, None, None, 0.0, Fault("missing", "No file."))
        return DecodedImage(item, 1, 1, np.zeros((1, 1, 3), np.uint8), 0.0)

    @property
    def shape(self) -> tuple[int, ...]:
        return 1, 1, 3


def alone(item: Item, file: Path) -> DecodedImage:
    """An image of one pixel, or a fault if another image is being decoded."""
    try:
        file.touch(exist_ok=False)
    except FileExistsError:
        return DecodedImage(item, None, None, None, 0.0, Fault("oom", "Another is decoded."))
    time.sleep(0.4)
    file.unlink()
    return DecodedImage(item, 1, 1, np.zeros((1, 1, 3), np.uint8), 0.0)


class HostileDecoder(ScriptedDecoder):
    """A decoder taken over by a hostile file: it writes its own bytes.

    The item's path has the bytes in hexadecimal; an item without a path is decoded.
    """

    def __call__(self, item: Item) -> DecodedImage:
        if item.path is not None:
            connection = max(
                int(fd.name) for fd in Path("/proc/self/fd").iterdir() if is_socket(fd)
            )
            os.write(connection, bytes.fromhex(item.path))
            time.sleep(60)  # sends nothing more
        return super().__call__(item)


def is_socket(fd: Path) -> bool:
    """Whether a descriptor of this process is open and a socket."""
    try:
        return str(fd.readlink()).startswith("socket:")
    except OSError:
        return False


def frame(header: bytes, data: bytes = b"", *, size: int | None = None) -> bytes:
    """The bytes of one message of a Connection that states `size` for its data."""
    return struct.pack("!II", len(header), len(data) if size is None else size) + header + data


def reply(data: bytes = bytes(3), **changes: object) -> bytes:
    """The bytes of a process's reply, an image of one pixel, with these changes."""
    return frame(json.dumps({**REPLY, **changes}).encode(), data)


def worker_processes() -> list[psutil.Process]:
    """This process's decoding processes; other tests may have left a server running."""
    workers = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.ZombieProcess):  # a server that another test has ended
            if "pgcli.images.worker" in " ".join(child.cmdline()):
                workers.append(child)
    return workers
