"""What a decoding process and its parent send each other: JSON headers, and bytes as they are.

A process that a hostile file has taken over may send anything. Its messages are bounded in size,
nothing in them is executed or unpickled, and each value is checked.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, Protocol, Self

import numpy as np

from pgcli.images.image_spec import MAX_SIDE
from pgcli.records import DecodedImage, Fault, Item

MAX_HEADER_BYTES = 2**20
#: Of one decoded image; 896 x 896 RGB pixels are 2.4 MB.
MAX_PIXEL_BYTES = 64 * 2**20


class Decoder(Protocol):
    """Decodes items. A decoding process makes its own from the class's name and the settings."""

    def __call__(self, item: Item) -> DecodedImage:
        """The decoded item, or its fault. Raises nothing for a bad image."""

    def settings(self) -> dict[str, Any]:
        """What `from_settings` needs, as JSON."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The decoder that `settings` describe."""

    def produces(self, shape: tuple[int, ...]) -> bool:
        """Whether pixels of this decoder may have the shape."""


class MalformedMessage(Exception):
    """The other process sent what it cannot have meant."""


def send(connection: Connection, header: Mapping[str, Any], data: bytes | memoryview = b"") -> None:
    """Send a header and data. Raises OSError."""
    connection.send_bytes(json.dumps({**header, "bytes": len(data)}).encode("ascii"))
    if data:
        connection.send_bytes(data)


def receive(connection: Connection, max_bytes: int) -> tuple[dict[str, Any], bytes]:
    """A header, and at most `max_bytes` of data. Raises OSError, EOFError and MalformedMessage."""
    try:
        header = json.loads(connection.recv_bytes(MAX_HEADER_BYTES))
    except (ValueError, RecursionError) as problem:
        raise MalformedMessage("the header is not JSON") from problem
    if not isinstance(header, dict):
        raise MalformedMessage("the header is not a JSON object")
    return header, connection.recv_bytes(max_bytes) if header.get("bytes") else b""


def describe_decoder(decoder: Decoder) -> dict[str, Any]:
    """The decoder's class and settings as JSON."""
    kind = type(decoder)
    if kind.__module__ == "__main__":
        raise TypeError(f"{kind.__qualname__} is not in a module that another process can import")
    names = {"module": kind.__module__, "class": kind.__qualname__}
    return {**names, "settings": decoder.settings()}


def load_decoder(description: Mapping[str, Any]) -> Decoder:
    """The decoder that `describe_decoder` described, imported by its name."""
    kind = getattr(import_module(description["module"]), description["class"])
    decoder: Decoder = kind.from_settings(description["settings"])
    return decoder


def item_header(item: Item) -> dict[str, Any]:
    """What decoding needs of an item beside its data; prompts and columns stay here."""
    return {
        "index": item.index,
        "id": item.id,
        "path": item.path,
        "span": item.span,
        "root": item.root,
        "has_data": item.data is not None,
    }


def item_from(header: Mapping[str, Any], data: bytes) -> Item:
    """The item to decode."""
    names = header["id"], header["id"], header["path"]
    span = None if header["span"] is None else tuple(header["span"])
    content = data if header["has_data"] else None
    return Item(header["index"], *names, content, root=header["root"], span=span)


def send_image(connection: Connection, image: DecodedImage) -> None:
    """Send a decoded image without its item, which the parent has. Raises OSError."""
    fault, pixels = image.fault, image.pixels
    header = {
        "width": image.width,
        "height": image.height,
        "load_ms": image.load_ms,
        "fault": None if fault is None else [fault.code, fault.message],
        "shape": None if pixels is None else pixels.shape,
    }
    data = b"" if pixels is None else np.ascontiguousarray(pixels).reshape(-1).data
    send(connection, header, data)


def image_from(
    header: Mapping[str, Any], data: bytes, item: Item, decoder: Decoder
) -> DecodedImage:
    """The decoded item. Raises MalformedMessage for what the decoder cannot have made."""
    fault, pixels = header.get("fault"), None
    if fault is None:
        shape = header.get("shape")
        if not isinstance(shape, list) or not all(_is_integer(side) for side in shape):
            raise MalformedMessage("a shape is not a list of integers")
        if math.prod(shape) != len(data) or not decoder.produces(tuple(shape)):
            raise MalformedMessage(f"pixels of shape {shape}")
        # in memory of their own: torch warns of arrays that are not writable
        pixels = np.frombuffer(bytearray(data), np.uint8).reshape(shape)
    elif data or not isinstance(fault, list) or [type(text) for text in fault] != [str, str]:
        raise MalformedMessage("a fault is not a code and a sentence")
    width, height = header.get("width"), header.get("height")
    is_sized = _is_integer(width, 1) and _is_integer(height, 1)
    if not is_sized and (fault is None or (width, height) != (None, None)):
        raise MalformedMessage("an image without its size")
    load_ms = header.get("load_ms")
    if not isinstance(load_ms, float) or not 0 <= load_ms < math.inf:
        raise MalformedMessage("load_ms is not a time")
    fault = None if fault is None else Fault(*fault)
    return DecodedImage(without_data(item), width, height, pixels, load_ms, fault)


def claim_of(header: Mapping[str, Any]) -> int:
    """The bytes of memory that the process waits for. Raises MalformedMessage."""
    claim = header.get("claim")
    if type(claim) is int and claim >= 0:
        return claim
    raise MalformedMessage("a claim is not a number of bytes")


def without_data(item: Item) -> Item:
    """The item without its bytes, which are needed no longer."""
    return item if item.data is None else replace(item, data=None)


def _is_integer(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= MAX_SIDE
