"""What is in a drawing of coloured shapes: a scene, made from its seed alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from random import Random

Rgb = tuple[int, int, int]
Point = tuple[float, float]

#: Drawings that the quality script asks about; no training ever draws them.
EXAM_SEEDS = range(0, 1_000)
#: Drawings that training may look at to see how it stands; never learned from.
VALIDATION_SEEDS = range(10_000, 12_000)
#: Drawings that `examples/make_images.py` chooses from.
EXAMPLE_SEEDS = range(20_000, 21_000)
#: Drawings whose lessons the tokenizer's merges are learned from.
TOKENIZER_SEEDS = range(30_000, 34_000)
#: Drawings to learn from: more than any run needs.
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

JITTER = 8  # levels of 255 by which a colour may differ from its name's
LONGER_SIDE = (360, 720)  # pixels
NARROWEST = 0.6  # the shorter side over the longer
RADIUS = (0.14, 0.24)  # of the shorter side
TILT_DEGREES = 12.0
GAP = 0.025  # of the shorter side, between two things and between a thing and the edge


@dataclass(frozen=True)
class Extent:
    """Where a thing is, in fractions of the drawing's width and height."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float


@dataclass(frozen=True)
class Thing:
    """One coloured shape.

    `x`, `y` and `radius` are those of the circle around it, in pixels; `tilt` is in degrees.
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
        """The shape's corners in pixels; a circle is a polygon too fine to tell."""
        angle = math.radians(self.tilt)
        right, down = self.radius * math.cos(angle), self.radius * math.sin(angle)
        return tuple(
            (self.x + u * right - v * down, self.y + u * down + v * right)
            for u, v in OUTLINES[self.shape]
        )


@dataclass(frozen=True)
class Scene:
    """One drawing: its natural size in pixels, its background and the things on it."""

    seed: int
    width: int
    height: int
    background: str
    background_rgb: Rgb
    things: tuple[Thing, ...]

    @classmethod
    def from_seed(cls, seed: int) -> Scene:
        """The drawing of that seed: always the same one."""
        rng = Random(seed)
        width, height = _size(rng)
        background = rng.choice(tuple(BACKGROUNDS))
        light = BACKGROUNDS[background][0] + rng.randint(-JITTER, JITTER)
        things = _place(_kinds(rng), width, height, rng)
        return cls(seed, width, height, background, (light, light, light), things)

    @cached_property
    def boxes(self) -> tuple[Extent, ...]:
        """Where each of `things` is: the exact extent of the tilted shape."""
        return tuple(self._box(thing) for thing in self.things)

    def _box(self, thing: Thing) -> Extent:
        xs = [x / self.width for x, _ in thing.outline]
        ys = [y / self.height for _, y in thing.outline]
        return Extent(min(xs), min(ys), max(xs), max(ys))


def _ring(corners: int, radii: tuple[float, ...] = (1.0,), *, turn: float = 0.0) -> list[Point]:
    """Corners around the origin, the first at the top, at `radii` in turn; `turn` in degrees."""
    angles = [math.radians(turn - 90.0) + math.tau * k / corners for k in range(corners)]
    lengths = [radii[k % len(radii)] for k in range(corners)]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(lengths, angles, strict=True)]


def _plus(arm: float, half: float) -> list[Point]:
    """A cross with arms of length `arm` and thickness twice `half`."""
    quarter = [(-half, -arm), (half, -arm), (half, -half)]
    turns = [(1, 0), (0, 1), (-1, 0), (0, -1)]
    return [(x * c - y * s, x * s + y * c) for c, s in turns for x, y in quarter]


#: The corners of each shape inside the unit circle, y downwards. A circle and a square are made
#: smaller, or they would look larger than the other shapes.
OUTLINES: Mapping[str, list[Point]] = {
    "circle": _ring(72, (0.85,)),
    "square": _ring(4, turn=45.0),
    "triangle": _ring(3),
    "star": _ring(10, (1.0, 0.42)),
    "cross": _plus(0.94, 0.29),
}


def _size(rng: Random) -> tuple[int, int]:
    longer = rng.randint(*LONGER_SIDE)
    shorter = round(longer * rng.uniform(NARROWEST, 0.9))
    return rng.choice([(longer, shorter), (shorter, longer), (longer, longer)])


def _kinds(rng: Random) -> list[tuple[str, str]]:
    """Shape and colour of one to four things, with repeats far more frequent than by chance."""
    count = rng.choices((1, 2, 3, 4), (3, 5, 5, 6))[0]
    shape, colour = rng.choice(SHAPES), rng.choice(tuple(COLOURS))
    alike = rng.choices(("kind", "shape", "colour", "nothing"), (30, 25, 15, 30))[0]
    same = rng.randint(2, 4)  # the first ones share what is alike, the others are free
    kinds = []
    for place in range(count):
        keep = alike if place < same else "nothing"
        kinds.append(
            (
                shape if keep in ("kind", "shape") else rng.choice(SHAPES),
                colour if keep in ("kind", "colour") else rng.choice(tuple(COLOURS)),
            )
        )
    return kinds


def _place(kinds: list[tuple[str, str]], width: int, height: int, rng: Random) -> tuple[Thing, ...]:
    """The things at random places, wholly inside and apart; starts again where they do not fit."""
    while True:
        things: list[Thing] = []
        for shape, colour in kinds:
            thing = _free_place(shape, colour, things, width, height, rng)
            if thing is None:
                break
            things.append(thing)
        else:
            return tuple(things)


def _free_place(
    shape: str, colour: str, others: list[Thing], width: int, height: int, rng: Random
) -> Thing | None:
    shorter = min(width, height)
    radius = shorter * rng.uniform(*RADIUS)
    tilt = 0.0 if shape == "circle" else rng.uniform(-TILT_DEGREES, TILT_DEGREES)
    edge = radius + GAP * shorter
    for _ in range(12):
        x, y = rng.uniform(edge, width - edge), rng.uniform(edge, height - edge)
        if all(math.hypot(x - o.x, y - o.y) > edge + o.radius for o in others):
            return Thing(shape, colour, _shade(COLOURS[colour], rng), x, y, radius, tilt)
    return None


def _shade(rgb: Rgb, rng: Random) -> Rgb:
    red, green, blue = (min(255, max(0, c + rng.randint(-JITTER, JITTER))) for c in rgb)
    return red, green, blue
