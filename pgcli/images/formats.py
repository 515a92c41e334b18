"""Opens an image: identifies its format by the signature, reads and checks its size."""

from __future__ import annotations

import os
from io import BytesIO
from typing import NamedTuple

from PIL import Image, ImageFile, PngImagePlugin
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from pgcli.foreign_text import LFS_HINT, LFS_MESSAGE, is_lfs_pointer
from pgcli.images.errors import (
    LAYOUTS,
    TRUNCATED,
    UNKNOWN,
    WEB_PAGE,
    ImageError,
    too_many_pixels,
    unread,
    wrap_image_errors,
)
from pgcli.images.files import checked_bytes, read_file, read_original
from pgcli.images.image_spec import MAX_SIDE, ImageLimits, Size
from pgcli.images.layouts import check_layout, unsupported
from pgcli.images.limits import claim_memory
from pgcli.images.pixels import (
    PNG_EXIF,
    SIDEWAYS,
    exif_orientation,
    header_size,
    stored_orientation,
)
from pgcli.records import Fault, Item
from pgcli.stores import Reader
from pgcli.stores.urls import url_scheme

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

#: Two-letter signatures match many foreign files, so the header has to be valid as well.
SHORT_SIGNATURES = ("BMP", "PPM")

# A PNG may have a large text or colour profile. Pillow's own limits are 1 and 64 MiB.
PngImagePlugin.MAX_TEXT_CHUNK = max(PngImagePlugin.MAX_TEXT_CHUNK, 16 * 2**20)
PngImagePlugin.MAX_TEXT_MEMORY = max(PngImagePlugin.MAX_TEXT_MEMORY, 128 * 2**20)

#: Signatures of unsupported image formats, to name them in the error.
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
    "PNG for iOS (CgBI)": (b"\x89PNG\r\n\x1a\n\0\0\0\x04CgBI",),
    "a big-endian BigTIFF": (b"MM\0\x2b",),  # Pillow misreads its tags
    "PAM": (b"P7\n",),
    "a PFM": (b"PF\n", b"Pf\n"),
}
#: The most memory that decoding takes, in bytes a pixel, as measured; JPEGs mostly take less.
PIXEL_BYTES = {
    "GIF": 9,
    "BMP": 9,
    "PNG": 9,
    "PPM": 9,
    "JPEG": 12,
    "TIFF": 12,
    "AVIF": 12,
    "WEBP": 16,
}
#: Bytes of a file that are read first; most headers are shorter.
HEADER_BYTES = 64 * 2**10
#: Formats whose header is complete at the start of the file; others point anywhere into it.
HEADER_FIRST = frozenset({"JPEG", "PNG", "GIF", "BMP", "PPM"})
HTML = (b"<!doctype html", b"<html")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")


class OpenedImage(NamedTuple):
    """An image with a header within the limits, not decoded yet, and its bytes."""

    image: ImageFile.ImageFile
    size: Size
    data: bytes


class ImageHeader(NamedTuple):
    """An image's format, its upright size, and the EXIF orientation of its stored pixels.

    A PNG may have its orientation after the pixels; then the size is as stored.
    """

    format: str
    size: Size
    orientation: int = 1

    @property
    def stored_size(self) -> Size:
        """The size without the EXIF orientation applied."""
        is_sideways = self.orientation in SIDEWAYS
        return Size(*reversed(self.size)) if is_sideways else self.size


def open_image(
    source: str | bytes | None, limits: ImageLimits, root: str | None = None
) -> OpenedImage:
    """The image in a file (a path, which must be in the `root`) or in bytes.

    Raises ImageError.
    """
    if isinstance(source, str):
        data = read_file(source, limits, root=root)
    else:
        data = checked_bytes(source, limits)
    with wrap_image_errors(data=data):
        image = identify_image(data)
        size = header_size(image)
    if max(size) > MAX_SIDE or size.width * size.height > limits.max_pixels:
        raise too_many_pixels(size, limits)
    with wrap_image_errors(size):
        check_layout(image, data, size)
    claim_memory(len(data) + size.width * size.height * _pixel_bytes(image))
    return OpenedImage(image, size, data)


def read_header(data: bytes) -> ImageHeader:
    """The image's format, size and orientation, from its header. Raises ImageError."""
    with wrap_image_errors():
        image = identify_image(data)
        return ImageHeader(str(image.format), header_size(image), stored_orientation(image))


def read_whole_header(data: bytes, limits: ImageLimits) -> ImageHeader:
    """`read_header`, also for a PNG with its EXIF orientation after its pixels, which have to be
    decoded to find it. Raises ImageError.
    """
    image = open_image(data, limits).image
    with wrap_image_errors():
        orientation = stored_orientation(image, data)
        is_turned = orientation in SIDEWAYS and image.format != "TIFF"  # Pillow has turned it
        size = Size(*(reversed(image.size) if is_turned else image.size))
        return ImageHeader(str(image.format), size, orientation)


def read_file_header(path: str, limits: ImageLimits, root: str | None = None) -> ImageHeader:
    """`read_header` of a file, reading as little of it as possible. Raises ImageError."""
    try:
        header = read_header(read_file(path, limits, HEADER_BYTES, root=root))
        if header.format in HEADER_FIRST:
            return header
    except ImageError:
        pass  # the header may be longer
    return read_header(read_file(path, limits, root=root))


def whole_header(item: Item, reader: Reader | None = None) -> ImageHeader:
    """The header of an item's image, which a `reader` fetches from a URL.

    Only the start of a file is read, and the end of a PNG, or all of it if the end may have an
    orientation. Raises ImageError.
    """
    limits = ImageLimits()
    path = item.path if item.data is None and item.span is None and item.fault is None else None
    if path is None or url_scheme(path) is not None:
        end = data = read_original(item, limits, reader)
        header = read_header(data)
    else:
        header, data, end = read_file_header(path, limits, item.root), b"", b""
        if header.format == "PNG":
            size = os.path.getsize(path)  # noqa: PTH202 - a path as written
            span = max(size - HEADER_BYTES, 0), min(size, HEADER_BYTES)
            end = read_file(path, limits, root=item.root, span=span)
    if header.format == "PNG" and any(name in end for name in PNG_EXIF):
        return read_whole_header(data or read_original(item, limits, reader), limits)
    return header


def identify_image(data: bytes) -> ImageFile.ImageFile:
    """The image with its header read, by the reader that recognises its signature."""
    if name := other_format(data):
        raise unsupported(name)
    for format_, reader in READERS.items():
        accepts = Image.OPEN[format_][1]
        assert accepts is not None
        accepted = accepts(data[:16])
        if isinstance(accepted, str):  # Pillow's message for a format that it was built without
            message = f"This is {format_}, but the installed Pillow was built without it."
            raise ImageError(Fault("unsupported_format", message))
        if accepted:
            return _open(reader, data, format_)
    if is_lfs_pointer(data):
        message = f"The file {LFS_MESSAGE}; {LFS_HINT}."
        raise ImageError(Fault("not_an_image", message))
    raise ImageError(WEB_PAGE if _markup(data).startswith(HTML) else UNKNOWN)


def _open(reader: type[ImageFile.ImageFile], data: bytes, format_: str) -> ImageFile.ImageFile:
    if format_ == "PPM" and data[1:2] not in b"123456":  # Pillow's own extensions
        raise ImageError(UNKNOWN)
    file = BytesIO(data)
    try:
        return reader(file)
    except (OSError, ValueError, SyntaxError) as problem:
        if format_ in SHORT_SIGNATURES and not str(problem).startswith(LAYOUTS):
            raise ImageError(UNKNOWN) from problem
        if _stated_length(data, format_) > len(data) or _is_at_end(file, format_):
            raise ImageError(TRUNCATED) from problem
        if format_ == "TIFF" and isinstance(problem.__cause__, KeyError):
            raise unsupported("a TIFF in an unknown layout") from problem
        raise ImageError(unread(problem)) from problem


def _pixel_bytes(image: ImageFile.ImageFile) -> int:
    """The most bytes that decoding takes for each pixel."""
    if image.format == "JPEG" and "progressive" not in image.info:
        is_plain = image.mode in ("RGB", "L") and exif_orientation(image) == 1
        return 4 if is_plain else 8
    return PIXEL_BYTES[str(image.format)]


def other_format(data: bytes) -> str | None:
    """The name of the unsupported image format of the bytes."""
    for name, signatures in OTHER_FORMATS.items():
        if data.startswith(signatures):
            return name
    if data[4:8] == b"ftyp":
        brands = data[8 : min(int.from_bytes(data[:4], "big"), 256)]
        if b"avif" not in brands and any(brand in brands for brand in HEIC_BRANDS):
            return "HEIC"
    head = _markup(data)
    return "SVG" if b"<svg" in head and not head.startswith(HTML) else None


def _markup(data: bytes) -> bytes:
    """The beginning of an XML or HTML file in lower case; empty for other files."""
    head = data[:1024].removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return head if head.startswith(b"<") else b""


def _stated_length(data: bytes, format_: str) -> int:
    """The file length stated by the container; 0 for other formats."""
    if format_ == "WEBP":
        return int.from_bytes(data[4:8], "little") + 8
    end = 0
    while format_ == "AVIF" and end < len(data):
        end += max(int.from_bytes(data[end : end + 4], "big"), 8)
    return end


def _is_at_end(file: BytesIO, format_: str) -> bool:
    # the readers of WebP and AVIF read the whole file at once, so their position says nothing
    return format_ not in ("WEBP", "AVIF") and file.tell() >= file.getbuffer().nbytes
