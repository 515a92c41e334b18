"""What is wrong with a picture, as a code of the contract and one sentence."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

from pgcli.images.image_spec import ImageLimits, Size
from pgcli.records import Fault

MISSING = Fault("missing", "There is no such file.")
EMPTY = Fault("not_an_image", "The file is empty.")
UNKNOWN = Fault("not_an_image", "The file is no picture of a known format.")
TRUNCATED = Fault("truncated", "The file ends before the picture does.")
NOT_A_FILE = Fault("not_a_regular_file", "This is a directory, pipe, socket or device, not a file.")

PNG_END = b"IEND\xaeB`\x82"


class ImageError(Exception):
    """A picture that cannot be had: its fault, and its upright size if the header told it."""

    def __init__(self, fault: Fault, size: Size | None = None):
        super().__init__(fault.message)
        self.fault = fault
        self.size = size


@contextmanager
def wrap_image_errors(size: Size | None = None, data: bytes = b"") -> Iterator[None]:
    """Turn whatever is raised within into `ImageError`; the file's bytes help to tell why."""
    try:
        yield
    except ImageError:
        raise
    except Exception as problem:  # broken files make Pillow raise anything: the one boundary
        raise ImageError(_fault(problem, data), size) from problem


def too_many_pixels(size: Size, limits: ImageLimits) -> Fault:
    message = (
        f"The picture has {size.width} x {size.height} pixels; "
        f"the limit is {limits.max_pixels} (--max-pixels)."
    )
    return Fault("too_many_pixels", message)


def too_large(limits: ImageLimits) -> Fault:
    return Fault("too_large", f"The file is larger than {limits.max_bytes} bytes.")


def _fault(problem: Exception, data: bytes) -> Fault:
    if isinstance(problem, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return Fault(
            "too_many_pixels", "A part of the picture has more pixels than Pillow decodes."
        )
    if isinstance(problem, MemoryError):
        return Fault("decode_failed", "Decoding it needs more memory than there is.")
    ran_out = isinstance(problem.__cause__ or problem, EOFError | IndexError | struct.error)
    text = str(problem).lower()
    is_whole = data.endswith(PNG_END)  # then pixels are missing, but no end of the file
    if not is_whole and (ran_out or "truncated" in text or "reached eof" in text):
        return TRUNCATED
    return Fault(
        "decode_failed", f"The picture is damaged: its decoder gave up ({type(problem).__name__})."
    )
