"""Renders a scene as an image."""

from __future__ import annotations

from PIL import Image, ImageDraw

from examples.demo_model.scenes import Scene
from examples.demo_model.words import font_of

SUPERSAMPLING = 3  # drawn at this multiple of the size and averaged, for smooth edges


def render(scene: Scene, width: int | None = None, height: int | None = None) -> Image.Image:
    """The scene as an RGB image with smooth edges, in its own size unless a size is given."""
    width, height = width or scene.width, height or scene.height
    size = (width * SUPERSAMPLING, height * SUPERSAMPLING)
    scale_x, scale_y = size[0] / scene.width, size[1] / scene.height
    canvas = Image.new("RGB", size, scene.background_rgb)
    draw = ImageDraw.Draw(canvas)
    for drawn in scene.objects:
        draw.polygon([(x * scale_x, y * scale_y) for x, y in drawn.outline], fill=drawn.rgb)
    for word in scene.words:
        font = font_of(word.font, word.size * scale_y)
        draw.text((word.x * scale_x, word.y * scale_y), word.text, word.rgb, font, anchor="ls")
    return canvas.reduce(SUPERSAMPLING)


def scaled_size(scene: Scene, longer: int) -> tuple[int, int]:
    """Width and height with the scene's aspect ratio and a longer side of `longer` pixels."""
    scale = longer / max(scene.width, scene.height)
    return round(scene.width * scale), round(scene.height * scale)
