"""The messages between a decoding process and its parent. Each value is checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any, ClassVar, Protocol, get_type_hints

import numpy as np

from pgcli.images.child_process import ProcessFailed
from pgcli.images.image_spec import MAX_SIDE
from pgcli.records import DecodedImage, Fault, Item

#: The most bytes of a decoded image; 896 x 896 RGB pixels are 2.4 MB.
MAX_PIXEL_BYTES = 64 * 2**20


class Decoder(Protocol):
    """Decodes items. A dataclass of plain values, which a process rebuilds from them."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __call__(self, item: Item) -> DecodedImage:
        """The decoded item, or its fault. Raises nothing for a bad image."""

    def produces(self, shape: tuple[int, ...]) -> bool:
        """Whether this decoder can make pixels of the shape."""


def describe_decoder(decoder: Decoder) -> dict[str, Any]:
    """The decoder's class and fields as JSON."""
    kind = type(decoder)
    if kind.__module__ == "__main__":
        raise TypeError(f"{kind.__qualname__} is not in a module that another process can import")
    names = {"module": kind.__module__, "class": kind.__qualname__}
    return {**names, "fields": asdict(decoder)}


def load_decoder(description: Mapping[str, Any]) -> Decoder:
    """The decoder that `describe_decoder` described, imported by its name."""
    kind = getattr(import_module(description["module"]), description["class"])
    decoder: Decoder = from_fields(kind, description["fields"])
    return decoder


def from_fields(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """The dataclass with these values, which `asdict` made."""
    kinds = get_type_hints(kind)
    return kind(
        **{
            name: from_fields(kinds[name], value) if isinstance(value, dict) else value
            for name, value in values.items()
        }
    )


def items_message(items: Sequence[Item]) -> tuple[dict[str, Any], bytes]:
    """What decoding needs of some items; prompts and columns stay here."""
    headers = [
        {
            "index": item.index,
            "id": item.id,
            "path": item.path,
            "span": item.span,
            "root": item.root,
            "size": None if item.data is None else len(item.data),
        }
        for item in items
    ]
    data = [item.data for item in items if item.data]
    return {"items": headers}, data[0] if len(data) == 1 else b"".join(data)


def items_from(header: Mapping[str, Any], data: memoryview) -> list[Item]:
    """The items to decode."""
    items, start = [], 0
    for values in header["items"]:
        names = values["id"], values["id"], values["path"]
        span = None if values["span"] is None else tuple(values["span"])
        content = None
        if (size := values["size"]) is not None:
            content = bytes(data[start : start + size])
            start += size
        items.append(Item(values["index"], *names, content, root=values["root"], span=span))
    return items


def most_bytes(item: Item) -> int:
    """The bytes of an item in a message, or more: JSON escapes a character in six."""
    names = len(item.id) + len(item.path or "") + len(item.root or "")
    return len(item.data or b"") + 6 * names


def image_message(image: DecodedImage) -> tuple[dict[str, Any], memoryview | bytes]:
    """A decoded image without its item, which the parent keeps."""
    fault, pixels = image.fault, image.pixels
    header = {
        "width": image.width,
        "height": image.height,
        "load_ms": image.load_ms,
        "fault": None if fault is None else [fault.code, fault.message],
        "shape": None if pixels is None else pixels.shape,
        "stamp": image.stamp,
    }
    return header, b"" if pixels is None else np.ascontiguousarray(pixels).reshape(-1).data


def image_from(
    header: Mapping[str, Any], data: memoryview, item: Item, decoder: Decoder
) -> DecodedImage:
    """The decoded item. Raises ProcessFailed for a result that the decoder cannot have made."""
    fault, pixels = header.get("fault"), None
    if fault is None:
        shape = header.get("shape")
        if not isinstance(shape, list) or not all(_is_integer(side) for side in shape):
            raise ProcessFailed("a shape is not a list of integers")
        if math.prod(shape) != len(data) or not decoder.produces(tuple(shape)):
            raise ProcessFailed(f"pixels of shape {shape}")
        pixels = np.frombuffer(data, np.uint8).reshape(shape)
    elif data or not isinstance(fault, list) or [type(text) for text in fault] != [str, str]:
        raise ProcessFailed("a fault is not a code and a sentence")
    width, height = header.get("width"), header.get("height")
    is_sized = _is_integer(width, 1) and _is_integer(height, 1)
    if not is_sized and (fault is None or (width, height) != (None, None)):
        raise ProcessFailed("an image without its size")
    load_ms = header.get("load_ms")
    if not isinstance(load_ms, float) or not 0 <= load_ms < math.inf:
        raise ProcessFailed("load_ms is not a time")
    fault = None if fault is None else Fault(*fault)
    stamp = header.get("stamp")
    if stamp is not None:
        if not isinstance(stamp, list) or [type(n) for n in stamp] != [int] * 3:
            raise ProcessFailed("a stamp is not three numbers")
        if not all(-(2**63) <= n < 2**63 for n in stamp):
            raise ProcessFailed("a stamp has a number that is too large")
        stamp = tuple(stamp)
    return DecodedImage(without_data(item), width, height, pixels, load_ms, fault, stamp)


def claim_of(header: Mapping[str, Any]) -> int:
    """The bytes of memory that the process asks for. Raises ProcessFailed."""
    claim = header.get("claim")
    if type(claim) is int and claim >= 0:
        return claim
    raise ProcessFailed("a claim is not a number of bytes")


def without_data(item: Item) -> Item:
    """The item without its bytes."""
    return item if item.data is None else replace(item, data=None)


def _is_integer(value: object, least: int = 0) -> bool:
    return type(value) is int and least <= value <= MAX_SIDE
