"""Random scenes of coloured shapes, each of which follows from its seed alone, as images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from PIL import Image, ImageDraw

from examples.demo_model.words import Word, font_of

Rgb = tuple[int, int, int]
Point = tuple[float, float]

#: Drawings that `benchmarks/demo_quality.py` evaluates; never used in training.
EVAL_SEEDS = range(0, 1_000)
#: Drawings for validation; never used in training.
VALIDATION_SEEDS = range(10_000, 12_000)
#: Drawings that `examples/make_images.py` selects from.
EXAMPLE_SEEDS = range(20_000, 21_000)
#: Drawings whose prompts and answers the tokenizer is trained on.
TOKENIZER_SEEDS = range(30_000, 34_000)
#: Drawings for training: more than any run needs.
TRAINING_SEEDS = range(1_000_000, 1_000_000_000)

SHAPES = ("circle", "square", "triangle", "star", "cross")
COLOURS: Mapping[str, Rgb] = {
    "red": (215, 25, 30),
    "green": (25, 155, 55),
    "blue": (35, 75, 225),
    "yellow": (250, 225, 40),
    "orange": (250, 130, 10),
    "purple": (125, 35, 165),
    "pink": (250, 140, 200),
}
BACKGROUNDS: Mapping[str, Rgb] = {"white": (247,) * 3, "grey": (135,) * 3, "black": (10,) * 3}

JITTER = 8  # levels of 255 by which a channel may differ from the named colour
LONGER_SIDE = (360, 720)  # pixels
MIN_ASPECT = 0.6  # the shorter side over the longer
RADIUS = (0.14, 0.24)  # of the shorter side
TILT_DEGREES = 12.0
SUPERSAMPLING = 3  # drawn at this multiple of the size and averaged, for smooth edges
GAP = 0.025  # of the shorter side, between two objects and between an object and the edge


@dataclass(frozen=True)
class RelativeBox:
    """A bounding box in fractions of the drawing's width and height."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float


@dataclass(frozen=True)
class SceneObject:
    """One coloured shape.

    `x`, `y` and `radius` describe its circumscribed circle in pixels; `tilt` is in degrees.
    """

    shape: str
    colour: str
    rgb: Rgb
    x: float
    y: float
    radius: float
    tilt: float

    @cached_property
    def outline(self) -> tuple[Point, ...]:
        """The shape's corners in pixels; a circle is a polygon of 72 corners."""
        return outline(self.shape, self.x, self.y, self.radius, self.tilt)


@dataclass(frozen=True)
class Scene:
    """One drawing: its size in pixels, its background, its objects and its words."""

    seed: int
    width: int
    height: int
    background: str
    background_rgb: Rgb
    objects: tuple[SceneObject, ...]
    words: tuple[Word, ...] = ()

    @classmethod
    def from_seed(cls, seed: int) -> Scene:
        """The drawing of a seed; equal seeds give equal drawings."""
        rng = Random(seed)
        width, height = random_size(rng)
        background = rng.choice(tuple(BACKGROUNDS))
        light = BACKGROUNDS[background][0] + rng.randint(-JITTER, JITTER)
        objects = _place_objects(random_kinds(rng), width, height, rng)
        return cls(seed, width, height, background, (light, light, light), objects)

    def rearranged(self, rng: Random) -> Scene:
        """The same kinds of objects on the same background, in other places and sizes."""
        width, height = random_size(rng)
        kinds = [(drawn.shape, drawn.colour) for drawn in self.objects]
        objects = _place_objects(kinds, width, height, rng)
        return replace(self, width=width, height=height, objects=objects)

    @cached_property
    def boxes(self) -> tuple[RelativeBox, ...]:
        """The exact bounding box of each of `objects`."""
        return tuple(self._box(drawn) for drawn in self.objects)

    def _box(self, drawn: SceneObject) -> RelativeBox:
        xs = [x / self.width for x, _ in drawn.outline]
        ys = [y / self.height for _, y in drawn.outline]
        return RelativeBox(min(xs), min(ys), max(xs), max(ys))


def _polygon(corners: int, radii: tuple[float, ...] = (1.0,), *, turn: float = 0.0) -> list[Point]:
    """Corners around the origin, the first at the top; `radii` alternate; `turn` is in degrees."""
    angles = [math.radians(turn - 90.0) + math.tau * k / corners for k in range(corners)]
    lengths = [radii[k % len(radii)] for k in range(corners)]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(lengths, angles, strict=True)]


def _cross(arm: float, half: float) -> list[Point]:
    """A cross with arms of length `arm` and thickness twice `half`."""
    quarter = [(-half, -arm), (half, -arm), (half, -half)]
    turns = [(1, 0), (0, 1), (-1, 0), (0, -1)]
    return [(x * c - y * s, x * s + y * c) for c, s in turns for x, y in quarter]


#: The corners of each shape inside the unit circle, y downwards. The circle and the square are
#: scaled down to look as large as the other shapes.
OUTLINES = {
    "circle": _polygon(72, (0.85,)),
    "square": _polygon(4, turn=45.0),
    "triangle": _polygon(3),
    "star": _polygon(10, (1.0, 0.42)),
    "cross": _cross(0.94, 0.29),
}


def outline(shape: str, x: float, y: float, radius: float, tilt: float) -> tuple[Point, ...]:
    """The corners of a shape in a circle around `x` and `y`, turned by `tilt` degrees."""
    angle = math.radians(tilt)
    right, down = radius * math.cos(angle), radius * math.sin(angle)
    return tuple((x + u * right - v * down, y + u * down + v * right) for u, v in OUTLINES[shape])


def random_size(rng: Random) -> tuple[int, int]:
    """Width and height in pixels, wide, tall or square."""
    longer = rng.randint(*LONGER_SIDE)
    shorter = round(longer * rng.uniform(MIN_ASPECT, 0.9))
    return rng.choice([(longer, shorter), (shorter, longer), (longer, longer)])


def random_kinds(rng: Random) -> list[tuple[str, str]]:
    """Shape and colour of one to four objects; repeats are far more frequent than by chance."""
    count = rng.choices((1, 2, 3, 4), (3, 5, 5, 6))[0]
    shape, colour = rng.choice(SHAPES), rng.choice(tuple(COLOURS))
    shared = rng.choices(("kind", "shape", "colour", "nothing"), (30, 25, 15, 30))[0]
    num_sharing = rng.randint(2, 4)  # the first objects share this property, the others do not
    kinds = []
    for index in range(count):
        keep = shared if index < num_sharing else "nothing"
        kinds.append(
            (
                shape if keep in ("kind", "shape") else rng.choice(SHAPES),
                colour if keep in ("kind", "colour") else rng.choice(tuple(COLOURS)),
            )
        )
    return kinds


def _place_objects(
    kinds: list[tuple[str, str]], width: int, height: int, rng: Random
) -> tuple[SceneObject, ...]:
    """Objects at random positions inside the drawing, without overlap; retries until all fit."""
    while True:
        objects: list[SceneObject] = []
        for shape, colour in kinds:
            drawn = random_object(shape, colour, objects, width, height, rng)
            if drawn is None:
                break
            objects.append(drawn)
        else:
            return tuple(objects)


def random_object(
    shape: str, colour: str, others: list[SceneObject], width: int, height: int, rng: Random
) -> SceneObject | None:
    """An object that does not touch the others, or None if no free place was found."""
    shorter = min(width, height)
    radius = shorter * rng.uniform(*RADIUS)
    tilt = 0.0 if shape == "circle" else rng.uniform(-TILT_DEGREES, TILT_DEGREES)
    edge = radius + GAP * shorter
    for _ in range(12):
        x, y = rng.uniform(edge, width - edge), rng.uniform(edge, height - edge)
        if all(math.hypot(x - o.x, y - o.y) > edge + o.radius for o in others):
            return SceneObject(shape, colour, jittered(COLOURS[colour], rng), x, y, radius, tilt)
    return None


def jittered(rgb: Rgb, rng: Random) -> Rgb:
    """The colour with small random changes."""
    red, green, blue = (min(255, max(0, c + rng.randint(-JITTER, JITTER))) for c in rgb)
    return red, green, blue


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
