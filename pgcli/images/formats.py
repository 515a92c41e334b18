"""Recognise a picture by how its bytes begin; its header is read on the way."""

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
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")


def open_image(data: bytes) -> ImageFile.ImageFile:
    """The picture with its header read, by the one reader whose signature the bytes bear."""
    if name := _other_format(data):
        message = f"This is {name}, which is not read here; convert it to PNG or JPEG."
        raise ImageError(Fault("unsupported_format", message))
    for format_, reader in READERS.items():
        accepts = Image.OPEN[format_][1]
        assert accepts is not None
        accepted = accepts(data[:16])
        if isinstance(accepted, str):  # Pillow's way to say that it was built without this format
            message = f"This is {format_}, which the installed Pillow was built without."
            raise ImageError(Fault("unsupported_format", message))
        if accepted:
            return _opened(reader, data, format_)
    raise ImageError(UNKNOWN)


def _opened(reader: type[ImageFile.ImageFile], data: bytes, format_: str) -> ImageFile.ImageFile:
    file = BytesIO(data)
    try:
        return reader(file)
    except (OSError, ValueError, SyntaxError) as problem:
        if format_ in WEAKLY_SIGNED:
            raise ImageError(UNKNOWN) from problem
        if _promised_length(data, format_) > len(data) or _stopped_at_the_end(file, format_):
            raise ImageError(TRUNCATED) from problem
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
