"""Image sizes: an image's own, the limits for reading, and the model's resolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pgcli.records import MAX_IMAGE_BYTES


class Size(NamedTuple):
    """Pixels of the upright image."""

    width: int
    height: int


@dataclass(frozen=True)
class ImageSpec:
    """The model's input: pixels per side, and Pillow's resampling filter (3: bicubic).

    With `fast_decode`, JPEGs are decoded at a reduced size, which changes pixels.
    """

    resolution: int
    resample: int = 3
    fast_decode: bool = False


@dataclass(frozen=True)
class ImageLimits:
    """The largest image (pixels, from its header) and the largest file (bytes) that are read."""

    max_pixels: int = 89_478_485
    max_bytes: int = MAX_IMAGE_BYTES
