"""8-bit TIFFs and BMPs and 16-bit greys have correct values; other layouts are refused by name."""

import io
import struct
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from pgcli.images import ImageError, ImageLimits, load_image
from pgcli.images.decode import encode_image
from pgcli.results.exports.files import upright_file

WIDTH, HEIGHT = 70, 37
STORED: dict[str, dict[str, Any]] = {
    "strips": {"rowsperstrip": 5},
    "tiles": {"tile": (16, 32)},
    "deflate": {"compression": "zlib"},
    "predictor": {"compression": "zlib", "predictor": True, "tile": (16, 32)},
    "big": {"bigtiff": True},
}


def values(low: float, high: float, dtype: Any, samples: int | None = None) -> np.ndarray:
    """An image of all values in a range, in random order."""
    shape = (HEIGHT, WIDTH) if samples is None else (HEIGHT, WIDTH, samples)
    numbers = np.linspace(low, high, np.prod(shape))
    np.random.default_rng(0).shuffle(numbers)
    numbers = np.rint(numbers) if np.dtype(dtype).kind in "iu" else numbers
    return numbers.reshape(shape).astype(dtype)


def tiff(pixels: np.ndarray, **options: Any) -> bytes:
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, metadata=None, **options)
    return file.getvalue()


def loaded(data: bytes) -> np.ndarray:
    return np.asarray(load_image(data, ImageLimits())).astype(int)


def scaled(pixels: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((pixels.astype(float) - low) * 255 / (high - low))


def refusal(data: bytes) -> str:
    with pytest.raises(ImageError) as caught:
        load_image(data, ImageLimits())
    assert caught.value.fault.code == "unsupported_format"
    return caught.value.fault.message


def by_hand(pixels: bytes, *, byteorder: str = "<", **tags: tuple[int, ...]) -> bytes:
    """A TIFF with these tags, named like t262, and one strip of pixels."""
    size = {256: (WIDTH,), 257: (HEIGHT,), 278: (HEIGHT,), 279: (len(pixels),), 273: (0,)}
    entries = size | {int(name[1:]): numbers for name, numbers in tags.items()}
    start = 8 + 2 + 12 * len(entries) + 4
    outside, lines = b"", {}
    for number, numbers in entries.items():
        kind = 4 if number in size else 3
        data = struct.pack(f"{byteorder}{len(numbers)}{' HI'[kind - 2]}", *numbers)
        if len(data) > 4:
            data, outside = struct.pack(f"{byteorder}I", start + len(outside)), outside + data
        lines[number] = struct.pack(f"{byteorder}HHI", number, kind, len(numbers)) + data.ljust(
            4, b"\0"
        )
    lines[273] = lines[273][:8] + struct.pack(f"{byteorder}I", start + len(outside))
    head = {"<": b"II*\0", ">": b"MM\0*"}[byteorder] + struct.pack(f"{byteorder}I", 8)
    body = b"".join(lines[number] for number in sorted(lines))
    return head + struct.pack(f"{byteorder}H", len(lines)) + body + bytes(4) + outside + pixels


def packed(pixels: np.ndarray, bits: int) -> bytes:
    """Rows of values of so many bits, each row padded to whole bytes."""
    places = np.arange(bits)[::-1]
    return np.packbits((pixels[..., None] >> places & 1).reshape(HEIGHT, -1), axis=1).tobytes()


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize(("dtype", "photometrics"), [(np.uint8, (0, 1)), (np.uint16, (1,))])
def test_grey_values_of_tiffs_equal_tifffile(dtype, photometrics, stored):
    high = np.iinfo(dtype).max
    pixels = values(0, high, dtype)
    for photometric in photometrics:
        for byteorder in "<>" if stored != "big" else "<":
            options = STORED[stored] | {"byteorder": byteorder}
            data = tiff(pixels, photometric=photometric, **options)
            assert np.array_equal(tifffile.imread(io.BytesIO(data)), pixels)
            greys = scaled(pixels, 0, high)
            expected = greys if photometric else 255 - greys
            assert np.array_equal(loaded(data)[..., 0], expected), (photometric, byteorder)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("photometric", [0, 1])
def test_packed_greys_have_their_values(bits, photometric):
    pixels = values(0, 2**bits - 1, np.uint16)
    greys = scaled(pixels, 0, 2**bits - 1)
    data = by_hand(packed(pixels, bits), t258=(bits,), t262=(photometric,))
    assert np.array_equal(loaded(data)[..., 0], greys if photometric else 255 - greys)


def on_white(pixels: np.ndarray) -> np.ndarray:
    alpha = pixels[..., -1:].astype(float) / 255
    return pixels[..., :-1] * alpha + 255 * (1 - alpha)


def from_cmyk(pixels: np.ndarray) -> np.ndarray:
    return (255 - pixels[..., :3].astype(float)) * (255 - pixels[..., 3:].astype(float)) / 255


COLOURS: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray], dict[str, Any]]] = {
    "RGB": (3, lambda pixels: pixels, {"photometric": "rgb"}),
    "RGBA": (4, on_white, {"photometric": "rgb", "extrasamples": ["unassalpha"]}),
    "RGB and infrared": (
        4,
        lambda pixels: pixels[..., :3],
        {"photometric": "rgb", "extrasamples": ["unspecified"]},
    ),
    "CMYK": (4, from_cmyk, {"photometric": "separated"}),
}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("kind", COLOURS)
def test_colours_of_tiffs_equal_tifffile(kind, stored):
    samples, expected, options = COLOURS[kind]
    pixels = values(0, 255, np.uint8, samples)
    for byteorder in "<>" if stored != "big" else "<":
        data = tiff(pixels, byteorder=byteorder, **STORED[stored] | options)
        assert np.array_equal(tifffile.imread(io.BytesIO(data)), pixels)
        assert abs(loaded(data) - expected(pixels)).max() <= 3


@pytest.mark.parametrize("extra", ["unassalpha", "assocalpha"])
@pytest.mark.parametrize("samples", [2, 4])
def test_transparency_of_tiffs_is_on_white(samples, extra):
    pixels = values(0, 255, np.uint8, samples)
    if extra == "assocalpha":
        pixels[..., :-1] = np.minimum(pixels[..., :-1], pixels[..., -1:])
    photometric = "rgb" if samples == 4 else "minisblack"
    data = tiff(pixels, photometric=photometric, extrasamples=[extra])
    expected = on_white(pixels)
    if extra == "assocalpha":
        expected = pixels[..., :-1] + 255.0 - pixels[..., -1:]
    assert abs(loaded(data) - expected).max() <= 2


def test_palette_colours_are_read():
    colours = np.random.default_rng(0).integers(0, 256, (3, 256), dtype=np.uint16)
    pixels = values(0, 255, np.uint8)
    data = tiff(pixels, photometric="palette", colormap=colours * 257)
    assert np.array_equal(loaded(data), np.moveaxis(colours[:, pixels], 0, -1))


PHOTO = values(0, 255, np.uint8, 3)
PLANES = np.ascontiguousarray(np.moveaxis(PHOTO, -1, 0))
CUT = {
    "deflate": tiff(PHOTO, photometric="rgb", compression="zlib", rowsperstrip=5),
    "uncompressed": tiff(PHOTO, photometric="rgb"),
    "maximum of 100": b"P6 70 37 100\n" + PHOTO.tobytes(),
    "maximum of 300": b"P5 70 37 300\n" + PHOTO[..., :2].tobytes(),
}


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("share", [0.6, 0.95])
def test_incomplete_image_is_truncated(name, share):
    with pytest.raises(ImageError) as caught:
        load_image(CUT[name][: int(len(CUT[name]) * share)], ImageLimits())
    # libtiff and Pillow's loops for other maxima do not say why they fail
    assert caught.value.fault.code in ("truncated", "decode_failed")


SHORT, DARK = values(0, 65535, np.uint16), values(0, 4095, np.uint16)
BITS_8 = {"t258": (8,), "t262": (1,)}
PREVIEW = io.BytesIO()
with tifffile.TiffWriter(PREVIEW) as writer:
    writer.write(PHOTO[:16, :16], photometric="rgb", subfiletype=1, metadata=None)
    writer.write(PHOTO, photometric="rgb", metadata=None)
TREE = io.BytesIO()
with tifffile.TiffWriter(TREE) as writer:
    writer.write(PHOTO[:16, :16], photometric="rgb", subfiletype=1, subifds=1, metadata=None)
    writer.write(PHOTO, photometric="rgb", metadata=None)
#: A file of each kind that Pillow opens and misreads, or does not open.
REFUSED = {
    "int8": (tiff(values(-128, 127, np.int8)), "signed or floating-point"),
    "int16": (tiff(values(-9, 9, np.int16)), "signed or floating-point"),
    "int32, big-endian": (
        tiff(values(-9, 9, np.int32), compression="zlib", byteorder=">"),
        "signed or floating-point",
    ),
    "float32": (tiff(values(0, 1, np.float32)), "signed or floating-point"),
    "float64": (tiff(values(0, 1, np.float64)), "in an unknown layout"),
    "uint32": (tiff(values(0, 9, np.uint32)), "of 32 bits a sample"),
    "12 bits": (by_hand(packed(DARK, 12), t258=(12,), t262=(1,)), "of 12 bits a sample"),
    "10 bits": (by_hand(bytes(9000), t258=(10,), t262=(1,)), "in an unknown layout"),
    "12 bits in 16": (tiff(DARK), "with values of 12 bits"),
    "12 bits in 16, big-endian": (tiff(DARK, byteorder=">", tile=(16, 32)), "values of 12 bits"),
    "white is 0": (tiff(SHORT, photometric="miniswhite"), "whose white is 0"),
    "white is 0, big-endian": (
        tiff(SHORT, photometric="miniswhite", byteorder=">"),
        "in an unknown layout",
    ),
    "a maximum": (
        by_hand(SHORT.tobytes(), t258=(16,), t262=(1,), t281=(16383,)),
        "with a stated range",
    ),
    "nodata": (tiff(SHORT, extratags=[(42113, 2, 0, "65535", True)]), "with a stated range"),
    "RGB 16": (tiff(values(0, 65535, np.uint16, 3), photometric="rgb"), "of 16 bits a sample"),
    "five channels": (
        tiff(values(0, 255, np.uint8, 5), photometric="minisblack", planarconfig="contig"),
        "in an unknown layout",
    ),
    "planes": (tiff(PLANES, photometric="rgb", planarconfig="separate"), "in separate planes"),
    "compressed planes": (
        tiff(PLANES, photometric="rgb", planarconfig="separate", compression="zlib"),
        "in separate planes",
    ),
    "one plane called separate": (
        by_hand(SHORT.tobytes(), t258=(16,), t262=(1,), t284=(2,)),
        "in separate planes",
    ),
    "uncompressed YCbCr": (
        by_hand(PHOTO.tobytes(), t258=(8, 8, 8), t262=(6,), t277=(3,)),
        "uncompressed YCbCr",
    ),
    "reversed bits": (by_hand(bytes(9000), **BITS_8, t266=(2,)), "with reversed bits"),
    "predicted PackBits": (
        by_hand(bytes(9), **BITS_8, t259=(32773,), t317=(2,)),
        "unexpected predictor",
    ),
    "predicted without compression": (by_hand(bytes(9000), **BITS_8, t317=(2,)), "predictor"),
    "JPEG 2000": (by_hand(bytes(9), **BITS_8, t259=(34712,)), "in an unknown layout"),
    "no photometric interpretation": (by_hand(bytes(9000), t258=(8,)), "without a photometric"),
    "camera raw": (by_hand(bytes(9000), t258=(16,), t262=(32803,)), "in an unknown layout"),
    "not CMYK": (
        by_hand(bytes(99_000), t258=(8,) * 4, t262=(5,), t277=(4,), t332=(2,)),
        "inks other than CMYK",
    ),
    "unstated alpha": (
        by_hand(bytes(99_000), t258=(8,) * 4, t262=(2,), t277=(4,)),
        "undeclared fourth channel",
    ),
    "a palette of 8-bit colours": (
        tiff(PHOTO[..., 0], photometric="palette", colormap=np.full((3, 256), 99, np.uint16)),
        "palette of 8 bits",
    ),
    "big BigTIFF": (tiff(PHOTO, bigtiff=True, byteorder=">"), "big-endian BigTIFF"),
    "preview": (PREVIEW.getvalue(), "begins with a preview"),
    "preview above a tree": (TREE.getvalue(), "begins with a preview"),
    "PFM": (b"Pf\n1 1\n-1.0\n" + bytes(4), "PFM"),
    "thousands of comments": (b"P1\n1 1\n" + b"#\n" * 10**6 + b"0", "comments"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_layout_that_pillow_may_misread_is_refused_by_name(name):
    data, words = REFUSED[name]
    assert words in refusal(data)


def test_integers_in_memory_are_refused():
    with pytest.raises(ImageError, match="32-bit values"):
        encode_image(Image.fromarray(np.array([[0, 100_000]], np.int32)))


@pytest.mark.parametrize("alpha", [0, 128])
@pytest.mark.parametrize(("samples", "extra"), [*product([2, 4], [(0,), (1,), (2,)])], ids=str)
def test_rotated_copy_of_a_tiff_with_alpha_has_the_same_pixels(samples, extra, alpha):
    pixels = values(0, 127, np.uint8, samples)
    pixels[..., -1] = alpha
    tags = {"t262": (2 if samples == 4 else 1,), "t277": (samples,), "t274": (6,)}
    tags |= {"t338": extra}
    data = by_hand(pixels.tobytes(), t258=(8,) * samples, **tags)
    turned = upright_file(data)
    assert turned is not None
    assert np.array_equal(loaded(turned), loaded(data))


def bmp(pixels: np.ndarray, header: int, masks: tuple[int, ...], compression: int = 3) -> bytes:
    """A BMP of pixels with 2 or 4 bytes, as stored."""
    height, width = pixels.shape[:2]
    rows = b"".join(row.tobytes() + bytes(-len(row.tobytes()) % 4) for row in pixels[::-1])
    bits = 8 * pixels[0, 0].nbytes
    sizes = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, 0, 0, 0, 0, 0)
    colours = struct.pack(f"<{len(masks)}I", *masks)
    head = (sizes + colours).ljust(header, b"\0")
    start = 14 + len(head)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + head + rows


BGRA = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)


@pytest.mark.parametrize("header", [56, 108, 124])
@pytest.mark.parametrize("masks", [BGRA, (0, 0, 0, 0)])
@pytest.mark.parametrize("alpha", [0, 1, 255])
def test_bmp_alpha_that_is_0_everywhere_is_ignored(header, masks, alpha):
    pixels = values(0, 255, np.uint8, 4)
    pixels[..., 3] = alpha
    rgba = pixels[..., [2, 1, 0, 3]]
    expected = on_white(rgba) if alpha else rgba[..., :3]
    assert abs(loaded(bmp(pixels, header, masks)) - expected).max() <= 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bmp(values(0, 255, np.uint8, 4), 40, BGRA, 6), "compression (6)"),
        (bmp(values(0, 255, np.uint8, 4), 40, BGRA, 4), "compression (4)"),
        (bmp(values(0, 255, np.uint8, 4), 108, (0x3FF00000, 0xFFC00, 0x3FF, 0)), "bitfields"),
        (bmp(values(0, 4095, np.uint16), 108, (0xF00, 0xF0, 0xF, 0xF000)), "bitfields"),
    ],
)
def test_unsupported_bmp_is_named(data, words):
    assert words in refusal(data)
