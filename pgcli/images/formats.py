"""Opens an image: identifies its format by the signature, checks its size and its layout."""

from __future__ import annotations

import struct
from io import BytesIO
from typing import Any, NamedTuple

from PIL import Image, ImageFile, PngImagePlugin
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.ExifTags import Base
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from pgcli.images.child_process import claim_memory
from pgcli.images.files import (
    LAYOUTS,
    MAX_SIDE,
    TRUNCATED,
    UNKNOWN,
    WEB_PAGE,
    ImageError,
    ImageLimits,
    Size,
    checked_bytes,
    read_file,
    read_original,
    too_many_pixels,
    unread,
    unsupported,
    wrap_image_errors,
)
from pgcli.records import Fault, Item
from pgcli.stores import Reader
from pgcli.text import LFS_HINT, LFS_MESSAGE, is_lfs_pointer

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
#: The most memory that decoding takes, in bytes a pixel: of a plain JPEG, and of other images.
JPEG_BYTES, PIXEL_BYTES = 4, 16
HTML = (b"<!doctype html", b"<html")
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx")
#: A PNG with an orientation contains one of these.
PNG_EXIF = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")

# Pillow's `exif_transpose` contains the same table, but raises for corrupt EXIF and transposes
# only the image that has the EXIF, not pixels made from it.
TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)

SUBFILE, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, MAXIMUM = 254, 258, 259, 262, 266, 281
PLANES, PREDICTOR, COLOURS, SUB_IFDS, INK_SET, EXTRA = 284, 317, 320, 330, 332, 338
SAMPLE_FORMAT, NODATA = 339, 42113
BLACK_IS_ZERO, YCBCR = 1, 6
NONE, PACKBITS = 1, 32773
GREYS_16 = ("I;16", "I;16B", "I;16L", "I;16N")
#: Pillow keeps these beside the texts of a PNG, so a text of the same name replaces them.
PROPERTIES = ("interlace", "transparency", "bbox")
#: The bytes of a transparent colour that Pillow compares with pixels as stored, by the raw mode.
COLOUR_BYTES = {"1": 2, "L": 2, "I;16B": 2, "RGB": 6}


class OpenedImage(NamedTuple):
    """An image with a header within the limits, not decoded yet, and its bytes."""

    image: ImageFile.ImageFile
    size: Size
    data: bytes


class ImageHeader(NamedTuple):
    """An image's format, its upright size, and the EXIF orientation of its stored pixels."""

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

    A PNG may have its orientation after the pixels; then the size is as stored. Raises ImageError.
    """
    if isinstance(source, str):
        data = read_file(source, limits, root=root)
    else:
        data = checked_bytes(source, limits)
    with wrap_image_errors(data=data):
        image = identify_image(data)
        # Pillow decodes a whole PNG in search of late EXIF
        is_late = image.format == "PNG" and "exif" not in image.info
        size = _upright_size(image, 1 if is_late else exif_orientation(image))
    if max(size) > MAX_SIDE or size.width * size.height > limits.max_pixels:
        raise too_many_pixels(size, limits)
    with wrap_image_errors(size):
        _check_layout(image, data, size)
        is_plain = image.format == "JPEG" and image.mode in ("RGB", "L")
        is_plain = is_plain and "progressive" not in image.info and exif_orientation(image) == 1
    pixel_bytes = JPEG_BYTES if is_plain else PIXEL_BYTES
    claim_memory(len(data) + size.width * size.height * pixel_bytes)
    return OpenedImage(image, size, data)


def read_header(data: bytes) -> ImageHeader:
    """The image's format, size and orientation. Raises ImageError.

    Only a PNG with metadata that may have an orientation is decoded.
    """
    with wrap_image_errors():
        image = identify_image(data)
        orientation = 1
        if image.format != "PNG" or any(name in data for name in PNG_EXIF):
            image = open_image(data, ImageLimits()).image if image.format == "PNG" else image
            orientation = exif_orientation(image)
        return ImageHeader(str(image.format), _upright_size(image, orientation), orientation)


def whole_header(item: Item, reader: Reader | None = None) -> ImageHeader:
    """The header of an item's image, which a `reader` fetches from a URL. Raises ImageError."""
    return read_header(read_original(item, ImageLimits(), reader))


def exif_orientation(image: Image.Image) -> int:
    """The EXIF orientation of the stored pixels; 1 (upright) if it is missing or corrupt."""
    try:
        tags: Any = image.tag_v2 if isinstance(image, TiffImageFile) else image.getexif()
        value = tags.get(Base.Orientation, 1)
    except (SyntaxError, ValueError, LookupError, TypeError, OSError, EOFError, struct.error):
        return 1
    return value if isinstance(value, int) and value in TRANSPOSE else 1


def _upright_size(image: ImageFile.ImageFile, orientation: int) -> Size:
    is_turned = orientation in SIDEWAYS and image.format != "TIFF"  # Pillow has turned it
    return Size(*(reversed(image.size) if is_turned else image.size))


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
    if format_ == "PPM" and data[1:2] not in b"123456":
        raise ImageError(UNKNOWN)
    file = BytesIO(data)
    try:
        return reader(file)
    except (OSError, ValueError, SyntaxError) as problem:
        if format_ in SHORT_SIGNATURES and not str(problem).startswith(LAYOUTS):
            raise ImageError(UNKNOWN) from problem
        # the readers of WebP and AVIF read the whole file at once, so their position says nothing
        is_cut = file.tell() >= len(data) and format_ not in ("WEBP", "AVIF")
        if is_cut or (format_ == "WEBP" and int.from_bytes(data[4:8], "little") + 8 > len(data)):
            raise ImageError(TRUNCATED) from problem
        if format_ == "TIFF" and isinstance(problem.__cause__, KeyError):
            raise unsupported("a TIFF in an unknown layout") from problem
        raise ImageError(unread(problem)) from problem


def _check_layout(image: ImageFile.ImageFile, data: bytes, size: Size) -> None:
    """Raise ImageError for an image that Pillow opens and may decode to wrong pixels.

    Metadata of unexpected types raises any exception.
    """
    what = None
    if isinstance(image, TiffImageFile):
        what = _unsupported_tiff(image)
    elif isinstance(image, PngImageFile):
        what = _unsupported_png(image, data)
    elif data[:2] in (b"P1", b"P2", b"P3") and data.count(b"#") > 1000:
        what = "with over a thousand comments"
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


def _unsupported_png(image: PngImageFile, data: bytes) -> str | None:
    if any(isinstance(image.info.get(name), str) for name in PROPERTIES):
        return "with a text named like a property of its pixels"
    if image.info.get("bbox", (0, 0, *image.size)) != (0, 0, *image.size):
        return "whose first frame is smaller than the image"
    values: Any = image.info.get("transparency")
    if values is None:
        return None
    head = data[: data.find(b"IDAT")]
    start, palette = head.find(b"tRNS"), head.find(b"PLTE")
    size, raw_mode = int.from_bytes(head[start - 4 : start]), str(image.tile[0].args)
    if image.mode == "P":
        is_valid = palette < start and 3 * size <= int.from_bytes(head[palette - 4 : palette])
    else:
        is_valid = size == COLOUR_BYTES.get(raw_mode)
        greatest = max(values) if isinstance(values, tuple) else values
        is_valid = is_valid and (raw_mode == "I;16B" or greatest < 256)
    is_valid = is_valid and head.count(b"tRNS") == 1
    return None if is_valid else "with an unusual transparent colour"


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
