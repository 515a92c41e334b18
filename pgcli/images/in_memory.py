"""Images in a program's memory, as the bytes of a file with the same pixels."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from pgcli.errors import UsageError
from pgcli.images.decode import upright_8bit
from pgcli.images.errors import ImageError, wrap_image_errors
from pgcli.images.files import checked_bytes
from pgcli.images.image_spec import ImageLimits
from pgcli.records import Fault

CHANNELS = (1, 3, 4)
CLOSED = Fault("decode_failed", "The image is closed: load it before its file is closed.")
NO_PIXELS = Fault("decode_failed", "The image has no pixels: its width or height is 0.")


def is_array(source: object) -> bool:
    """Whether the value is a NumPy array or a PyTorch tensor."""
    return hasattr(source, "shape") and hasattr(source, "dtype")


def check_array(array: Any) -> None:
    """Raise UsageError unless the array has the shape and type of an image."""
    dtype = str(array.dtype).removeprefix("torch.")
    if dtype != "uint8":
        raise UsageError(
            f"an array of {dtype} is not an image", hint="convert it to uint8, from 0 to 255"
        )
    shape = tuple(array.shape)
    if not (len(shape) == 2 or (len(shape) == 3 and shape[2] in CHANNELS)):
        raise UsageError(
            f"an array of shape {shape} is not an image",
            hint="the shape must be (height, width, 3); permute(1, 2, 0) puts the channels last",
        )


def encode_image(image: Image.Image) -> bytes:
    """The image, upright and in 8 bits, as an uncompressed file. Raises ImageError."""
    with wrap_image_errors():
        try:
            image.load()
        except (AssertionError, ValueError) as problem:
            file = getattr(image, "fp", None)
            if file is None or getattr(file, "closed", False):
                raise ImageError(CLOSED) from problem
            raise
        if 0 in image.size:
            raise ImageError(NO_PIXELS)
        stream = BytesIO()
        upright_8bit(image).save(stream, "PPM")
        return stream.getvalue()


def file_bytes(source: Any) -> bytes:
    """The bytes of an image file with this content. Raises ImageError."""
    if isinstance(source, Image.Image):
        return encode_image(source)
    if is_array(source):
        pixels = np.asarray(source.detach().cpu() if hasattr(source, "detach") else source)
        is_grey = pixels.shape[2:] == (1,)
        return encode_image(Image.fromarray(pixels[:, :, 0] if is_grey else pixels))
    # not `read`: the position of a stream that was just written is its end
    try:
        data = source.getvalue() if isinstance(source, BytesIO) else bytes(source)
    except ValueError as problem:
        raise ImageError(CLOSED) from problem
    return checked_bytes(data, ImageLimits())
