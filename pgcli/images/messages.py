"""The messages between a decoding process and its parent. Each value is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any, ClassVar, Protocol, get_type_hints

import numpy as np

from pgcli.images.child_process import ProcessFailed
from pgcli.records import DecodedImage, Fault, Item

#: The most bytes of a decoded image; 896 x 896 RGB pixels are 2.4 MB.
MAX_PIXEL_BYTES = 64 * 2**20
MAX_LOAD_MS = 1e9


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
    """The decoded item. Raises ProcessFailed for a message of another kind.

    NumPy's integers have a range, as the columns that they are written to.
    """
    try:
        fault, pixels = header["fault"], None
        if fault is None:
            pixels = np.frombuffer(data, np.uint8).reshape(header["shape"])
            if not decoder.produces(pixels.shape):
                raise ValueError("pixels of another shape")
        else:
            fault = Fault(*map(str, fault))
        width, height = header["width"], header["height"]
        if fault is None or width is not None:
            width, height = max(1, int(np.int32(width))), max(1, int(np.int32(height)))
        stamp = header["stamp"]
        if stamp is not None:
            size, time_ns, digest = (int(np.int64(number)) for number in stamp)
            stamp = size, time_ns, digest
        load_ms = max(0.0, min(MAX_LOAD_MS, float(header["load_ms"])))  # also of NaN
    except (LookupError, TypeError, ValueError, OverflowError) as problem:
        raise ProcessFailed(str(problem)) from problem
    return DecodedImage(without_data(item), width, height, pixels, load_ms, fault, stamp)


def without_data(item: Item) -> Item:
    """The item without its bytes."""
    return item if item.data is None else replace(item, data=None)
