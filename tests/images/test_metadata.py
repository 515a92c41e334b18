"""Large metadata costs neither the image nor much time or memory; broken metadata is an error."""

import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image

from pgcli.images import ImageError, ImageLimits, load_image
from pgcli.images.formats import read_header
from tests.support.awkward import chunk, drawing, encoded
from tests.support.runs import processor_time_below

PNG, JPEG = encoded(drawing(), "PNG"), encoded(drawing(), "JPEG")
NOISE = np.random.default_rng(0).bytes(1_700_000)
XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


def pixels_of(data: bytes) -> np.ndarray:
    return np.asarray(load_image(data, ImageLimits()))


def code(data: bytes) -> str:
    with pytest.raises(ImageError) as caught:
        load_image(data, ImageLimits())
    return caught.value.fault.code


def broken(data: bytes) -> bytes:
    """A chunk with a wrong checksum."""
    return data[:-1] + bytes([data[-1] ^ 1])


LARGE = {
    "large iCCP": chunk(b"iCCP", b"x\0\0" + zlib.compress(NOISE)),
    "large zTXt": chunk(b"zTXt", b"x\0\0" + zlib.compress(NOISE)),
    "large iTXt": chunk(b"iTXt", b"x\0\1\0\0\0" + zlib.compress(NOISE)),
    "large tEXt": chunk(b"tEXt", b"x\0" + bytes(70_000_000)),
    "large XMP": chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + b"a" * 70_000_000),
    "broken eXIf": chunk(b"eXIf", b"II*\0\xff\xff"),
    "truncated zTXt": chunk(b"zTXt", b"XML:com.adobe.xmp\0\0" + zlib.compress(NOISE)[:500]),
}
BROKEN = {
    "short gAMA": chunk(b"gAMA", b"\0"),
    "short tRNS": chunk(b"tRNS", b"\0"),
    "eXIf with a wrong checksum": broken(chunk(b"eXIf", b"MM\0*")),
    "text with a wrong checksum": broken(chunk(b"tEXt", b"a\0b")),
    "transparency with a wrong checksum": broken(chunk(b"tRNS", bytes(6))),
    "iCCP with an endless name": chunk(b"iCCP", b"xxxx"),
    "iCCP with an unknown method": chunk(b"iCCP", b"x\0\5" + zlib.compress(b"p")),
    "zTXt with an unknown method": chunk(b"zTXt", b"k\0\1abc"),
    "fcTL out of order": chunk(b"fcTL", b"\xff" * 26),
}
SMALL_FRAME = chunk(b"acTL", struct.pack(">II", 2, 0)) + chunk(
    b"fcTL", struct.pack(">IIIII", 0, 20, 30, 0, 0) + bytes(6)
)
MISREAD = {
    "long tRNS": chunk(b"tRNS", bytes(9)),
    "text named interlace": chunk(b"tEXt", b"interlace\x001"),
    "text named transparency": chunk(b"tEXt", b"transparency\x001"),
    "small first frame": SMALL_FRAME,
}


@pytest.mark.parametrize("name", LARGE)
def test_png_with_large_metadata_is_read(name):
    start, end = PNG.index(b"IDAT") - 4, PNG.index(b"IEND") - 4
    for place in (33, start, end):
        data = PNG[:place] + LARGE[name] + PNG[place:]
        with processor_time_below(40):
            assert np.array_equal(pixels_of(data), pixels_of(PNG))
        assert read_header(data)[:2] == ("PNG", (40, 30))


@pytest.mark.parametrize("name", BROKEN)
def test_png_with_a_broken_chunk_is_damaged(name):
    assert code(PNG[:33] + BROKEN[name] + PNG[33:]) == "decode_failed"


@pytest.mark.parametrize("name", MISREAD)
def test_png_with_a_misleading_chunk_is_unsupported(name):
    assert code(PNG[:33] + MISREAD[name] + PNG[33:]) == "unsupported_format"


@pytest.mark.parametrize("kind", [b"IHDR", b"PLTE"])
def test_png_with_a_broken_critical_chunk_is_damaged(kind):
    data = encoded(drawing().quantize(8), "PNG")
    start = data.index(kind)
    end = start + 8 + struct.unpack(">I", data[start - 4 : start])[0]
    assert code(data[: end - 1] + bytes([data[end - 1] ^ 1]) + data[end:]) == "decode_failed"


def png_of(rows: np.ndarray, count: int) -> bytes:
    """A complete PNG file with the pixels of the first rows only."""
    height, width, channels = rows.shape
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows[:count]))
    parts = {b"IHDR": header, b"IDAT": pixels, b"IEND": b""}
    return PNG[:8] + b"".join(chunk(kind, body) for kind, body in parts.items())


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_png_without_its_last_rows_is_damaged(channels):
    rows = np.random.default_rng(0).integers(1, 255, (9, 5, channels), dtype=np.uint8)
    for missing in (1, 2, 8):
        assert code(png_of(rows, 9 - missing)) == "decode_failed"
    rows[5:] = 0
    assert pixels_of(png_of(rows, 9)).shape == (9, 5, 3)
    assert code(png_of(rows, 8)) == "decode_failed"


def exif_text() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = exif.tobytes()
    return b"\nexif\n      %d\n%s" % (len(data), data.hex().encode())


@pytest.mark.parametrize(
    "metadata",
    [
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP),
        chunk(b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(XMP)),
        chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(exif_text())),
        chunk(b"tEXt", b"Raw profile type exif\0" + exif_text()),
        chunk(b"tEXt", b"Software\0x")
        + chunk(b"eXIf", bytes.fromhex(exif_text().split()[2].decode())[6:]),
    ],
    ids=["XMP", "packed XMP", "packed EXIF", "EXIF as text", "EXIF"],
)
def test_orientation_in_the_metadata_of_a_png_is_applied(metadata):
    for place in (PNG.index(b"IDAT") - 4, PNG.index(b"IEND") - 4):
        turned = pixels_of(PNG[:place] + metadata + PNG[place:])
        assert np.array_equal(turned, np.rot90(pixels_of(PNG), -1))


@pytest.mark.parametrize(
    ("depth", "colour_type", "row", "transparent", "shown"),
    [
        (1, 0, bytes([0b01000000]), (1,), [0, 255]),
        (8, 2, bytes([9, 9, 9, 1, 2, 3]), (1, 2, 3), [9, 255]),
        (2, 0, bytes([0b00011011]), (2,), None),
        (4, 0, bytes([0x3A]), (10,), None),
        (8, 0, bytes([9, 44]), (300,), None),
        (16, 2, struct.pack(">6H", 0, 0, 0, 1000, 2000, 3000), (1000, 2000, 3000), None),
    ],
)
def test_transparent_colour_is_white_or_refused(depth, colour_type, row, transparent, shown):
    header = struct.pack(">IIBBBBB", len(shown or "ab"), 1, depth, colour_type, 0, 0, 0)
    chunks = {
        b"IHDR": header,
        b"tRNS": struct.pack(f">{len(transparent)}H", *transparent),
        b"IDAT": zlib.compress(b"\0" + row),
        b"IEND": b"",
    }
    data = PNG[:8] + b"".join(chunk(kind, body) for kind, body in chunks.items())
    if shown is None:
        assert code(data) == "unsupported_format"
    else:
        assert pixels_of(data)[0, :, 0].tolist() == shown


@pytest.mark.parametrize(("entries", "is_first"), [(4, False), (256, False), (2, True)])
def test_alpha_before_a_palette_or_of_more_colours_is_refused(entries, is_first):
    palette, alpha = chunk(b"PLTE", bytes(range(9))), chunk(b"tRNS", bytes(entries))
    chunks = alpha + palette if is_first else palette + alpha
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 3, 1, 8, 3, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(b"\0\0\1\2")) + chunk(b"IEND", b"")
    assert code(PNG[:8] + head + chunks + pixels) == "unsupported_format"


@pytest.mark.parametrize("place", ["IDAT", "IEND"])
def test_second_or_late_transparent_colour_is_refused(place):
    colour = b"".join(bytes([0, value]) for value in pixels_of(PNG)[0, 0].tolist())
    start = PNG.index(place.encode()) - 4
    first = chunk(b"tRNS", b"\0\7" * 3) if place == "IDAT" else b""
    data = PNG[:start] + first + chunk(b"tRNS", colour) + PNG[start:]
    assert code(data) == "unsupported_format"


def segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


BROKEN_SEGMENTS = {
    "short JFIF": segment(0xE0, b"JFIF\0"),
    "short Adobe segment": segment(0xEE, b"Adobe"),
    "short ICC profile": segment(0xE2, b"ICC_PROFILE\0"),
    "broken Photoshop resources": segment(0xED, b"Photoshop 3.0\x008BIM\4\4"),
}
SEGMENTS = {
    "empty EXIF": segment(0xE1, b"Exif\0\0"),
    "broken EXIF": segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "ICC profile without its other parts": segment(0xE2, b"ICC_PROFILE\0\1\x02abc"),
    # Pillow joins these: its time grows with the square of their number
    "5 MB of EXIF": segment(0xE1, b"Exif\0\0II*\0".ljust(65_000, b"x")) * 80,
    "20 MB of XMP": segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0".ljust(65_000, b"x")) * 310,
    "20 MB of resources": segment(0xED, b"Photoshop 3.0\0".ljust(65_000, b"x")) * 310,
}


@pytest.mark.parametrize("name", SEGMENTS)
def test_jpeg_with_large_or_useless_metadata_is_read(name):
    with processor_time_below(40):
        assert np.array_equal(pixels_of(JPEG[:2] + SEGMENTS[name] + JPEG[2:]), pixels_of(JPEG))


@pytest.mark.parametrize("name", BROKEN_SEGMENTS)
def test_jpeg_with_a_broken_segment_is_damaged(name):
    assert code(JPEG[:2] + BROKEN_SEGMENTS[name] + JPEG[2:]) == "decode_failed"


@pytest.mark.parametrize("head", [b"P4 #", b"P6 1 #", b"P1 #", b"P0CMYK #", b"PyP #"])
def test_endless_comment_is_not_an_image(head):
    assert code(head + b"a" * 10**6) == "not_an_image"


@pytest.mark.parametrize("maximum", [1, 100, 255, 1023, 65535])
def test_values_of_a_pnm_are_scaled_by_its_maximum(maximum):
    values = np.linspace(0, maximum, 24).astype(">u2" if maximum > 255 else np.uint8)
    expected = np.rint(values.astype(float) * 255 / maximum)
    for head, shape in ((b"P5 6 4 %d\n", (4, 6)), (b"P6 2 4 %d\n", (4, 2, 3))):
        data = head % maximum + values.tobytes()
        found = pixels_of(data).astype(int)
        if len(shape) == 3:
            with Image.open(io.BytesIO(data)) as reference:
                assert np.array_equal(found, np.asarray(reference))
        grey = found[..., 0] if len(shape) == 2 else found
        assert abs(grey - expected.reshape(shape)).max() <= 1


def framed(marker: int, bits: int = 8) -> bytes:
    """A JPEG whose frame has this marker, behind fill bytes, and this precision."""
    start = JPEG.index(b"\xff\xc0")
    frame = b"\xff\xff\xff" + bytes([marker]) + JPEG[start + 2 : start + 4] + bytes([bits])
    return JPEG[:start] + frame + JPEG[start + 5 :]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0\4CgBI" + bytes(20), "PNG for iOS"),
        (b"P7\nWIDTH 1\nHEIGHT 1\n", "PAM"),
        (b"PF\n1 1\n-1.0\n" + bytes(12), "PFM"),
        (b"\xef\xbb\xbf<!-- drawn --><SVG/>", "SVG"),
        (framed(0xC1, bits=12), "12-bit layers"),
    ],
)
def test_variants_of_known_formats_are_named(data, words):
    with pytest.raises(ImageError, match=words) as caught:
        load_image(data, ImageLimits())
    assert caught.value.fault.code == "unsupported_format"


def test_git_lfs_pointer_is_named_with_its_remedy():
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132735\n"
    with pytest.raises(ImageError, match="git lfs pull") as caught:
        load_image(pointer, ImageLimits())
    assert caught.value.fault.code == "not_an_image"


def test_large_metadata_takes_little_memory():
    packed = zlib.compress(bytes(15 * 2**20), 9)
    data = PNG[:33] + chunk(b"zTXt", b"x\0\0" + packed) + PNG[33:]
    tracemalloc.start()
    try:
        load_image(data, ImageLimits())
        assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    finally:
        tracemalloc.stop()
