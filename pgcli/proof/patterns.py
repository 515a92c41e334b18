"""Pictures to prove with where the user names none: drawn here, the same on every machine."""

from __future__ import annotations

import io

from PIL import Image, ImageDraw

from pgcli.records import Item

SIZES = ((320, 240), (200, 300), (448, 448))  # wider than high, higher than wide, square


def patterns() -> list[Item]:
    """A few small drawings, as the bytes of PNG files."""
    names = [f"drawing of {width} x {height}" for width, height in SIZES]
    return [
        Item(number, name, name, data=_png(number, *SIZES[number]))
        for number, name in enumerate(names)
    ]


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
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return stream.getvalue()
