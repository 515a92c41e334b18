"""Sizes of images, the limits for reading them, and the model's resolution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pgcli.records import MAX_IMAGE_BYTES

if TYPE_CHECKING:
    from PIL import Image


#: The longest side that an image may have; Parquet columns hold no larger width.
MAX_SIDE = 2**31 - 1
#: Pixels of an image before its crop.
MAX_RESIZED = 2**25


class Size(NamedTuple):
    """Pixels of the upright image."""

    width: int
    height: int


@dataclass(frozen=True)
class ImageSpec:
    """The model's input: pixels per side, and Pillow's resampling filter (3: bicubic).

    With `fast_decode`, JPEGs are decoded at a reduced size, which changes pixels. Images are
    resized to squares; or to `resize_to` pixels per side, then centre-cropped. With `keeps_aspect`
    only the shorter side has `resize_to` pixels.
    """

    resolution: int
    resample: int = 3
    fast_decode: bool = False
    resize_to: int | None = None
    keeps_aspect: bool = False

    def resized(self, width: int, height: int) -> Size:
        """The size to which an image of this size is resized, before the crop."""
        side = self.resize_to or self.resolution
        if not self.keeps_aspect:
            return Size(side, side)
        if width <= height:
            return Size(side, int(side * height / width))
        return Size(int(side * width / height), side)

    def resize(self, image: Image.Image) -> Image.Image:
        """The image at the model's resolution."""
        size = self.resized(*image.size)
        if size.width * size.height <= MAX_RESIZED:
            return self.crop(image.resize(size, self.resample))
        # resizing an extremely elongated image would take gigabytes
        scale_x, scale_y = image.width / size.width, image.height / size.height
        left, top, right, bottom = self._centre(size)
        box = (left * scale_x, top * scale_y, right * scale_x, bottom * scale_y)
        return image.resize((self.resolution, self.resolution), self.resample, box)

    def crop(self, image: Image.Image) -> Image.Image:
        """The centre crop of a resized image, at the model's resolution."""
        if image.size == (self.resolution, self.resolution):
            return image
        return image.crop(self._centre(Size(*image.size)))

    def _centre(self, size: Size) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the crop of an image of this size."""
        left, top = ((side - self.resolution) // 2 for side in size)
        return left, top, left + self.resolution, top + self.resolution


@dataclass(frozen=True)
class ImageLimits:
    """The largest image (pixels, by its header) and the largest file (bytes) that are accepted."""

    max_pixels: int = 89_478_485
    max_bytes: int = MAX_IMAGE_BYTES
