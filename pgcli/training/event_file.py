"""Writes metrics as an event file of TensorBoard, without TensorBoard.

A file is a sequence of records: the length and its checksum, an `Event` in Protocol Buffers' wire
format, and its checksum. The numbers of fields are those of TensorFlow's `event.proto` and
`summary.proto`.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import time

from pgcli.stores.writing import make_folder, wrap_write_errors

VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # wire types
STARTED = 1  # a session log's status: the steps of earlier files from its step on are dropped
CRC32C = 0x82F63B78  # Castagnoli's polynomial, its bits reversed


class EventFile:
    """Values by tag and step, in a new file of the folder."""

    def __init__(self, folder: Path, step: int):
        """Open the file for the steps after `step`; TensorBoard drops those of earlier files."""
        now = time()
        self._file = folder / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        with wrap_write_errors(folder):
            make_folder(folder)
            self._stream = self._file.open("ab")
        self._write(number(1, now), text(3, b"brain.Event:2"))
        self._write(number(1, now), whole(2, step + 1), text(7, whole(1, STARTED)))

    def append(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step. Raises OutputFailed."""
        summary = b"".join(
            text(1, text(1, tag.encode()) + key(2, FLOAT) + struct.pack("<f", value))
            for tag, value in values.items()
        )
        self._write(number(1, time()), whole(2, step), text(5, summary))

    def close(self) -> None:
        self._stream.close()

    def _write(self, *fields: bytes) -> None:
        event = b"".join(fields)
        length = struct.pack("<Q", len(event))
        record = (length, checksum(length), event, checksum(event))
        with wrap_write_errors(self._file):
            self._stream.write(b"".join(record))
            self._stream.flush()


def key(field: int, wire_type: int) -> bytes:
    return varint(field << 3 | wire_type)


def whole(field: int, value: int) -> bytes:
    """A field with a whole number."""
    return key(field, VARINT) + varint(value)


def number(field: int, value: float) -> bytes:
    """A field with a float64."""
    return key(field, DOUBLE) + struct.pack("<d", value)


def text(field: int, value: bytes) -> bytes:
    """A field with a text or a message."""
    return key(field, BYTES) + varint(len(value)) + value


def varint(value: int) -> bytes:
    """Seven bits in each byte, the lowest first; all but the last have the highest bit."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def checksum(data: bytes) -> bytes:
    """TFRecord's masked CRC-32C."""
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def crc32c(data: Iterable[int]) -> int:
    """Castagnoli's checksum."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ CRC32C * (byte & 1)
    return byte


TABLE = tuple(map(_table_entry, range(256)))
