"""PNGs without unnecessary chunks, so that large or broken metadata does no harm."""

from __future__ import annotations

import struct
import zlib

from pgcli.images.errors import ImageError
from pgcli.records import Fault

SIGNATURE = b"\x89PNG\r\n\x1a\n"
CHUNK = struct.Struct(">I4s")
SIZE, DEPTH, COLOUR_TYPE, INTERLACING = 16, 24, 25, 28  # positions in the file
#: Colour types, and the size of a transparent colour.
GREY, RGB, PALETTE = 0, 2, 3
TRANSPARENCY_BYTES = {GREY: 2, RGB: 6}
CHANNELS = {GREY: 1, RGB: 3, PALETTE: 1, 4: 2, 6: 4}
#: Where Pillow looks for an orientation, besides eXIf.
ORIENTATION_TEXTS = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")
#: The size up to which Pillow unpacks a metadata chunk, and the limit for all of a file's.
MAX_CHUNK_BYTES, MAX_METADATA_BYTES = 2**20, 64 * 2**20
MAX_TEXT_BYTES = 8 * 2**20
BOMB = Fault("decode_failed", "The image's metadata unpacks to more than 64 MiB.")


def necessary_chunks(data: bytes) -> bytes:
    """The PNG with the chunks of its pixels, its colour profile and its orientation.

    Broken ancillary chunks, and those too large to unpack, are dropped, as in libpng; so is
    transparency after the pixels, before the palette or with more entries, or a second one.
    Raises ImageError for metadata that is a decompression bomb.
    """
    view: memoryview = memoryview(data)  # large pixels are not copied twice
    pieces: list[bytes | memoryview] = [SIGNATURE]
    position, metadata_bytes, sizes = len(SIGNATURE), 0, dict[bytes, int]()
    while position + CHUNK.size <= len(data):
        size, kind = CHUNK.unpack_from(data, position)
        end = position + CHUNK.size + size + 4
        if end > len(data) or not kind.isalpha():
            break  # Pillow reports the error
        is_kept = kind[:1].isupper()
        if not is_kept:
            body = data[position + CHUNK.size : end - 4]
            unpacked_bytes = _unpacked_bytes(kind, body)
            metadata_bytes += unpacked_bytes
            if metadata_bytes > MAX_METADATA_BYTES:
                raise ImageError(BOMB)
            is_sound = zlib.crc32(kind + body).to_bytes(4, "big") == data[end - 4 : end]
            is_kept = is_sound and unpacked_bytes <= MAX_CHUNK_BYTES
            is_kept = is_kept and _is_necessary(kind, body, data, sizes.get(b"PLTE", 0))
            if kind == b"tRNS" and sizes.keys() & {b"IDAT", b"tRNS"}:
                is_kept = False
        if kind == b"tRNS" and is_kept:
            pieces.append(_transparency(body, data))
        elif is_kept:
            pieces.append(view[position:end])
        position = end
        sizes[kind] = size
        if kind == b"IEND":
            break
    return b"".join((*pieces, view[position:]))


def lacks_pixels(data: bytes) -> bool:
    """Whether the pixels of a PNG end early; Pillow leaves the rest 0 without an error."""
    (width, height), position = struct.unpack_from(">II", data, SIZE), len(SIGNATURE)
    bits, bodies = data[DEPTH] * CHANNELS[data[COLOUR_TYPE]], []
    while position + CHUNK.size <= len(data):
        size, kind = CHUNK.unpack_from(data, position)
        position += CHUNK.size
        bodies += [data[position : position + size]] if kind == b"IDAT" else []
        position += size + 4
    total: int = width * height * bits // 8
    if not data[INTERLACING]:
        total = height * (1 + -(-width * bits // 8))
    return _inflated_bytes(b"".join(bodies), total) < total


def _is_necessary(kind: bytes, body: bytes, data: bytes, palette_bytes: int) -> bool:
    """Whether the pixels, their colours or their orientation depend on an ancillary chunk."""
    if kind == b"tRNS":
        colour_type = data[COLOUR_TYPE]
        if colour_type == PALETTE:
            return 3 * len(body) <= palette_bytes
        return len(body) == TRANSPARENCY_BYTES.get(colour_type)
    if kind in (b"iCCP", b"zTXt") and body.partition(b"\0")[2][:1] != b"\0":
        return False  # an unknown compression method
    return kind in (b"eXIf", b"iCCP") or (
        kind in (b"tEXt", b"zTXt", b"iTXt")
        and body.startswith(ORIENTATION_TEXTS)
        and len(body) <= MAX_TEXT_BYTES
    )


def _transparency(body: bytes, data: bytes) -> bytes:
    """A transparency chunk with an 8-bit colour, which Pillow compares with 8-bit pixels."""
    depth, colour_type = data[DEPTH], data[COLOUR_TYPE]
    if colour_type == GREY and depth in (2, 4):
        body = b"\0%c" % (body[1] % 2**depth * 255 // (2**depth - 1))
    elif colour_type == RGB and depth == 16:
        body = b"\0%c\0%c\0%c" % (body[0], body[2], body[4])
    return CHUNK.pack(len(body), b"tRNS") + body + zlib.crc32(b"tRNS" + body).to_bytes(4, "big")


def _unpacked_bytes(kind: bytes, body: bytes) -> int:
    """The unpacked size of compressed metadata, up to the limit; 0 for other chunks."""
    packed = body.partition(b"\0")[2]
    if kind == b"iTXt" and packed[:1] == b"\1":
        packed = packed[2:].split(b"\0", 2)[-1]
    elif kind in (b"iCCP", b"zTXt"):
        packed = packed[1:]
    else:
        return 0
    return _inflated_bytes(packed, MAX_METADATA_BYTES + 1)


def _inflated_bytes(packed: bytes, limit: int) -> int:
    """The size of unpacked data, as soon as it reaches the limit."""
    unpacker, total = zlib.decompressobj(), 0
    try:
        while packed and total < limit:
            total += len(unpacker.decompress(packed, MAX_CHUNK_BYTES))
            packed = unpacker.unconsumed_tail
    except zlib.error:
        pass  # Pillow ignores it too
    return total
