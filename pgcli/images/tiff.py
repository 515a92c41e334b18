"""TIFFs: the supported pixel layouts and the meaning of their values; errors name the others."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np
from PIL import _imaging
from PIL.ImageFile import _Tile
from PIL.TiffImagePlugin import COMPRESSION_INFO, OPEN_INFO, TiffImageFile

from pgcli.images.errors import ImageError
from pgcli.images.image_spec import Size
from pgcli.printable import printable
from pgcli.records import Fault

SUBFILE, SUB_IFDS, NODATA = 254, 330, 42113
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER = 256, 257, 258, 259, 262, 266
ORIENTATION, SAMPLES, MAXIMUM, PLANES, PREDICTOR, COLOURS = 274, 277, 281, 284, 317, 320
#: The tags of the positions and sizes of strips or tiles.
PLACES = ((273, 279), (324, 325))
INK_SET, EXTRA, SAMPLE_FORMAT = 332, 338, 339
WHITE_IS_ZERO, BLACK_IS_ZERO, RGB, PALETTE, CMYK, YCBCR, LAB = 0, 1, 2, 3, 5, 6, 8
GREYS = (WHITE_IS_ZERO, BLACK_IS_ZERO)
PHOTOMETRICS = {
    WHITE_IS_ZERO: "white is zero",
    BLACK_IS_ZERO: "black is zero",
    RGB: "RGB",
    PALETTE: "palette",
    CMYK: "CMYK",
    YCBCR: "YCbCr",
    LAB: "CIELab",
    32803: "camera raw",
}
UNSIGNED, SIGNED, FLOAT = 1, 2, 3
SAMPLE_FORMATS = {UNSIGNED: "unsigned", SIGNED: "signed", FLOAT: "floating-point"}
NONE, JPEG, FAX, PACKBITS = 1, (6, 7), (2, 3, 4), 32773
#: A compression that no uncompressed file has; it makes Pillow leave all reading to libtiff.
BY_LIBTIFF = 32771
ASSOCIATED_ALPHA = 1
REDUCED = 1  # the bit of a subfile type that marks a preview
MAX_SAMPLES = 256
MAX_STATED = 150  # characters of a layout that a message shows
#: Raw modes of compressed pixels, which libtiff returns in the byte order of the machine.
NATIVE = {"I;16BS": "I;16NS", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
#: The last letters of 16-bit raw modes, and of the modes that read the other byte of a value.
OTHER_BYTE = {"L": "B", "B": "L", "N": "B" if sys.byteorder == "little" else "L"}
#: Bits of sensor values, which are stored in 16 or 32.
SENSOR_BITS = (8, 10, 12)
MAX_SENSOR_VALUE = 2 ** SENSOR_BITS[-1] - 1

Values = np.ndarray[Any, Any]


@dataclass(frozen=True)
class GreyValues:
    """How to read the values of a grey image that are not unsigned 8-bit integers.

    `nodata` is the value of pixels without data, which is outside the range of the others.
    """

    bits: int = 16
    format: int = UNSIGNED
    is_inverted: bool = False
    has_sensor_bits: bool = False
    maximum: int = 0
    nodata: float | None = None

    def of(self, pixels: Values) -> Values:
        """The values of pixels, which Pillow holds as integers of the same size."""
        if self.format == UNSIGNED and self.bits == 32:
            return pixels.view(np.uint32)
        return pixels.view(np.int8) if self.bits == 8 else pixels

    def white(self, low: float, high: float) -> int | None:
        """The value that is shown as white, if values are in this range and 0 is black.

        None if they are stretched from the least to the greatest.
        """
        if self.format == FLOAT or low < 0:
            return None
        if 0 < self.maximum >= high:
            return self.maximum
        most = min(self.bits - (self.format == SIGNED), 16)
        widths = (*SENSOR_BITS, most) if self.has_sensor_bits else (most,)
        return next((2**bits - 1 for bits in widths if bits <= most and high < 2**bits), None)


@dataclass(frozen=True)
class TiffLayout:
    """How a TIFF stores its pixels."""

    photometric: int
    bits: tuple[int, ...]
    formats: tuple[int, ...]
    extra: tuple[int, ...]
    compression: int
    predictor: int
    has_planes: bool

    @classmethod
    def of(cls, tags: Any) -> TiffLayout:
        """The layout that the tags state. Tags of unexpected types raise any exception."""
        compression = tags.get(COMPRESSION, NONE)
        photometric = tags.get(PHOTOMETRIC, BLACK_IS_ZERO)
        count = tags.get(SAMPLES, 3 if compression == 6 and photometric in (RGB, YCBCR) else 1)
        bits = tags.get(BITS, (1,))
        bits = bits * min(count, MAX_SAMPLES) if len(bits) == 1 else bits[:count]
        formats = tuple(dict.fromkeys(tags.get(SAMPLE_FORMAT, (UNSIGNED,))))
        has_planes = count > 1 and tags.get(PLANES, 1) == 2
        extra = tags.get(EXTRA, ())
        predictor = tags.get(PREDICTOR, 1)
        return cls(photometric, bits, formats, extra, compression, predictor, has_planes)

    @property
    def has_grey_values(self) -> bool:
        """Whether samples are greys other than unsigned integers of up to 8 bits."""
        is_grey = self.photometric in GREYS and len(self.bits) == 1
        return is_grey and (self.bits[0] > 8 or self.formats != (UNSIGNED,))

    def is_read(self, tags: Any) -> bool:
        """Whether Pillow reads the pixels of this layout correctly."""
        stored = (self.formats, 1, self.bits, self.extra)  # libtiff reverses bits
        if (tags.prefix, self.photometric, *stored) not in OPEN_INFO:
            return False
        if self.has_planes and (
            self.photometric not in (RGB, CMYK) or ASSOCIATED_ALPHA in self.extra
        ):
            return False
        if self.has_planes and len(self.extra) > 1 and any(self.extra):
            return False
        if self.compression in JPEG and {*self.bits} != {8}:
            return False
        if self.compression not in COMPRESSION_INFO or not _has_codec(self.compression):
            return False
        if self.compression in (NONE, PACKBITS) and self.predictor != 1:
            return False  # libtiff ignores it, other readers apply it
        return bool(tags.get(INK_SET, 1) == 1)

    def __str__(self) -> str:
        photometric, bits = self.photometric, sorted({*self.bits})
        names = [
            PHOTOMETRICS.get(photometric, f"photometric interpretation {photometric}"),
            f"{len(self.bits)} x {'/'.join(map(str, bits))} bits",
            *(SAMPLE_FORMATS.get(format_, f"sample format {format_}") for format_ in self.formats),
            *(["premultiplied alpha"] if ASSOCIATED_ALPHA in self.extra else []),
            *(["separate planes"] if self.has_planes else []),
            *([] if self.compression == NONE else [f"compression {self.compression}"]),
            *([] if self.predictor == 1 else [f"predictor {self.predictor}"]),
        ]
        return ", ".join(names)


class TiffFile(TiffImageFile):
    """A TIFF in a supported layout. Opening any other raises ImageError."""

    greys: GreyValues | None = None
    #: 16-bit colours up to this may be a sensor's; Pillow drops their lower eight bits.
    max_sensor_colour: int | None = None
    #: Whether an RGB file has four samples and does not state the meaning of the fourth.
    has_unstated_alpha = False
    nodata: float | None = None

    def _setup(self) -> None:
        tags: Any = self.tag_v2
        if tags.get(SUBFILE, 0) & REDUCED and (tags.next or SUB_IFDS in tags):
            raise unsupported("that begins with a preview of the image", _upright_size(tags))
        if PHOTOMETRIC not in tags:  # libtiff assumes the same
            grey = WHITE_IS_ZERO if tags.get(COMPRESSION, NONE) in FAX else BLACK_IS_ZERO
            tags[PHOTOMETRIC] = RGB if tags.get(SAMPLES, 1) == 3 else grey
        layout = TiffLayout.of(tags)
        self._note_values(layout, tags)
        if not TiffLayout.of(tags).is_read(tags) and len(layout.bits) < MAX_SAMPLES:
            stated = printable(str(layout))[:MAX_STATED]
            raise unsupported(f"in a layout that is not supported ({stated})", _upright_size(tags))
        is_plain = not layout.has_planes and layout.photometric != YCBCR
        if layout.compression == NONE and not (is_plain and tags.get(FILL_ORDER, 1) == 1):
            tags[COMPRESSION] = BY_LIBTIFF  # Pillow's own reader misreads these
        tags[FILL_ORDER] = 1
        tags[PLANES] = 2 if layout.has_planes else 1  # one plane may be called separate
        super()._setup()
        self.tile = [_in_byte_order(tile) for tile in self.tile]
        self._file: Any = self.fp

    def _note_values(self, layout: TiffLayout, tags: Any) -> None:
        """Record values that Pillow ignores, and change the tags to a layout that it reads."""
        maximum, self.nodata = _maximum(tags), _nodata(tags)
        if layout.has_grey_values:
            bits, format_ = layout.bits[0], layout.formats[0]
            is_inverted = layout.photometric == WHITE_IS_ZERO
            self.greys = GreyValues(bits, format_, is_inverted, bits != 12, maximum, self.nodata)
            tags[PHOTOMETRIC] = BLACK_IS_ZERO
            if bits == 32 and format_ == UNSIGNED:
                tags[SAMPLE_FORMAT] = (SIGNED,)
        if layout.photometric == RGB and layout.bits[0] == 16 and maximum != 65535:
            self.max_sensor_colour = max(maximum, MAX_SENSOR_VALUE)
        self.has_unstated_alpha = not layout.extra
        if layout.photometric == PALETTE and max(tags.get(COLOURS, (256,))) < 256:
            tags[COLOURS] = tuple(colour * 257 for colour in tags[COLOURS])  # as in libtiff

    def load(self) -> Any:
        """Decode the pixels. Raises EOFError if the file ends before them."""
        try:
            return super().load()
        except OSError:  # libtiff does not say why
            if any(end > len(self._file.getvalue()) for end in self._ends()):
                raise EOFError from None
            raise

    def _ends(self) -> Iterator[int]:
        """The end of the strips or tiles in the file."""
        for starts, sizes in PLACES:
            yield from map(add, self.tag_v2.get(starts, ()), self.tag_v2.get(sizes, ()))

    def check_values(self) -> None:
        """Raise ImageError if Pillow dropped visible bits of the decoded colours."""
        most = self.max_sensor_colour
        if most is None or _greatest(self) > most >> 8 or self._is_black():
            return
        raise unsupported(
            f"with 16-bit colours that all fit in {most.bit_length()} bits, and a "
            "MaxSampleValue other than 65535",
            Size(*self.size),
        )

    def _is_black(self) -> bool:
        """Whether the lower eight bits of the colours in one plane are 0 too."""
        self._file.seek(0)
        low = TiffFile(self._file)
        if low.tag_v2[PLANES] == 2 or _greatest(self) > 0:
            return False
        low.tile = [_with_other_byte(tile) for tile in low.tile]
        return _greatest(low) == 0


def unsupported(what: str, size: Size) -> ImageError:
    """The error of a TIFF in an unsupported layout."""
    message = f"This is a TIFF {what}; convert it to PNG or 8 bits."
    return ImageError(Fault("unsupported_format", message), size)


def _maximum(tags: Any) -> int:
    """The greatest value that the tags state, if it has 8 bits or more; else 0."""
    stated = max(tags.get(MAXIMUM, ()), default=0)
    return stated if stated >= 255 and not stated & (stated + 1) else 0


def _nodata(tags: Any) -> float | None:
    """The value of pixels without data, which GDAL states; None without one."""
    with suppress(TypeError, ValueError):
        return float(tags.get(NODATA))
    return None


def _has_codec(compression: int) -> bool:
    """Whether Pillow's libtiff was built with this compression; True if it cannot tell."""
    with suppress(OSError, AttributeError):  # a Pillow without libtiff's symbols
        return bool(ctypes.CDLL(_imaging.__file__).TIFFIsCODECConfigured(compression))
    return True


def _upright_size(tags: Any) -> Size:
    size = Size(tags[WIDTH], tags[HEIGHT])
    return Size(*reversed(size)) if tags.get(ORIENTATION) in (5, 6, 7, 8) else size


def _in_byte_order(tile: _Tile) -> _Tile:
    """The tile with the byte order in which libtiff returns its pixels, which is the machine's."""
    if tile.codec_name != "libtiff" or not isinstance(tile.args, tuple):
        return tile
    mode, *others = tile.args
    return tile._replace(args=(NATIVE.get(mode, mode), *others))


def _with_other_byte(tile: _Tile) -> _Tile:
    """The 16-bit colour tile with the raw mode that reads the lower eight bits."""
    assert isinstance(tile.args, tuple)
    mode, *others = tile.args
    return tile._replace(args=(mode[:-1] + OTHER_BYTE[mode[-1]], *others))


def _greatest(image: TiffFile) -> int:
    """The greatest value of the decoded colours, except for pixels without data."""
    nodata = None if image.nodata is None else image.nodata // 256
    counts = image.histogram()[: 3 * 256]
    values = (n % 256 for n, count in enumerate(counts) if count)
    return max((value for value in values if value != nodata), default=0)
