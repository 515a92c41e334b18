"""Items and decoded images as messages between a worker process and its parent."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np

from pgcli.records import STAMP_BYTES, DecodedImage, Fault, FileStamp, Item
from pgcli.workers.decoder import Decoder
from pgcli.workers.message_pipe import MalformedMessage, Message

MAX_SIDE = 2**31
#: A digest of a stamp, or none.
DIGEST = re.compile(f"([0-9a-f]{{{2 * STAMP_BYTES}}})?")


def item_to_message(item: Item) -> Message:
    """What decoding needs of an item. Manifest columns and prompts stay in the parent process."""
    header = {
        "index": item.index,
        "id": item.id,
        "path": item.path,
        "root": item.root,
        "has_data": item.data is not None,
    }
    return Message(header, item.data or b"")


def item_from_message(message: Message) -> Item:
    """The item to decode."""
    header = message.header
    data = bytes(message.data) if header["has_data"] else None
    names = header["id"], header["id"], header["path"]
    return Item(header["index"], *names, data, root=header["root"])


def image_to_message(image: DecodedImage) -> Message:
    """A decoded image without its item, which the parent process has."""
    fault, pixels = image.fault, image.pixels
    header = {
        "width": image.width,
        "height": image.height,
        "load_ms": image.load_ms,
        "fault": None if fault is None else [fault.code, fault.message],
        "shape": None if pixels is None else pixels.shape,
        "stamp": [image.stamp.status.hex(), image.stamp.content.hex()],
    }
    return Message(header, b"" if pixels is None else np.ascontiguousarray(pixels).reshape(-1).data)


def image_from_message(message: Message, item: Item, decoder: Decoder) -> DecodedImage:
    """The decoded item. Raises MalformedMessage for what the decoder cannot have produced.

    A worker that a hostile file has taken over may send anything, so every value is checked.
    """
    header = message.header
    fault, pixels = _fault(header.get("fault")), None
    if fault is None:
        shape = _shape(header.get("shape"))
        if math.prod(shape) != len(message.data) or not decoder.produces(shape):
            raise MalformedMessage(f"pixels of shape {shape}")
        pixels = np.frombuffer(message.data, np.uint8).reshape(shape)
    elif message.data:
        raise MalformedMessage("a fault with pixels")
    width, height = _side(header.get("width")), _side(header.get("height"))
    if (width is None) != (height is None) or (width is None and fault is None):
        raise MalformedMessage("an image without its size")
    load_ms = header.get("load_ms")
    if not isinstance(load_ms, float) or not 0 <= load_ms < math.inf:
        raise MalformedMessage("load_ms is not a time")
    item = item if item.data is None else replace(item, data=None)
    return DecodedImage(
        item, width, height, pixels, load_ms, fault, _stamp(header.get("stamp", ["", ""]))
    )


def _stamp(value: Any) -> FileStamp:
    if isinstance(value, list) and len(value) == 2 and all(map(_is_digest, value)):
        return FileStamp(*map(bytes.fromhex, value))
    raise MalformedMessage("a stamp is not two digests")


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def _fault(value: Any) -> Fault | None:
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, str) for one in value):
        return Fault(*value)
    raise MalformedMessage("a fault is not a code and a sentence")


def _shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, list) and all(type(one) is int and 0 <= one < MAX_SIDE for one in value):
        return tuple(value)
    raise MalformedMessage("a shape is not a list of integers")


def _side(value: Any) -> int | None:
    if value is None or (type(value) is int and 0 < value < MAX_SIDE):
        return value
    raise MalformedMessage("a side is not a number of pixels")
