"""Images that do not compress, so that bytes that are read can be told."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from PIL import Image


def noise(count: int) -> list[bytes]:
    """Images of 300 kB each."""
    pixels = np.random.default_rng(0).integers(0, 255, (count, 320, 320, 3), np.uint8)
    files = []
    for image in pixels:
        file = BytesIO()
        Image.fromarray(image).save(file, "png", compress_level=0)
        files.append(file.getvalue())
    return files
