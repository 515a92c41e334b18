"""Pictures to compare on where the user names none: drawn here, the same on every machine."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import count, islice
from random import Random

from PIL import Image, ImageDraw

from pgcli.records import Item

SIZES = ((320, 240), (200, 300), (448, 448))  # wider than high, higher than wide, square


def patterns() -> list[Item]:
    """A few small drawings, as the bytes of PNG files."""
    return [*islice(drawings(), len(SIZES))]


def drawings() -> Iterator[Item]:
    """The same few, and then ever more of their sizes, no two of them alike."""
    for number in count():
        width, height = SIZES[number % len(SIZES)]
        again = f" ({number // len(SIZES)})" if number >= len(SIZES) else ""
        name = f"drawing of {width} x {height}{again}"
        yield Item(number, name, name, data=_png(number, width, height))


def _png(number: int, width: int, height: int) -> bytes:
    """A shaded ground, so that no patch is like its neighbour, and three shapes on it."""
    across, down = Image.linear_gradient("L").rotate(90), Image.linear_gradient("L")
    ground = Image.merge("RGB", (across, down, Image.radial_gradient("L")))
    image = ground.rotate(90 * number).resize((width, height))
    draw = ImageDraw.Draw(image)
    side = min(width, height) // 4
    draw.ellipse((side, side, 2 * side, 2 * side), fill="red")
    draw.rectangle((2 * side, side // 2, 3 * side, 2 * side), fill="blue")
    draw.polygon([(side, 3 * side), (2 * side, 3 * side), (side, 2 * side)], fill="yellow")
    if number >= len(SIZES):
        draws = Random(number)
        left, top = draws.randrange(width - side), draws.randrange(height - side)
        colour = tuple(draws.randrange(256) for _ in range(3))
        draw.ellipse((left, top, left + side, top + side), fill=colour)
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
