"""Every TIFF or BMP pixel layout is read with correct values, or rejected by name."""

import io
import struct
import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image, ImageCms

from pgcli.images import ImageError, ImageLimits, load_image
from pgcli.results.exports.image_files import upright_file

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


GREYS = {
    "uint8": (0, 255, np.uint8, (0, 255)),
    "uint16": (0, 65535, np.uint16, (0, 65535)),
    "8 bits in 16": (0, 255, np.uint16, (0, 255)),
    "10 bits in 16": (0, 1023, np.uint16, (0, 1023)),
    "12 bits in 16": (0, 4095, np.uint16, (0, 4095)),
    "more than 12 bits in 16": (0, 5000, np.uint16, (0, 65535)),
    "8 bits in uint32": (0, 255, np.uint32, (0, 255)),
    "8 bits in int32": (0, 255, np.int32, (0, 255)),
    "16 bits in uint32": (0, 65535, np.uint32, (0, 65535)),
    "uint32": (0, 2**32 - 1, np.uint32, (0, 2**32 - 1)),
    "int32": (-100_000, 100_000, np.int32, (-100_000, 100_000)),
    "int16 from 0": (0, 32767, np.int16, (0, 32767)),
    "int16": (-1000, 3000, np.int16, (-1000, 3000)),
    "int8 from 0": (0, 127, np.int8, (0, 127)),
    "int8": (-128, 127, np.int8, (-128, 127)),
    "float32": (0, 1, np.float32, (0, 1)),
}


#: Without floats with a predictor, which tifffile alone cannot write.
GREYS_STORED = [pair for pair in product(GREYS, STORED) if pair != ("float32", "predictor")]


@pytest.mark.parametrize(("kind", "stored"), GREYS_STORED)
def test_grey_values_of_tiffs_equal_tifffile(kind, stored):
    low, high, dtype, range_ = GREYS[kind]
    pixels = values(low, high, dtype)
    for photometric in ("minisblack", "miniswhite"):
        for byteorder in "<>" if stored != "big" else "<":
            options = STORED[stored] | {"byteorder": byteorder, "photometric": photometric}
            data = tiff(pixels, **options)
            assert np.array_equal(tifffile.imread(io.BytesIO(data)), pixels)
            greys = scaled(pixels, *range_)
            expected = greys if photometric == "minisblack" else 255 - greys
            assert abs(loaded(data)[..., 0] - expected).max() <= 1, (photometric, byteorder)


@pytest.mark.parametrize("bits", [1, 2, 4, 12])
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


COLOURS: dict[str, tuple[Any, int, Callable[[np.ndarray], np.ndarray], dict[str, Any]]] = {
    "RGB": (np.uint8, 3, lambda pixels: pixels, {"photometric": "rgb"}),
    "RGB 16": (np.uint16, 3, lambda pixels: pixels / 257, {"photometric": "rgb"}),
    "RGBA": (np.uint8, 4, on_white, {"photometric": "rgb", "extrasamples": ["unassalpha"]}),
    "RGBA 16": (
        np.uint16,
        4,
        lambda pixels: on_white(pixels / 257),
        {"photometric": "rgb", "extrasamples": ["unassalpha"]},
    ),
    "RGB and infrared": (
        np.uint16,
        4,
        lambda pixels: pixels[..., :3] / 257,
        {"photometric": "rgb", "extrasamples": ["unspecified"]},
    ),
    "CMYK": (np.uint8, 4, from_cmyk, {"photometric": "separated"}),
    "CMYK 16": (np.uint16, 4, lambda pixels: from_cmyk(pixels / 257), {"photometric": "separated"}),
}


@pytest.mark.parametrize("stored", STORED)
@pytest.mark.parametrize("planes", ["contig", "separate"])
@pytest.mark.parametrize("kind", COLOURS)
def test_colours_of_tiffs_equal_tifffile(kind, planes, stored):
    dtype, samples, expected, options = COLOURS[kind]
    pixels = values(0, np.iinfo(dtype).max, dtype, samples)
    arranged = pixels if planes == "contig" else np.ascontiguousarray(np.moveaxis(pixels, -1, 0))
    for byteorder in "<>" if stored != "big" else "<":
        stored_as = STORED[stored] | options
        data = tiff(arranged, planarconfig=planes, byteorder=byteorder, **stored_as)
        assert np.array_equal(tifffile.imread(io.BytesIO(data)), arranged)
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


def test_palettes_of_16_and_of_8_bit_colours_are_the_same():
    colours = np.random.default_rng(0).integers(0, 256, (3, 256), dtype=np.uint16)
    pixels = values(0, 255, np.uint8)
    for stored in (colours, colours * 257):
        data = tiff(pixels, photometric="palette", colormap=stored)
        assert np.array_equal(loaded(data), np.moveaxis(colours[:, pixels], 0, -1))


def test_cielab_is_converted_to_srgb():
    photo = Image.fromarray(values(0, 255, np.uint8, 3))
    lab = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    stored = ImageCms.profileToProfile(photo, lab[1], lab[0], outputMode="LAB")
    assert abs(loaded(saved(stored, "TIFF")) - np.asarray(photo).astype(int)).mean() < 3


def saved(image: Image.Image, format_: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, format_, **options)
    return file.getvalue()


@pytest.mark.parametrize("compression", ["jpeg", "tiff_lzw", "zstd", "packbits", "lzma"])
def test_compressed_tiffs_are_read(compression):
    photo = Image.linear_gradient("L").resize((64, 48)).convert("RGB")
    data = saved(photo, "TIFF", compression=compression)
    assert abs(loaded(data) - np.asarray(photo).astype(int)).max() <= 3


@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize("subsampling", [(1, 1), (2, 1), (2, 2)])
def test_uncompressed_ycbcr_is_read_with_its_subsampling(subsampling, byteorder):
    width, height = subsampling
    photo = Image.effect_noise((4, 4), 90).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    rows = np.asarray(Image.merge("YCbCr", [photo, photo.rotate(180), photo.rotate(90)]))
    padded = np.pad(rows, ((0, -HEIGHT % height), (0, -WIDTH % width), (0, 0)), mode="edge")
    stored = bytearray()
    for top in range(0, HEIGHT, height):
        for left in range(0, WIDTH, width):
            block = padded[top : top + height, left : left + width]
            stored += block[..., 0].tobytes() + bytes(
                block[..., 1:].mean((0, 1)).astype(int).tolist()
            )
    tags = {"t258": (8, 8, 8), "t262": (6,), "t277": (3,), "t530": subsampling}
    data = by_hand(bytes(stored), byteorder=byteorder, **tags)
    expected = np.asarray(Image.fromarray(rows, "YCbCr").convert("RGB")).astype(int)
    assert abs(loaded(data) - expected).mean() < 8  # another subsampling differs by 50


@pytest.mark.parametrize(
    ("high", "maximum", "white"),
    [(4095, 4095, 4095), (1000, 65535, 65535), (10_000, 16383, 16383), (3000, 2999, 4095)],
)
def test_stated_maximum_of_16_bits_is_white(high, maximum, white):
    pixels = values(0, high, np.uint16)
    tags = {"t258": (16,), "t262": (1,), "t281": (maximum,)}
    assert np.array_equal(
        loaded(by_hand(pixels.tobytes(), **tags))[..., 0], scaled(pixels, 0, white)
    )


def test_dark_16_bit_colours_are_rejected_unless_their_maximum_is_stated():
    pixels = values(0, 4095, np.uint16, 3)
    tags = {"t258": (16, 16, 16), "t262": (2,), "t277": (3,)}
    assert "16-bit colours that all fit in 12 bits" in refusal(by_hand(pixels.tobytes(), **tags))
    stated = by_hand(pixels.tobytes(), **tags, t281=(65535,) * 3)
    assert abs(loaded(stated) - pixels / 257).max() <= 1
    stated = by_hand(pixels.tobytes(), **tags, t281=(4095,) * 3)
    assert "MaxSampleValue other than 65535" in refusal(stated)
    few = by_hand((pixels * 3).tobytes(), **tags, t281=(16383,) * 3)
    assert "16-bit colours that all fit in 14 bits" in refusal(few)


def test_stated_maximum_below_the_values_of_colours_is_ignored():
    pixels = values(0, 65535, np.uint16, 3)
    data = by_hand(pixels.tobytes(), t258=(16, 16, 16), t262=(2,), t277=(3,), t281=(4095,) * 3)
    assert abs(loaded(data) - pixels / 257).max() <= 1


NODATA: dict[str, tuple[float, float, Any, str, tuple[float, float]]] = {
    "elevations": (100, 900, np.float32, "-9999", (100, 900)),
    "the least float32": (-5, 900, np.float32, "-3.4028234663852886e+38", (-5, 900)),
    "reflectances": (0, 1, np.float32, "-1", (0, 1)),
    "12 bits in 16": (0, 4000, np.uint16, "65535", (0, 4095)),
    "16 bits": (0, 60_000, np.uint16, "0", (0, 65535)),
    "int16": (0, 900, np.int16, "-32768", (0, 1023)),
    "negative int16": (-400, 900, np.int16, "-32768 ", (-400, 900)),
    "int32": (0, 100_000, np.int32, "-2147483648", (0, 100_000)),
}


@pytest.mark.parametrize("name", NODATA)
@pytest.mark.parametrize("photometric", ["minisblack", "miniswhite"])
def test_pixels_without_data_do_not_change_the_range_of_the_others(name, photometric):
    low, high, dtype, nodata, range_ = NODATA[name]
    pixels, empty = values(low, high, dtype), np.zeros((HEIGHT, WIDTH), bool)
    empty[3:9, 5:60] = True
    stored = np.where(empty, np.float64(nodata).astype(dtype), pixels)
    tag = (42113, 2, 0, nodata, True)
    greys = scaled(pixels, *range_)
    expected = greys if photometric == "minisblack" else 255 - greys
    found = loaded(tiff(stored, photometric=photometric, extratags=[tag]))[..., 0]
    assert abs(found - expected)[~empty].max() <= 1
    assert len({*found[empty].tolist()} & {0, 255}) == len({*found[empty].tolist()}) == 1


@pytest.mark.parametrize("nodata", ["nan", "", "none", "1e999"])
def test_nodata_that_is_no_value_is_ignored(nodata):
    pixels = values(0, 4095, np.uint16)
    data = tiff(pixels, extratags=[(42113, 2, 0, nodata, True)])
    assert np.array_equal(loaded(data)[..., 0], scaled(pixels, 0, 4095))


def test_dark_16_bit_colours_beside_pixels_without_data_are_rejected():
    pixels = values(0, 4095, np.uint16, 3)
    pixels[3:9] = 65535
    tag = (42113, 2, 0, "65535", True)
    assert "fit in 12 bits" in refusal(tiff(pixels, photometric="rgb", extratags=[tag]))
    bright = values(0, 65535, np.uint16, 3)
    found = loaded(tiff(bright, photometric="rgb", extratags=[tag]))
    assert abs(found - bright / 257).max() <= 1


@pytest.mark.parametrize("places", ["pages", "a tree"])
def test_tiff_that_begins_with_a_preview_is_rejected(places):
    file, photo = io.BytesIO(), values(0, 255, np.uint8, 3)
    options: dict[str, Any] = {"photometric": "rgb", "metadata": None}
    with tifffile.TiffWriter(file) as writer:
        below = {"subifds": 1} if places == "a tree" else {}
        writer.write(photo[:16, :16], subfiletype=1, **below, **options)
        writer.write(photo, **options)
    assert "begins with a preview" in refusal(file.getvalue())


def test_page_that_was_cut_from_a_pyramid_is_read():
    photo = values(0, 255, np.uint8, 3)
    assert np.array_equal(loaded(tiff(photo, photometric="rgb", subfiletype=1)), photo)


@pytest.mark.parametrize("compression", [None, "zlib"])
@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize("samples", [3, 4])
def test_black_16_bit_colours_are_black(compression, byteorder, samples):
    black = np.zeros((HEIGHT, WIDTH, samples), np.uint16)
    options = {"photometric": "rgb", "byteorder": byteorder, "compression": compression}
    options |= {"extrasamples": ["unspecified"]} if samples == 4 else {}
    assert not loaded(tiff(black, **options)).any()
    black[20, 30, 1] = 255
    assert "16-bit colours that all fit in 12 bits" in refusal(tiff(black, **options))


@pytest.mark.parametrize(
    ("format_", "dtype"), [("PNG", np.uint16), ("TIFF", np.uint16), ("TIFF", np.int32)]
)
def test_black_greys_are_black_without_a_warning(format_, dtype):
    black = Image.fromarray(np.zeros((HEIGHT, WIDTH), dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not loaded(saved(black, format_)).any()


@pytest.mark.parametrize("scale", [1.0, 1.02, 255])
def test_floats_from_0_to_1_or_255_keep_their_range(scale):
    pixels = values(0, scale, np.float32)
    white = 1 if scale < 2 else 255
    assert abs(loaded(tiff(pixels))[..., 0] - scaled(pixels, 0, white).clip(max=255)).max() <= 1


@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize("photometric", [0, 1])
@pytest.mark.parametrize("bits", [1, 8, 16, 32])
def test_bits_in_reversed_order_are_read(bits, photometric, byteorder):
    pixels = values(0, 2**bits - 1, np.uint32)
    stored = packed(pixels, bits)
    if bits > 8:
        stored = pixels.astype(f"{byteorder}u{bits // 8}").tobytes()
    stored = np.packbits(
        np.unpackbits(np.frombuffer(stored, np.uint8), bitorder="little")
    ).tobytes()
    data = by_hand(stored, byteorder=byteorder, t258=(bits,), t262=(photometric,), t266=(2,))
    greys = scaled(pixels, 0, 2**bits - 1)
    expected = greys if photometric else 255 - greys
    assert abs(loaded(data)[..., 0] - expected).max() <= 1


@pytest.mark.parametrize("byteorder", "<>")
@pytest.mark.parametrize(("bits", "format_"), [(4, 1), (8, 1), (16, 1), (16, 2), (32, 1), (32, 3)])
def test_one_plane_that_is_called_separate_is_read(bits, format_, byteorder):
    kind = f"{byteorder}{' uif'[format_]}{bits // 8}"
    pixels = values(0, 1 if format_ == 3 else 15, np.float64 if format_ == 3 else np.uint16)
    stored = packed(pixels, bits) if bits < 8 else pixels.astype(kind).tobytes()
    tags = {"t258": (bits,), "t262": (1,), "t339": (format_,)}
    separate = by_hand(stored, byteorder=byteorder, **tags, t284=(2,))
    assert np.array_equal(loaded(separate), loaded(by_hand(stored, byteorder=byteorder, **tags)))


PHOTO = values(0, 255, np.uint8, 3)
PHOTO_PLANES = np.ascontiguousarray(np.moveaxis(PHOTO, -1, 0))
CUT = {
    "deflate": tiff(PHOTO, photometric="rgb", compression="zlib", rowsperstrip=5),
    "uncompressed": tiff(PHOTO, photometric="rgb"),
    "planes": tiff(PHOTO_PLANES, photometric="rgb", planarconfig="separate"),
    "tiled planes": tiff(
        PHOTO_PLANES, photometric="rgb", planarconfig="separate", tile=(16, 16), compression="zlib"
    ),
    "reversed bits": by_hand(PHOTO.tobytes(), t258=(8, 8, 8), t262=(2,), t277=(3,), t266=(2,)),
    "maximum of 100": b"P6 70 37 100\n" + PHOTO.tobytes(),
    "maximum of 300": b"P5 70 37 300\n" + PHOTO[..., :2].tobytes(),
}


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("share", [0.6, 0.95])
def test_incomplete_image_is_truncated(name, share):
    with pytest.raises(ImageError) as caught:
        load_image(CUT[name][: int(len(CUT[name]) * share)], ImageLimits())
    assert caught.value.fault.code == "truncated"


def test_tiff_without_photometric_interpretation_is_read_as_libtiff_does():
    grey, colours = values(0, 255, np.uint8), values(0, 255, np.uint8, 3)
    assert np.array_equal(loaded(by_hand(grey.tobytes(), t258=(8,)))[..., 0], grey)
    assert np.array_equal(loaded(by_hand(colours.tobytes(), t258=(8,), t277=(3,))), colours)


@pytest.mark.parametrize("has_alpha", [True, False])
def test_unstated_alpha_that_is_0_everywhere_is_ignored(has_alpha):
    pixels = values(0, 255, np.uint8, 4)
    pixels[..., 3] *= has_alpha
    data = by_hand(pixels.tobytes(), t258=(8,) * 4, t262=(2,), t277=(4,))
    expected = on_white(pixels) if has_alpha else pixels[..., :3]
    assert abs(loaded(data) - expected).max() <= 1


UNSUPPORTED = {
    "float16": (tiff(values(0, 1, np.float16)), "black is zero, 1 x 16 bits, floating-point"),
    "float64": (tiff(values(0, 1, np.float64)), "1 x 64 bits, floating-point"),
    "float RGB": (
        tiff(values(0, 1, np.float32, 3), photometric="rgb"),
        "RGB, 3 x 32 bits, floating-point",
    ),
    "five channels": (
        tiff(values(0, 65535, np.uint16, 5), photometric="minisblack", planarconfig="contig"),
        "5 x 16 bits",
    ),
    "five planes": (
        tiff(
            np.moveaxis(values(0, 65535, np.uint16, 5), -1, 0),
            photometric="minisblack",
            planarconfig="separate",
        ),
        "5 x 16 bits, unsigned, separate planes",
    ),
    "three greys": (
        tiff(values(0, 255, np.uint8, 3), photometric="minisblack", planarconfig="contig"),
        "black is zero, 3 x 8 bits",
    ),
    "10 bits": (by_hand(bytes(9000), t258=(10,), t262=(1,)), "1 x 10 bits"),
    "12 bits, big-endian": (
        by_hand(bytes(9000), byteorder=">", t258=(12,), t262=(1,)),
        "1 x 12 bits",
    ),
    "14 bits": (by_hand(bytes(9000), t258=(14,), t262=(1,)), "1 x 14 bits"),
    "24 bits": (by_hand(bytes(9000), t258=(24,), t262=(1,)), "1 x 24 bits"),
    "uint64": (tiff(values(0, 2**40, np.uint64)), "1 x 64 bits"),
    "big BigTIFF": (
        tiff(values(0, 255, np.uint8), bigtiff=True, byteorder=">"),
        "big-endian BigTIFF",
    ),
    "5-6-5": (by_hand(bytes(9000), t258=(5, 6, 5), t262=(2,), t277=(3,)), "3 x 5/6 bits"),
    "camera raw": (by_hand(bytes(9000), t258=(16,), t262=(32803,)), "camera raw"),
    "JPEG 2000": (by_hand(bytes(9), t258=(8,), t262=(1,), t259=(34712,)), "compression 34712"),
    "predicted PackBits": (
        by_hand(bytes(9), t258=(8,), t262=(1,), t259=(32773,), t317=(2,)),
        "compression 32773, predictor 2",
    ),
    "not CMYK": (
        by_hand(bytes(99_000), t258=(8,) * 4, t262=(5,), t277=(4,), t332=(2,)),
        "CMYK, 4 x 8 bits",
    ),
    "planes of alpha and infrared": (
        tiff(
            np.moveaxis(values(0, 255, np.uint8, 5), -1, 0),
            photometric="rgb",
            planarconfig="separate",
            extrasamples=["unassalpha", "unspecified"],
        ),
        "RGB, 5 x 8 bits, unsigned, separate planes",
    ),
    "premultiplied planes": (
        tiff(
            np.moveaxis(values(0, 255, np.uint8, 4), -1, 0),
            photometric="rgb",
            planarconfig="separate",
            extrasamples=["assocalpha"],
        ),
        "premultiplied alpha, separate planes",
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_layout_is_named(name):
    data, words = UNSUPPORTED[name]
    message = refusal(data)
    assert words in message
    assert message.endswith(("convert it to PNG or 8 bits.", "convert it to PNG or JPEG."))


def test_unsupported_tiff_has_its_upright_size():
    data = tiff(values(0, 1, np.float16), extratags=[(274, 3, 1, 6, True)])
    with pytest.raises(ImageError) as caught:
        load_image(data, ImageLimits())
    assert caught.value.size == (HEIGHT, WIDTH)


@pytest.mark.parametrize("kind", ["uint16", "12 bits in 16", "uint32", "int8"])
def test_rotated_copy_of_white_is_zero_has_the_same_pixels(kind):
    low, high, dtype, _ = GREYS[kind]
    data = tiff(
        values(low, high, dtype), photometric="miniswhite", extratags=[(274, 3, 1, 6, True)]
    )
    turned = upright_file(data)
    assert turned is not None
    assert abs(loaded(turned) - loaded(data)).max() <= 1


@pytest.mark.parametrize("alpha", [0, 128])
@pytest.mark.parametrize(
    ("samples", "extra"), [*product([2, 4], [(0,), (1,), (2,)]), (4, ())], ids=str
)
def test_rotated_copy_of_a_tiff_with_alpha_has_the_same_pixels(samples, extra, alpha):
    pixels = values(0, 127, np.uint8, samples)
    pixels[..., -1] = alpha
    tags = {"t262": (2 if samples == 4 else 1,), "t277": (samples,), "t274": (6,)}
    tags |= {"t338": extra} if extra else {}
    data = by_hand(pixels.tobytes(), t258=(8,) * samples, **tags)
    turned = upright_file(data)
    assert turned is not None
    assert np.array_equal(loaded(turned), loaded(data))


def test_rejected_colours_have_no_rotated_copy():
    pixels = values(0, 4095, np.uint16, 3)
    tags = {"t258": (16, 16, 16), "t262": (2,), "t277": (3,), "t274": (6,)}
    with pytest.raises(ImageError, match="16-bit colours that all fit in 12 bits"):
        upright_file(by_hand(pixels.tobytes(), **tags))


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


@pytest.mark.parametrize("header", [40, 108])
@pytest.mark.parametrize(
    ("green", "fields"), [(6, (0xF800, 0x7E0, 0x1F)), (5, (0x7C00, 0x3E0, 0x1F))]
)
def test_bmp_of_16_bits_is_read(header, green, fields):
    stored = values(0, 2 ** (10 + green) - 1, np.uint16)
    parts = stored >> 5 + green, stored >> 5 & 2**green - 1, stored & 31
    expected = np.stack([parts[0] / 31, parts[1] / (2**green - 1), parts[2] / 31], -1) * 255
    assert abs(loaded(bmp(stored, header, fields)) - expected).max() <= 1


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
