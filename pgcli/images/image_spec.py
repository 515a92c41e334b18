"""The sizes that count: a picture's own, the largest that is read, the one the model wants."""

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
    """What the model looks at: the side in pixels, and Pillow's resampling number (3: bicubic).

    With `fast_decode`, JPEGs are decoded no larger than it takes, which changes pixels.
    """

    resolution: int
    resample: int = 3
    fast_decode: bool = False


@dataclass(frozen=True)
class ImageLimits:
    """The largest picture (pixels, by its header) and the largest file (bytes) that are read."""

    max_pixels: int = 89_478_485
    max_bytes: int = MAX_IMAGE_BYTES
