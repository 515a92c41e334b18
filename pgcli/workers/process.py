"""What runs in a worker process: items in on stdin, pictures out on stdout."""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from PIL import Image

from pgcli.records import DecodedImage, Item

Look = Callable[[Item], DecodedImage]

TIME_LIMIT_SECONDS = 30
#: What a picture may take: the largest that is read, 89 million pixels, takes a gigabyte or two.
MEMORY_LIMIT_BYTES = 4 * 2**30
PR_SET_PDEATHSIG = 1
READY = "ready"

_LENGTH = struct.Struct("<Q")
_LENGTHS = struct.Struct("<QQ")


def serve() -> None:
    """The worker process: a look, then items, come on stdin; pictures go out on stdout."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a supervisor's too: the parent decides
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b") as nothing:  # what a decoder prints must not enter the stream
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    look = receive(requests)
    limit_memory()
    Image.MAX_IMAGE_PIXELS = None  # this process is ours, and `look` has the limit that counts
    with suppress(BrokenPipeError):
        send(replies, READY)
        while (item := receive(requests)) is not None:
            signal.alarm(TIME_LIMIT_SECONDS + 5)  # no orphan, should the parent die meanwhile
            picture = looked_at(look, item)
            signal.alarm(0)
            send(replies, picture)


def die_with_parent() -> None:
    """Have Linux end this process when the parent's thread that started it has ended.

    Elsewhere it ends at the end of its input, and thus not amid a picture.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_memory() -> None:
    """Have a decoder that asks for more than MEMORY_LIMIT_BYTES be told that there is no more."""
    with suppress(OSError, ValueError):
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = resource.getrlimit(resource.RLIMIT_AS)[1]
        limit = taken + MEMORY_LIMIT_BYTES
        if most == resource.RLIM_INFINITY or limit < most:
            resource.setrlimit(resource.RLIMIT_AS, (limit, most))


def looked_at(look: Look, item: Item) -> DecodedImage:
    """The item's picture, without the bytes that it was made of."""
    picture = look(item)
    return replace(picture, item=replace(picture.item, data=None))


def send(pipe: IO[bytes], thing: object) -> None:
    """Put the thing into the pipe: its length, its arrays' lengths, itself, its arrays.

    Arrays travel as they lie in memory, without a copy in the pickle.
    """
    arrays: list[pickle.PickleBuffer] = []
    data = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL, buffer_callback=arrays.append)
    raw = [array.raw() for array in arrays]
    pipe.write(_LENGTHS.pack(len(data), len(raw)))
    pipe.write(b"".join(_LENGTH.pack(array.nbytes) for array in raw))
    pipe.write(data)
    for array in raw:
        pipe.write(array)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """What the other side sent, None at the end of the pipe."""
    try:
        length, count = _LENGTHS.unpack(_filled(pipe, _LENGTHS.size))
        sizes = [_LENGTH.unpack(_filled(pipe, _LENGTH.size))[0] for _ in range(count)]
        data = _filled(pipe, length)
        return pickle.loads(data, buffers=[_filled(pipe, size) for size in sizes])
    except EOFError:
        return None


def _filled(pipe: IO[bytes], size: int) -> memoryview:
    """The next bytes of the pipe, in memory of their own, which may be written to."""
    room = np.empty(size, np.uint8).data  # not zeroed first, as a bytearray would be
    if pipe.readinto(room) < size:  # type: ignore[attr-defined]
        raise EOFError
    return room
