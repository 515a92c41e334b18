"""The messages between a decoding process and its parent. Each value is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from importlib import import_module
from typing import Any, ClassVar, Protocol, get_type_hints

import numpy as np

from pgcli.images.child_process import ProcessFailed
from pgcli.records import DecodedImage, Fault, Item

#: The most bytes of a decoded image; 896 x 896 RGB pixels are 2.4 MB.
MAX_PIXEL_BYTES = 64 * 2**20


class Decoder(Protocol):
    """Decodes items. A dataclass of plain values, which a process rebuilds from them."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __call__(self, item: Item) -> DecodedImage:
        """The decoded item, or its fault. Raises nothing for a bad image."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the pixels that this decoder makes; -1 is any length."""


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


def item_message(item: Item) -> tuple[dict[str, Any], bytes]:
    """What decoding needs of an item; prompts and columns stay here."""
    header = {"index": item.index, "id": item.id, "path": item.path}
    header |= {"span": item.span, "root": item.root, "has_data": item.data is not None}
    return header, item.data or b""


def item_from(header: Mapping[str, Any], data: memoryview) -> Item:
    """The item to decode."""
    content = bytes(data) if header["has_data"] else None
    span = header["span"] and tuple(header["span"])
    names = header["id"], header["id"], header["path"]
    return Item(header["index"], *names, content, root=header["root"], span=span)


def image_message(image: DecodedImage) -> tuple[dict[str, Any], memoryview | bytes]:
    """A decoded image without its item, which the parent keeps."""
    fault, pixels = image.fault, image.pixels
    header = {
        "width": image.width,
        "height": image.height,
        "load_ms": image.load_ms,
        "fault": None if fault is None else [fault.code, fault.message],
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
        fault = None if header["fault"] is None else Fault(*map(str, header["fault"]))
        pixels = None if fault else np.frombuffer(data, np.uint8).reshape(decoder.shape)
        width, height, stamp = header["width"], header["height"], header["stamp"]
        if fault is None or width is not None:
            width, height = max(1, int(np.int32(width))), max(1, int(np.int32(height)))
        if stamp is not None:
            size, time_ns, digest = (int(np.int64(number)) for number in stamp)
            stamp = size, time_ns, digest
        load_ms = round(1000 * header["load_ms"]) / 1000  # refuses NaN and infinity
    except (LookupError, TypeError, ValueError, OverflowError) as problem:
        raise ProcessFailed(str(problem)) from problem
    return DecodedImage(without_data(item), width, height, pixels, load_ms, fault, stamp)


def without_data(item: Item) -> Item:
    """The item without its bytes."""
    return item if item.data is None else replace(item, data=None)
