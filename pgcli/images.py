"""Turn the bytes of a picture into the model's square, upright and RGB, or into a named fault."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageFile
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from pgcli.records import Fault, Item, Picture, Region

# Called directly, not through Image.open: its pixel limit is a global of the process, and its
# JPEG reader hands files of several frames to another reader, which trips on broken indexes.
READERS: dict[str, type[ImageFile.ImageFile]] = {
    "JPEG": JpegImageFile,
    "PNG": PngImageFile,
    "WEBP": WebPImageFile,
    "GIF": GifImageFile,
    "BMP": BmpImageFile,
    "TIFF": TiffImageFile,
    "AVIF": AvifImageFile,
    "PPM": PpmImageFile,
}
FORMATS = tuple(READERS)

#: Two letters begin many files that are no pictures; their header has to read as well.
WEAKLY_SIGNED = ("BMP", "PPM")

#: How files begin that are pictures too, known by name and not read.
OTHER_FORMATS = {
    "EPS": (b"%!PS", b"\xc5\xd0\xd3\xc6"),
    "PDF": (b"%PDF",),
    "PSD": (b"8BPS",),
    "FITS": (b"SIMPLE  =",),
    "WMF": (b"\xd7\xcd\xc6\x9a",),
    "JPEG 2000": (b"\x00\x00\x00\x0cjP  ", b"\xff\x4f\xff\x51"),
    "JPEG XL": (b"\x00\x00\x00\x0cJXL ", b"\xff\x0a"),
    "ICO": (b"\x00\x00\x01\x00",),
    "DDS": (b"DDS ",),
    "QOI": (b"qoif",),
    "OpenEXR": (b"\x76\x2f\x31\x01",),
    "XCF": (b"gimp xcf",),
    "SVG": (b"<svg",),
}
PNG_END = b"IEND\xaeB`\x82"
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")

ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)

_MISSING = Fault("missing", "There is no such file.")
_UNKNOWN = Fault("not_an_image", "The file is no picture of a known format.")
_TRUNCATED = Fault("truncated", "The file ends before the picture does.")


class Size(NamedTuple):
    """Pixels of the upright image."""

    width: int
    height: int


@dataclass(frozen=True)
class Square:
    """What the model looks at: the side in pixels, and Pillow's resampling number (3: bicubic)."""

    resolution: int
    resample: int = 3


@dataclass(frozen=True)
class Limits:
    """The largest picture (pixels, by its header) and the largest file (bytes) that are read."""

    max_pixels: int = 89_478_485
    max_bytes: int = 256 * 2**20


class Unreadable(Exception):
    """A picture that cannot be had: its fault, and its upright size if the header told it."""

    def __init__(self, fault: Fault, size: Size | None = None):
        super().__init__(fault.message)
        self.fault = fault
        self.size = size


def look(item: Item, square: Square, limits: Limits, *, region: Region | None = None) -> Picture:
    """The item's picture in the model's square, or its fault: a broken file raises nothing.

    Of a `region` the square shows what lies within the picture.
    """
    started = perf_counter()
    size, pixels, fault = None, None, item.fault
    if fault is None:
        try:
            image = upright(item.data if item.path is None else item.path, limits)
            size = Size(*image.size)
            region = _within(region, size)
            with _unreadable_only(size):
                pixels = _squared(image if region is None else image.crop(region), square)
        except Unreadable as problem:
            size, fault = problem.size, problem.fault
    width, height = size or (None, None)
    load_ms = (perf_counter() - started) * 1000
    return Picture(item, width, height, pixels, load_ms, fault, None if fault else region)


def upright(source: str | bytes | None, limits: Limits) -> Image.Image:
    """The first frame of a file (its path) or of bytes, in RGB, turned as its EXIF says.

    Transparent pixels show white; 16-bit and float values are scaled, not clipped. Raises
    `Unreadable`, and nothing else, whatever is wrong with the picture.
    """
    data = _checked(source, limits) if isinstance(source, bytes | None) else _read(source, limits)
    with _unreadable_only():
        image = _recognised(data)
        size = _header_size(image)
    if size.width * size.height > limits.max_pixels:
        raise Unreadable(_too_many_pixels(size, limits), size)
    with _unreadable_only(size, data):
        image.load()
        turn = TURNS.get(_orientation(image))
        rgb = _rgb(image)
        return rgb if turn is None else rgb.transpose(turn)


def _within(region: Region | None, size: Size) -> Region | None:
    """The part of the region that the picture has."""
    if region is None:
        return None
    left, top = max(0, region[0]), max(0, region[1])
    right, bottom = min(size.width, region[2]), min(size.height, region[3])
    if left >= right or top >= bottom:
        message = f"The region lies outside the picture of {size.width} x {size.height} pixels."
        raise Unreadable(Fault("decode_failed", message), size)
    return left, top, right, bottom


def _squared(image: Image.Image, square: Square) -> np.ndarray:
    side = square.resolution
    return np.array(image.resize((side, side), Image.Resampling(square.resample)))


def _read(path: str, limits: Limits) -> bytes:
    """The bytes of a regular file; nothing else is opened: a FIFO would wait, a device act."""
    try:
        _checked_kind(Path(path).stat(), limits)
        # a FIFO may be there by now, and opening it without O_NONBLOCK waits for a writer
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            _checked_kind(os.fstat(descriptor), limits)
            return _checked(file.read(limits.max_bytes + 1), limits)
    except (FileNotFoundError, NotADirectoryError) as problem:
        raise Unreadable(_MISSING) from problem
    except PermissionError as problem:
        raise Unreadable(Fault("permission_denied", "The file may not be read.")) from problem
    except OSError as problem:
        reason = os.strerror(problem.errno) if problem.errno else type(problem).__name__
        raise Unreadable(Fault("io_error", f"Reading the file failed: {reason}.")) from problem
    except ValueError as problem:  # a NUL in the path, or characters that no file name has
        raise Unreadable(_MISSING) from problem


def _checked_kind(status: os.stat_result, limits: Limits) -> None:
    if not stat.S_ISREG(status.st_mode):
        fault = Fault(
            "not_a_regular_file", "This is a directory, pipe, socket or device, not a file."
        )
        raise Unreadable(fault)
    if status.st_size > limits.max_bytes:
        raise Unreadable(_too_large(limits))


def _checked(data: bytes | None, limits: Limits) -> bytes:
    if not data:
        raise Unreadable(Fault("not_an_image", "The file is empty."))
    if len(data) > limits.max_bytes:
        raise Unreadable(_too_large(limits))
    return data


def _recognised(data: bytes) -> ImageFile.ImageFile:
    """The picture with its header read, by the one reader whose signature the bytes bear."""
    if name := _other_format(data):
        message = f"This is {name}, which is not read here; convert it to PNG or JPEG."
        raise Unreadable(Fault("unsupported_format", message))
    for format_, reader in READERS.items():
        accepts = Image.OPEN[format_][1]
        assert accepts is not None
        accepted = accepts(data[:16])
        if isinstance(accepted, str):  # Pillow's way to say that it was built without this format
            message = f"This is {format_}, which the installed Pillow was built without."
            raise Unreadable(Fault("unsupported_format", message))
        if accepted:
            return _opened(reader, data, format_)
    raise Unreadable(_UNKNOWN)


def _opened(reader: type[ImageFile.ImageFile], data: bytes, format_: str) -> ImageFile.ImageFile:
    file = BytesIO(data)
    try:
        return reader(file)
    except (OSError, ValueError, SyntaxError) as problem:
        if format_ in WEAKLY_SIGNED:
            raise Unreadable(_UNKNOWN) from problem
        if _promised_length(data, format_) > len(data) or _stopped_at_the_end(file, format_):
            raise Unreadable(_TRUNCATED) from problem
        raise


def _other_format(data: bytes) -> str | None:
    for name, signatures in OTHER_FORMATS.items():
        if data.startswith(signatures):
            return name
    if data[4:8] == b"ftyp":
        brands = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
        if b"avif" not in brands and any(brand in brands for brand in HEIC_BRANDS):
            return "HEIC"
    if data.startswith(b"<?xml") and b"<svg" in data[:1024]:
        return "SVG"
    return None


def _promised_length(data: bytes, format_: str) -> int:
    """The length that a container's boxes add up to; 0 for formats that do not tell."""
    if format_ == "WEBP":
        return int.from_bytes(data[4:8], "little") + 8
    end = 0
    while format_ == "AVIF" and end < len(data):
        end += max(int.from_bytes(data[end : end + 4], "big"), 8)
    return end


def _stopped_at_the_end(file: BytesIO, format_: str) -> bool:
    # the readers of WebP and AVIF take the whole file at once, so their place in it tells nothing
    return format_ not in ("WEBP", "AVIF") and file.tell() >= file.getbuffer().nbytes


def _header_size(image: ImageFile.ImageFile) -> Size:
    # Pillow decodes a whole PNG in search of EXIF that comes late, and turns TIFF by itself
    told = image.format != "PNG" or "exif" in image.info
    sideways = told and _orientation(image) in SIDEWAYS
    return Size(*(reversed(image.size) if sideways else image.size))


def _orientation(image: ImageFile.ImageFile) -> int:
    """The EXIF orientation, 1 (upright) where there is none, where it is corrupt, and for TIFF."""
    if image.format == "TIFF":
        return 1
    try:
        value = image.getexif().get(ORIENTATION, 1)
    except (SyntaxError, ValueError, LookupError, TypeError, OSError, EOFError, struct.error):
        return 1
    return value if isinstance(value, int) else 1


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        return Image.fromarray(_scaled(image)).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _scaled(image: Image.Image) -> np.ndarray:
    """The 8-bit greys of a picture of 16-bit, 32-bit or float values."""
    values = np.asarray(image)
    if image.mode == "F":
        return _scaled_floats(values)
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > 0xFFFF:
        return _stretched(values, low, high)
    greys = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 = 255 * 257
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        greys[values == transparent] = 255
    return greys


def _scaled_floats(values: np.ndarray) -> np.ndarray:
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    if low >= 0 and high <= 1:
        low, high = 0.0, 1.0
    elif low >= 0 and high <= 255:
        low, high = 0.0, 255.0
    # NaN becomes what is scaled to 0, infinities the ends of the range
    return _stretched(np.nan_to_num(values, nan=low, posinf=high, neginf=low), low, high)


def _stretched(values: np.ndarray, low: float, high: float) -> np.ndarray:
    scale = 255 / (high - low) if high > low else 0.0
    return np.rint((values.astype(np.float64) - low) * scale).astype(np.uint8)


@contextmanager
def _unreadable_only(size: Size | None = None, data: bytes = b"") -> Iterator[None]:
    try:
        yield
    except Unreadable:
        raise
    except Exception as problem:  # broken files make Pillow raise anything: the one boundary
        raise Unreadable(_fault(problem, data), size) from problem


def _fault(problem: Exception, data: bytes) -> Fault:
    if isinstance(problem, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return Fault(
            "too_many_pixels", "A part of the picture has more pixels than Pillow decodes."
        )
    if isinstance(problem, MemoryError):
        return Fault("decode_failed", "Decoding it needs more memory than there is.")
    ran_out = isinstance(problem.__cause__ or problem, EOFError | IndexError | struct.error)
    text = str(problem).lower()
    is_whole = data.endswith(PNG_END)  # then pixels are missing, but no end of the file
    if not is_whole and (ran_out or "truncated" in text or "reached eof" in text):
        return _TRUNCATED
    return Fault(
        "decode_failed", f"The picture is damaged: its decoder gave up ({type(problem).__name__})."
    )


def _too_many_pixels(size: Size, limits: Limits) -> Fault:
    message = (
        f"The picture has {size.width} x {size.height} pixels; "
        f"the limit is {limits.max_pixels} (--max-pixels)."
    )
    return Fault("too_many_pixels", message)


def _too_large(limits: Limits) -> Fault:
    return Fault("too_large", f"The file is larger than {limits.max_bytes} bytes.")
