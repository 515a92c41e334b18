"""Changes of a drawing that leave its captions true: turned, mirrored, scaled, recompressed."""

from __future__ import annotations

from io import BytesIO
from random import Random

from PIL import Image

from examples.demo_model.scenes import Rgb

TURN_DEGREES = 30.0
QUALITY = (15, 95)  # of JPEG
SCALE = (0.25, 1.0)
FILTERS = (Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS)


def augment(image: Image.Image, background: Rgb, rng: Random) -> Image.Image:
    """The drawing with each change at random."""
    if rng.random() < 0.3:
        image = image.transpose(rng.choice(list(Image.Transpose)))
    if rng.random() < 0.4:
        image = turned(image, rng.uniform(-TURN_DEGREES, TURN_DEGREES), background)
    if rng.random() < 0.4:
        image = scaled(image, rng.uniform(*SCALE), rng.choice(FILTERS))
    if rng.random() < 0.4:
        image = recompressed(image, rng.randint(*QUALITY))
    return image


def turned(image: Image.Image, degrees: float, background: Rgb) -> Image.Image:
    """The drawing turned around its centre, the corners filled with its background."""
    return image.rotate(degrees, Image.Resampling.BICUBIC, expand=True, fillcolor=background)


def scaled(image: Image.Image, factor: float, filter: Image.Resampling) -> Image.Image:
    """The drawing in another size."""
    width, height = (max(24, round(side * factor)) for side in image.size)
    return image.resize((width, height), filter)


def recompressed(image: Image.Image, quality: int) -> Image.Image:
    """The drawing after JPEG."""
    buffer = BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    with Image.open(buffer) as again:
        return again.convert("RGB")
