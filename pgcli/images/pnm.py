"""PBM, PGM, PPM and PFM: headers, and the values that Pillow would read in Python loops."""

from __future__ import annotations

import re

import numpy as np

from pgcli.images.errors import UNKNOWN, ImageError

BLANKS = rb"(?:[ \t\n\v\f\r]|#[^\r\n]*[\r\n])*+"
NUMBER = BLANKS + rb"([0-9.+-]{1,10})"
#: The header of a PBM (P4), and of a PGM, PPM or PFM with binary pixels.
BINARY_HEADER = re.compile(
    rb"(?:(P4)%b%b|(P[56f])%b%b%b)[ \t\n\v\f\r]" % ((NUMBER,) * 5),
)
COMMENTS = re.compile(rb"(?:#[^\r\n]*(?:[\r\n]|\Z))++")
SAMPLES = {b"P5": 1, b"P6": 3}


def plain_pnm(data: bytes) -> bytes:
    """The image without comments, with values from 0 to 255 or 65535.

    Raises ImageError.
    """
    if data[1:2] in b"123":  # pixels as decimal numbers
        return COMMENTS.sub(b"", data)
    match = BINARY_HEADER.match(data)
    if match is None:
        raise ImageError(UNKNOWN)
    kind, *numbers = (field for field in match.groups() if field)
    pixels = memoryview(data)[match.end() :]
    if kind in SAMPLES and all(number.isdigit() for number in numbers):
        width, height, most = map(int, numbers)
        itemsize = 1 + (most > 255)
        count = min(width * height * SAMPLES[kind], len(pixels) // itemsize)
        if 0 < most < 65536 and most != 255 and count:
            # Pillow reduces colours to 8 bits
            white = 65535 if most > 255 and kind == b"P5" else 255
            scaled = np.rint(np.arange(256**itemsize) / most * white).clip(max=white)
            values = np.frombuffer(pixels, np.dtype(f">u{itemsize}"), count)
            pixels = scaled.astype(">u2" if white > 255 else np.uint8)[values].data.cast("B")
            numbers[2] = b"%d" % white
    return b"".join((b" ".join((kind, *numbers)), b"\n", pixels))
