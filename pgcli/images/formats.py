"""Identifies an image by its signature and opens it with the matching Pillow reader."""

from __future__ import annotations

from io import BytesIO

from PIL import Image, ImageFile
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from pgcli.images.errors import TRUNCATED, UNKNOWN, ImageError
from pgcli.records import Fault

# Called directly, not through Image.open: its pixel limit is a global of the process, and its
# JPEG reader hands files of several frames to another reader, which fails on broken indexes.
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

#: Signatures of two letters match many other files, so the header has to be valid as well.
SHORT_SIGNATURES = ("BMP", "PPM")

#: Signatures of image formats that are not supported, to name them in the error.
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
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")


def identify_image(data: bytes) -> ImageFile.ImageFile:
    """The image with its header read, by the reader whose signature the bytes have."""
    if name := _other_format(data):
        message = f"This is {name}, which is not supported; convert it to PNG or JPEG."
        raise ImageError(Fault("unsupported_format", message))
    for format_, reader in READERS.items():
        accepts = Image.OPEN[format_][1]
        assert accepts is not None
        accepted = accepts(data[:16])
        if isinstance(accepted, str):  # how Pillow reports a format it was built without
            message = f"This is {format_}, which the installed Pillow was built without."
            raise ImageError(Fault("unsupported_format", message))
        if accepted:
            return _open(reader, data, format_)
    raise ImageError(UNKNOWN)


def _open(reader: type[ImageFile.ImageFile], data: bytes, format_: str) -> ImageFile.ImageFile:
    file = BytesIO(data)
    try:
        return reader(file)
    except (OSError, ValueError, SyntaxError) as problem:
        if format_ in SHORT_SIGNATURES:
            raise ImageError(UNKNOWN) from problem
        if _stated_length(data, format_) > len(data) or _is_at_end(file, format_):
            raise ImageError(TRUNCATED) from problem
        raise


def _other_format(data: bytes) -> str | None:
    """The name of the unsupported image format that the bytes are in."""
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


def _stated_length(data: bytes, format_: str) -> int:
    """The file length that the container states; 0 for other formats."""
    if format_ == "WEBP":
        return int.from_bytes(data[4:8], "little") + 8
    end = 0
    while format_ == "AVIF" and end < len(data):
        end += max(int.from_bytes(data[end : end + 4], "big"), 8)
    return end


def _is_at_end(file: BytesIO, format_: str) -> bool:
    # the readers of WebP and AVIF read the whole file at once, so their position says nothing
    return format_ not in ("WEBP", "AVIF") and file.tell() >= file.getbuffer().nbytes
