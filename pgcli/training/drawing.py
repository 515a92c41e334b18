"""A scene's pixels."""

from __future__ import annotations

from PIL import Image, ImageDraw

from pgcli.training.scenes import Scene

FINER = 3  # each pixel's side is drawn this many times finer, then averaged


def render(scene: Scene, width: int | None = None, height: int | None = None) -> Image.Image:
    """The drawing as an RGB picture with smooth edges, in its natural size unless told."""
    width, height = width or scene.width, height or scene.height
    size = (width * FINER, height * FINER)
    across, down = size[0] / scene.width, size[1] / scene.height
    canvas = Image.new("RGB", size, scene.background_rgb)
    pencil = ImageDraw.Draw(canvas)
    for thing in scene.things:
        pencil.polygon([(x * across, y * down) for x, y in thing.outline], fill=thing.rgb)
    return canvas.reduce(FINER)


def smaller(scene: Scene, longer: int) -> tuple[int, int]:
    """Width and height of the scene's own shape whose longer side is `longer` pixels."""
    scale = longer / max(scene.width, scene.height)
    return round(scene.width * scale), round(scene.height * scale)
