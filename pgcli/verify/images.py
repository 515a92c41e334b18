"""The images of `verify` and `bench`: generated ones, equal on every machine, or the user's."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from itertools import count, islice
from random import Random

from PIL import Image, ImageDraw

from pgcli.errors import NoInputError
from pgcli.images import ImageLimits, ImageSpec, decode
from pgcli.records import DecodedImage, Item

MAX_IMAGES = 8  # images that `verify` compares, at most
SIZES = ((320, 240), (200, 300), (448, 448))  # landscape, portrait, square


def default_images() -> list[Item]:
    """A few small images as the bytes of PNG files."""
    return [*islice(generate_images(), len(SIZES))]


def generate_images() -> Iterator[Item]:
    """The images of `default_images`, then an endless stream of others in the same sizes."""
    for number in count():
        width, height = SIZES[number % len(SIZES)]
        again = f" ({number // len(SIZES)})" if number >= len(SIZES) else ""
        name = f"drawing of {width} x {height}{again}"
        yield Item(number, name, name, data=_png(number, width, height))


def readable_images(items: Sequence[Item], spec: ImageSpec) -> list[DecodedImage]:
    """The first readable images. Raises NoInputError without any."""
    images = [decode(item, spec, ImageLimits()) for item in items[:MAX_IMAGES]]
    readable = [image for image in images if image.fault is None]
    if not readable:
        fault = images[0].fault if images else None
        raise NoInputError(
            "no image to compare with" + (f": {fault.message}" if fault else ""),
            hint="drop --source to compare with generated images",
        )
    return readable


def _png(number: int, width: int, height: int) -> bytes:
    """A gradient background, so that neighbouring patches differ, and three shapes on it."""
    horizontal, vertical = Image.linear_gradient("L").rotate(90), Image.linear_gradient("L")
    background = Image.merge("RGB", (horizontal, vertical, Image.radial_gradient("L")))
    image = background.rotate(90 * number).resize((width, height))
    draw = ImageDraw.Draw(image)
    side = min(width, height) // 4
    draw.ellipse((side, side, 2 * side, 2 * side), fill="red")
    draw.rectangle((2 * side, side // 2, 3 * side, 2 * side), fill="blue")
    draw.polygon([(side, 3 * side), (2 * side, 3 * side), (side, 2 * side)], fill="yellow")
    if number >= len(SIZES):
        rng = Random(number)
        left, top = rng.randrange(width - side), rng.randrange(height - side)
        colour = tuple(rng.randrange(256) for _ in range(3))
        draw.ellipse((left, top, left + side, top + side), fill=colour)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
