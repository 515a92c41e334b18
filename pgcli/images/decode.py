"""Decodes an item to the model's pixels, or to the fault that explains why it cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any, Self

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from pgcli.images.errors import ImageError, wrap_image_errors
from pgcli.images.file_stamp import content_digest
from pgcli.images.image_spec import MAX_RESIZED, ImageLimits, ImageSpec, Size
from pgcli.images.jpeg_draft import resize_draft
from pgcli.images.open_image import OpenedImage, open_image
from pgcli.images.pixels import to_rgb, upright_8bit
from pgcli.records import NO_STAMP, DecodedImage, FileStamp, Item
from pgcli.regular_file import file_status


@dataclass(frozen=True)
class ImageDecoder:
    """Decodes items to the model's pixels: `decode` with its settings."""

    spec: ImageSpec
    limits: ImageLimits = field(default_factory=ImageLimits)
    stamps: bool = False

    def __call__(self, item: Item) -> DecodedImage:
        """The decoded item; see `decode`."""
        return decode(item, self.spec, self.limits, stamps=self.stamps)

    def settings(self) -> dict[str, Any]:
        """The settings as JSON, from which a worker process makes its own decoder."""
        return asdict(self)

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The decoder with these `settings`."""
        spec, limits = ImageSpec(**settings["spec"]), ImageLimits(**settings["limits"])
        return cls(spec, limits, settings["stamps"])

    def produces(self, shape: tuple[int, ...]) -> bool:
        """Whether this is the shape of the model's pixels."""
        return shape == (self.spec.resolution, self.spec.resolution, 3)


def decode(
    item: Item, spec: ImageSpec, limits: ImageLimits, *, stamps: bool = False
) -> DecodedImage:
    """The item's pixels at the model's resolution, or its fault. Raises nothing for a bad image.

    With `stamps`, the stamp of the file too.
    """
    started = perf_counter()
    size, pixels, fault, stamp = None, None, item.fault, NO_STAMP
    if fault is None:
        # the status first: of a file that is replaced meanwhile it is then an old one
        status = file_status(item.path) if stamps and item.data is None else b""
        try:
            opened = open_image(item.path if item.data is None else item.data, limits, item.root)
            size, image = _resize(opened, spec)
            pixels = np.array(image)
            stamp = FileStamp(status, content_digest(opened.data)) if stamps else stamp
        except ImageError as problem:
            size, fault = problem.size, problem.fault
    width, height = size or (None, None)
    load_ms = (perf_counter() - started) * 1000
    return DecodedImage(item, width, height, pixels, load_ms, fault, stamp)


def _is_small(opened: OpenedImage, spec: ImageSpec) -> bool:
    """Whether the image may be resized as a whole before it is cropped."""
    size = spec.resized(*opened.image.size)
    return size.width * size.height <= MAX_RESIZED


def _resize(opened: OpenedImage, spec: ImageSpec) -> tuple[Size, Image.Image]:
    """The upright size, and the image at the model's resolution."""
    with wrap_image_errors(opened.size, opened.data):
        if spec.fast_decode and isinstance(opened.image, JpegImageFile) and _is_small(opened, spec):
            return opened.size, resize_draft(opened.image, spec)
        opened.image.load()
        image = upright_8bit(opened.image)
        size = Size(*image.size)
    with wrap_image_errors(size):
        # grey images are resized as one channel instead of three, to the same values
        return size, to_rgb(spec.resize(image))
