"""Messages between the program and an engine process, as pickles with their arrays beside them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

MAX_PARTS = 512  # in a call; systems take 1,024


def send(connection: Connection, message: object) -> None:
    """Send an object. Its arrays are not copied in this process. Raises OSError."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    connection.send_bytes(pickle.dumps((data, [array.nbytes for array in arrays])))
    write_all(connection.fileno(), arrays)


def receive(connection: Connection) -> Any:
    """The next object; its arrays may be written to. Raises EOFError and OSError."""
    data, sizes = pickle.loads(connection.recv_bytes())
    rest = np.empty(sum(sizes), np.uint8).data
    arrays, at = [], 0
    for size in sizes:
        arrays.append(rest[at : at + size])
        at += size
    while rest:
        count = os.readv(connection.fileno(), [rest])
        if not count:
            raise EOFError
        rest = rest[count:]
    return pickle.loads(data, buffers=arrays)


def write_all(descriptor: int, parts: Iterable[memoryview]) -> None:
    """Write the bytes of all parts, one after the other."""
    left = [part for part in parts if part.nbytes]
    while left:
        count = os.writev(descriptor, left[:MAX_PARTS])
        done = 0
        while done < len(left) and count >= left[done].nbytes:
            count -= left[done].nbytes
            done += 1
        left = left[done:]
        if count:
            left[0] = left[0][count:]
