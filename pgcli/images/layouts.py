"""Refuses images that Pillow opens and may decode to wrong pixels, by their public tags."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator
from typing import Any

from PIL.Image import Image
from PIL.ImageFile import ImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile

from pgcli.images.errors import ImageError
from pgcli.images.image_spec import Size
from pgcli.records import Fault

SUBFILE, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, MAXIMUM = 254, 258, 259, 262, 266, 281
PLANES, PREDICTOR, COLOURS, SUB_IFDS, INK_SET, EXTRA = 284, 317, 320, 330, 332, 338
SAMPLE_FORMAT, NODATA = 339, 42113
BLACK_IS_ZERO, RGB, YCBCR = 1, 2, 6
NONE, PACKBITS = 1, 32773
GREYS_16 = ("I;16", "I;16B", "I;16L", "I;16N")
MAX_SENSOR_VALUE = 4095

PNG_START = len(b"\x89PNG\r\n\x1a\n")
CHUNK = struct.Struct(">I4s")
SIZE, DEPTH, COLOUR_TYPE, INTERLACING = 16, 24, 25, 28  # positions in the file
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
#: Pillow keeps these beside the texts of a file, so a text of the same name replaces them.
PROPERTIES = ("interlace", "transparency", "bbox")
INFLATED_BYTES = 2**20  # at a time


def unsupported(what: str, size: Size | None = None) -> ImageError:
    """The error of an image in an unsupported layout."""
    message = f"This is {what}, which is not supported; convert it to PNG or JPEG of 8 bits."
    return ImageError(Fault("unsupported_format", message), size)


def check_layout(image: ImageFile, data: bytes, size: Size) -> None:
    """Raise ImageError for an opened image in a layout that Pillow may misread.

    Metadata of unexpected types raises any exception.
    """
    what = None
    if isinstance(image, TiffImageFile):
        what = _unsupported_tiff(image)
    elif isinstance(image, PngImageFile):
        what = _unsupported_png(image, data)
    elif data[:2] in (b"P1", b"P2", b"P3") and data.count(b"#") > 1000:
        what = "with over a thousand comments"  # Pillow takes minutes
    if what:
        raise unsupported(f"a {image.format} {what}", size)


def _unsupported_tiff(image: TiffImageFile) -> str | None:
    tags: Any = image.tag_v2
    bits, photometric = tags.get(BITS, (1,)), tags.get(PHOTOMETRIC)
    compression, is_deep = tags.get(COMPRESSION, NONE), max(bits) > 8
    is_grey_16 = image.mode in GREYS_16 and bits == (16,)
    reasons = {
        "that begins with a preview": tags.get(SUBFILE, 0) & 1 and (tags.next or SUB_IFDS in tags),
        "of signed or floating-point values": {*tags.get(SAMPLE_FORMAT, (1,))} != {1},
        f"of {max(bits)} bits a sample": is_deep and not is_grey_16,
        "of 16 bits whose white is 0": is_grey_16 and photometric != BLACK_IS_ZERO,
        "with a stated range of values": is_grey_16
        and (tags.get(MAXIMUM, (65535,)) != (65535,) or NODATA in tags),
        "without a photometric interpretation": photometric is None,
        "in separate planes": tags.get(PLANES, 1) != 1,
        "of uncompressed YCbCr": photometric == YCBCR and compression == NONE,
        "with reversed bits": compression == NONE and tags.get(FILL_ORDER, 1) != 1,
        "with an unexpected predictor": compression in (NONE, PACKBITS)
        and tags.get(PREDICTOR, 1) != 1,
        "with inks other than CMYK": tags.get(INK_SET, 1) != 1,
        "with an undeclared fourth channel": image.mode == "RGBA" and not tags.get(EXTRA),
        "with a palette of 8 bits": image.mode[0] == "P" and max(tags[COLOURS]) < 256,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def is_too_dark(image: Image, greatest: int) -> bool:
    """Whether 16-bit values are probably a sensor's 12 bits, which would be shown as black."""
    return image.format == "TIFF" and 0 < greatest <= MAX_SENSOR_VALUE


def _unsupported_png(image: PngImageFile, data: bytes) -> str | None:
    if any(isinstance(image.info.get(name), str) for name in PROPERTIES):
        return "with a text named like a property of its pixels"
    if image.info.get("bbox", (0, 0, *image.size)) != (0, 0, *image.size):
        return "whose first frame is smaller than the image"
    order, sizes = b"", dict[bytes, int]()
    for kind, start, size in _chunks(data):
        if kind in (b"PLTE", b"tRNS", b"IDAT"):
            order, sizes[kind] = order + kind, size
        elif zlib.crc32(data[start - 4 : start + size]) != _checksum(data, start + size):
            raise ValueError("a wrong checksum")
    if b"tRNS" not in sizes:
        return None
    depth, colours = data[DEPTH], data[COLOUR_TYPE]
    is_valid = re.fullmatch(rb"(?:PLTE)?tRNS(?:IDAT)+", order) is not None
    if colours == 3:
        is_valid = is_valid and 3 * sizes[b"tRNS"] <= sizes.get(b"PLTE", 0)
    else:
        values: Any = image.info.get("transparency")
        greatest = max(values) if isinstance(values, tuple) else values
        is_valid = is_valid and sizes[b"tRNS"] == 2 * CHANNELS[colours] and colours in (0, 2)
        is_valid = is_valid and (colours, depth) in ((0, 1), (0, 8), (0, 16), (2, 8))
        is_valid = is_valid and (depth != 8 or greatest < 256)
    return None if is_valid else f"of {depth} bits with an unusual transparent colour"


def lacks_pixels(data: bytes) -> bool:
    """Whether the pixels of a PNG end early; Pillow leaves the rest 0 without an error."""
    width, height = struct.unpack_from(">II", data, SIZE)
    bits = data[DEPTH] * CHANNELS[data[COLOUR_TYPE]]
    total: int = width * height * bits // 8
    if not data[INTERLACING]:
        total = height * (1 + -(-width * bits // 8))
    bodies = [data[start : start + size] for kind, start, size in _chunks(data) if kind == b"IDAT"]
    unpacker, packed, inflated = zlib.decompressobj(), b"".join(bodies), 0
    try:
        while packed and inflated < total:
            inflated += len(unpacker.decompress(packed, INFLATED_BYTES))
            packed = unpacker.unconsumed_tail
    except zlib.error:
        pass  # Pillow ignores it too
    return inflated < total


def _chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The kind, the start and the size of each whole chunk of a PNG."""
    start = PNG_START + CHUNK.size
    while start <= len(data):
        size, kind = CHUNK.unpack_from(data, start - CHUNK.size)
        if start + size + 4 > len(data) or kind == b"IEND":
            return
        yield kind, start, size
        start += size + 4 + CHUNK.size


def _checksum(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4])
