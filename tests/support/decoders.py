"""Decoders for tests of worker processes. They are imported by name in the worker."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from pgcli.records import DecodedImage, Fault, Item
from pgcli.workers.message_pipe import PREFIX

REPLY = b'{"width": 1, "height": 1, "load_ms": 0.0, "fault": null, "shape": [1, 1, 3]}'


class ScriptedDecoder:
    """A decoder with behaviour chosen by the item's id. Every image has one pixel."""

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
            case "print":
                os.write(1, b"noise on stdout")
                sys.stdout.write("more")
                sys.stdout.flush()
            case "slow":
                time.sleep(0.2)
            case "fault":
                return DecodedImage(item, None, None, None, 0.0, Fault("missing", "No file."))
        return DecodedImage(item, 1, 1, np.zeros((1, 1, 3), np.uint8), 0.0)

    def settings(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        return cls()

    def produces(self, shape: tuple[int, ...]) -> bool:
        return shape == (1, 1, 3)


class HostileDecoder(ScriptedDecoder):
    """A decoder that a hostile file has taken over: it writes bytes of its own to the pipe.

    The item's path holds the bytes in hexadecimal; an item without a path is decoded.
    """

    def __call__(self, item: Item) -> DecodedImage:
        if item.path is not None:
            pipe = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir() if is_pipe(fd))
            os.write(pipe, bytes.fromhex(item.path))
            time.sleep(60)  # sends nothing more
        return super().__call__(item)


def is_pipe(fd: Path) -> bool:
    """Whether a descriptor of this process is open and a pipe."""
    try:
        return str(fd.readlink()).startswith("pipe:")
    except OSError:
        return False


def frame(header: bytes, data: bytes = b"", *, data_bytes: int | None = None) -> bytes:
    """The bytes of one message, `data_bytes` its stated length."""
    return PREFIX.pack(len(header), len(data) if data_bytes is None else data_bytes) + header + data
