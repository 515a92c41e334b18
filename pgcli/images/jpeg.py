"""JPEGs by their segments: without unneeded metadata, and the layouts that Pillow cannot decode."""

from __future__ import annotations

from collections.abc import Iterator

START = b"\xff\xd8"
#: APP0 to APP15 and comments. Pixels and orientation need only EXIF and XMP (APP1), and Adobe's
#: colour transform (APP14), which libjpeg ignores if it is shorter.
METADATA = (*range(0xE0, 0xF0), 0xFE)
APP1, APP14, ADOBE_BYTES = 0xE1, 0xEE, 12
FILL, SCAN = 0xFF, 0xDA
#: Markers without a segment: restarts and TEM.
BARE = (0x01, *range(0xD0, 0xD9))
#: Frames that libjpeg decodes: baseline, extended and progressive, by Huffman or arithmetic codes.
FRAMES = (0xC0, 0xC1, 0xC2, 0xC9, 0xCA)
OTHER_FRAMES = {
    **dict.fromkeys((0xC3, 0xCB), "with lossless compression"),
    **dict.fromkeys((0xC5, 0xC6, 0xC7, 0xCD, 0xCE, 0xCF), "in hierarchical form"),
    0xF7: "with JPEG-LS compression",
}


def jpeg_segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """The marker, the start and the end of each segment before the pixels."""
    position = len(START)
    while position + 4 <= len(data) and data[position] == FILL and data[position + 1] != SCAN:
        marker, end = data[position + 1], position + 1
        if marker != FILL:
            length = 0 if marker in BARE else int.from_bytes(data[position + 2 : position + 4])
            end = position + 2 + length
            yield marker, position, end
        position = end


def without_metadata(data: bytes) -> bytes:
    """The JPEG without the metadata that neither pixels nor orientation need."""
    pieces, kept_from = [START], len(START)
    for marker, start, end in jpeg_segments(data):
        is_colour = marker == APP14 and end - start - 4 >= ADOBE_BYTES
        if marker in METADATA and marker != APP1 and not is_colour:
            pieces.append(data[kept_from:start])
            kept_from = end
    return b"".join((*pieces, data[kept_from:]))


def unsupported_layout(data: bytes) -> str | None:
    """The layout of a JPEG that Pillow cannot decode; None for other JPEGs and other files."""
    for marker, start, _ in jpeg_segments(data) if data.startswith(START) else ():
        if marker in OTHER_FRAMES:
            return OTHER_FRAMES[marker]
        if marker in FRAMES:
            bits = data[start + 4 : start + 5]
            return None if bits in (b"\x08", b"") else f"of {bits[0]} bits a sample"
    return None
