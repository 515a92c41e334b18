"""An image that EXIF rotates, with a white box in it."""

from typing import Any

import numpy as np
from PIL import Image

STORED, UPRIGHT = (64, 48), (48, 64)
LEFT, TOP, RIGHT, BOTTOM = 8, 4, 28, 14
#: The upright corners of a box in the stored image, for each orientation that swaps the sides.
TURNED = {5: [4, 8, 14, 28], 6: [34, 8, 44, 28], 7: [34, 36, 44, 56], 8: [4, 36, 14, 56]}
FLIPPED = {2: [36, 4, 56, 14], 3: [36, 34, 56, 44], 4: [8, 34, 28, 44]}


def photograph(name: str, orientation: int, format_: str = "PNG", size: Any = STORED) -> None:
    """An image with a white box, stored with an EXIF orientation."""
    pixels = np.zeros(size[::-1], np.uint8)
    pixels[TOP:BOTTOM, LEFT:RIGHT] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(name, format_, exif=exif)
