"""What runs in a worker process: items in on stdin, pictures out on stdout."""

from __future__ import annotations

import os
import pickle
import signal
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

from PIL import Image

from pgcli.records import Item, Picture

Look = Callable[[Item], Picture]

TIME_LIMIT_SECONDS = 30
READY = "ready"

_LENGTH = struct.Struct("<Q")


def serve() -> None:
    """The worker process: a look, then items, come on stdin; pictures go out on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a supervisor's too: the parent decides
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "r+b") as nothing:  # what a decoder prints must not enter the stream
        os.dup2(nothing.fileno(), 0)
        os.dup2(nothing.fileno(), 1)
    look = receive(requests)
    Image.MAX_IMAGE_PIXELS = None  # this process is ours, and `look` has the limit that counts
    with suppress(BrokenPipeError):
        send(replies, READY)
        while (item := receive(requests)) is not None:
            signal.alarm(TIME_LIMIT_SECONDS + 5)  # no orphan, should the parent die meanwhile
            picture = looked_at(look, item)
            signal.alarm(0)
            send(replies, picture)


def looked_at(look: Look, item: Item) -> Picture:
    """The item's picture, without the bytes that it was made of."""
    picture = look(item)
    return replace(picture, item=replace(picture.item, data=None))


def send(pipe: IO[bytes], thing: object) -> None:
    """Put the thing into the pipe, its length before it."""
    data = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    pipe.write(_LENGTH.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """What the other side sent, None at the end of the pipe."""
    head = pipe.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = pipe.read(length)
    return pickle.loads(data) if len(data) == length else None
