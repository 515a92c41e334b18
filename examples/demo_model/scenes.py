"""Random drawings of coloured shapes and words; each depends only on its seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from string import ascii_uppercase as LETTERS

from PIL import Image, ImageDraw, ImageFont

Rgb = tuple[int, int, int]
Point = tuple[float, float]

#: Drawings that `benchmarks/demo_quality.py` evaluates; never used in training.
EVAL_SEEDS = range(0, 1_000)
#: Drawings for validation; never used in training.
VALIDATION_SEEDS = range(10_000, 12_000)
#: Drawings for `examples/images`, `examples/words` and `examples/new_shape.py`.
EXAMPLE_SEEDS = range(20_000, 21_000)
#: Drawings with the training texts of the tokenizers.
TOKENIZER_SEEDS = range(30_000, 34_000)
#: Drawings for training, more than any run needs.
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

JITTER = 8  # levels of 255: how much a channel may differ from the named colour
LONGER_SIDE = (360, 720)  # pixels
MIN_ASPECT = 0.6  # the shorter side over the longer
RADIUS = (0.14, 0.24)  # of the shorter side
TILT_DEGREES = 12.0
SUPERSAMPLING = 3  # drawn at this multiple of the size and averaged, for smooth edges
GAP = 0.025  # of the shorter side, between two objects and between an object and the edge

#: Pillow's own font, and four of the DejaVu family, reduced to letters and digits.
FONTS = ("Aileron", "DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono-Bold")
NOMINAL = 200  # pixels: the size at which fonts are measured
MAX_LETTERS = 12
MIN_LETTER = 8 / 112  # of the drawing: width and height of the smallest letters
MEAN_ADVANCE = 0.7  # of a capital letter, in sizes of the font
MAX_WORD_WIDTH = 0.94
MAX_LETTER_HEIGHT = 0.3
MIN_SHARE = 0.6  # of the largest size that fits
MAX_LINE_SCALE = 2.5  # letters of a page, relative to the smallest
MIN_CONTRAST = 70  # levels of 255 between the word's brightness and the background's
OBJECTS_BESIDE = ((0, 1, 2, 3), (3, 4, 3, 1))  # beside a word: object counts and weights


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
        angle = math.radians(self.tilt)
        right, down = self.radius * math.cos(angle), self.radius * math.sin(angle)
        corners = OUTLINES[self.shape]
        return tuple(
            (self.x + u * right - v * down, self.y + u * down + v * right) for u, v in corners
        )


@dataclass(frozen=True)
class Word:
    """A word on one line: `x` is its left end and `y` its baseline; all numbers are in pixels."""

    text: str
    font: str
    size: float
    rgb: Rgb
    x: float
    y: float

    @property
    def edges(self) -> tuple[float, ...]:
        """Where each letter begins and the last one ends, in pixels from the left."""
        return tuple(self.x + self.size * edge for edge in letter_edges(self.text, self.font))

    @property
    def top(self) -> float:
        """The upper end of the capital letters, in pixels."""
        return self.y - self.size * cap_height(self.font)


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
        """The drawing of a seed."""
        rng = Random(seed)
        width, height = random_size(rng)
        background, rgb = _random_background(rng)
        kinds = random_kinds(rng)
        while (objects := _place(kinds, width, height, rng)) is None:
            pass
        return cls(seed, width, height, background, rgb, objects)

    @cached_property
    def boxes(self) -> tuple[RelativeBox, ...]:
        """The exact bounding box of each of `objects`."""
        boxes = []
        for drawn in self.objects:
            xs = [x / self.width for x, _ in drawn.outline]
            ys = [y / self.height for _, y in drawn.outline]
            boxes.append(RelativeBox(min(xs), min(ys), max(xs), max(ys)))
        return tuple(boxes)


def lettered_scene(seed: int) -> Scene:
    """The drawing of a seed with a word of capital letters and up to three objects beside it."""
    rng = Random(f"word {seed}")
    background, ground = _random_background(rng)
    length = rng.randint(1, MAX_LETTERS)
    kinds = random_kinds(rng)[: rng.choices(*OBJECTS_BESIDE)[0]]
    rgb = _ink(ground, rng)
    while True:
        text = "".join(rng.choices(LETTERS, k=length))
        width, height = random_size(rng)
        word = _placed_word(text, rng.choice(FONTS), rgb, width, height, rng)
        objects = None if word is None else _place(kinds, width, height, rng, word)
        if word is not None and objects is not None:
            return Scene(seed, width, height, background, ground, objects, (word,))


def page_of_words(seed: int) -> Scene:
    """The drawing of a seed with lines of words and nothing else.

    A vision tower learns letters much faster from it than from drawings with one word.
    """
    rng = Random(f"page {seed}")
    background, ground = _random_background(rng)
    width, height = random_size(rng)
    words: list[Word] = []
    y = height * rng.uniform(0.02, 0.1)
    while True:
        font = rng.choice(FONTS)
        size = _smallest_size(font, width, height) * MAX_LINE_SCALE ** rng.random()
        y += cap_height(font) * size
        if y > 0.98 * height:
            return Scene(seed, width, height, background, ground, (), tuple(words))
        words += _line(font, size, y, width, _ink(ground, rng), rng)
        y += size * rng.uniform(0.15, 0.5)


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


def random_size(rng: Random) -> tuple[int, int]:
    """Width and height in pixels, wide, tall or square."""
    longer = rng.randint(*LONGER_SIDE)
    shorter = round(longer * rng.uniform(MIN_ASPECT, 0.9))
    return rng.choice([(longer, shorter), (shorter, longer), (longer, longer)])


def random_kinds(rng: Random) -> list[tuple[str, str]]:
    """Shapes and colours of one to four objects, with more repeats than by chance."""
    count = rng.choices((1, 2, 3, 4), (3, 5, 5, 6))[0]
    shape, colour = rng.choice(SHAPES), rng.choice(tuple(COLOURS))
    shared = rng.choices(("kind", "shape", "colour", "nothing"), (30, 25, 15, 30))[0]
    num_sharing = rng.randint(2, 4)  # the first objects share this property, the others do not
    kinds = []
    for index in range(count):
        keep = shared if index < num_sharing else "nothing"
        own_shape = shape if keep in ("kind", "shape") else rng.choice(SHAPES)
        own_colour = colour if keep in ("kind", "colour") else rng.choice(tuple(COLOURS))
        kinds.append((own_shape, own_colour))
    return kinds


def jittered(rgb: Rgb, rng: Random) -> Rgb:
    """The colour with small random changes."""
    red, green, blue = (min(255, max(0, c + rng.randint(-JITTER, JITTER))) for c in rgb)
    return red, green, blue


def _random_background(rng: Random) -> tuple[str, Rgb]:
    """The name of a background, and its colour a little lighter or darker."""
    background = rng.choice(tuple(BACKGROUNDS))
    light = BACKGROUNDS[background][0] + rng.randint(-JITTER, JITTER)
    return background, (light, light, light)


def _place(
    kinds: Sequence[tuple[str, str]], width: int, height: int, rng: Random, word: Word | None = None
) -> tuple[SceneObject, ...] | None:
    """Objects of these kinds that touch neither each other nor the word; None without room for one.

    Each object is tried in twelve places.
    """
    shorter = min(width, height)
    objects: list[SceneObject] = []
    for shape, colour in kinds:
        radius = shorter * rng.uniform(*RADIUS)
        tilt = 0.0 if shape == "circle" else rng.uniform(-TILT_DEGREES, TILT_DEGREES)
        edge = radius + GAP * shorter
        for _ in range(12):
            x, y = rng.uniform(edge, width - edge), rng.uniform(edge, height - edge)
            if all(math.hypot(x - o.x, y - o.y) > edge + o.radius for o in objects):
                break
        else:
            return None
        drawn = SceneObject(shape, colour, jittered(COLOURS[colour], rng), x, y, radius, tilt)
        if word is not None and _touches(drawn, word, GAP * shorter):
            return None
        objects.append(drawn)
    return tuple(objects)


def _touches(drawn: SceneObject, word: Word, gap: float) -> bool:
    """Whether the object's circle is nearer than the gap to the word's rectangle."""
    right = max(word.edges[0] - drawn.x, drawn.x - word.edges[-1], 0.0)
    down = max(word.top - drawn.y, drawn.y - word.y, 0.0)
    return bool((right**2 + down**2) ** 0.5 < drawn.radius + gap)


def _placed_word(
    text: str, font: str, rgb: Rgb, width: int, height: int, rng: Random
) -> Word | None:
    """The word in a random size and place inside the drawing, or None if it does not fit."""
    advance, cap = letter_edges(text, font)[-1], cap_height(font)
    smallest = _smallest_size(font, width, height)
    largest = min(MAX_WORD_WIDTH * width / advance, MAX_LETTER_HEIGHT * height / cap)
    if smallest > largest:
        return None
    smallest = max(smallest, MIN_SHARE * largest)
    size = smallest * (largest / smallest) ** rng.random()
    margin = (1 - MAX_WORD_WIDTH) / 2
    x = rng.uniform(margin * width, (1 - margin) * width - advance * size)
    y = rng.uniform(margin * height + cap * size, (1 - margin) * height)
    return Word(text, font, size, rgb, x, y)


def _line(font: str, size: float, y: float, width: int, rgb: Rgb, rng: Random) -> list[Word]:
    """Words of random letters from side to side."""
    words: list[Word] = []
    x = width * rng.uniform(0.01, 0.12)
    while True:
        text = "".join(rng.choices(LETTERS, k=rng.randint(1, MAX_LETTERS)))
        edges = letter_edges(text, font)
        fitting = [count for count, edge in enumerate(edges) if x + edge * size < 0.99 * width]
        if len(fitting) < 2:  # not even one letter fits
            return words
        words.append(Word(text[: fitting[-1]], font, size, rgb, x, y))
        x += size * (edges[fitting[-1]] + rng.uniform(0.3, 1.2))


def _ink(ground: Rgb, rng: Random) -> Rgb:
    """A colour that differs in brightness from the background."""
    named = (*COLOURS.values(), *BACKGROUNDS.values())
    distinct = [c for c in named if abs(_brightness(c) - _brightness(ground)) >= MIN_CONTRAST]
    return jittered(rng.choice(distinct), rng)


def _brightness(rgb: Rgb) -> float:
    red, green, blue = rgb
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _smallest_size(font: str, width: int, height: int) -> float:
    """The font size of the smallest letters that a drawing may have."""
    return max(MIN_LETTER * width / MEAN_ADVANCE, MIN_LETTER * height / cap_height(font))


@lru_cache(maxsize=64)
def font_of(name: str, size: float) -> ImageFont.FreeTypeFont:
    """The font at a size in pixels, with a layout that does not depend on installed libraries."""
    basic = ImageFont.Layout.BASIC
    if name != "Aileron":
        file = Path(__file__).with_name("fonts") / f"{name}.ttf"
        return ImageFont.truetype(file, size, layout_engine=basic)
    font = ImageFont.load_default(NOMINAL)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font.font_variant(size=size, layout_engine=basic)


@cache
def cap_height(font: str) -> float:
    """The height of a capital letter, relative to the font size."""
    return -font_of(font, NOMINAL).getbbox("H", anchor="ls")[1] / NOMINAL


def letter_edges(text: str, font: str) -> tuple[float, ...]:
    """Where each letter begins and the last one ends, relative to the font size."""
    kerned = (_length(a + b, font) - _length(a, font) for a, b in pairwise(text))
    widths = (_length(text[:1], font), *kerned)
    return tuple(edge / NOMINAL for edge in accumulate(widths, initial=0.0))


@cache
def _length(text: str, font: str) -> float:
    """The width of one or two letters in the nominal size."""
    return font_of(font, NOMINAL).getlength(text)


def render(scene: Scene, longer: int | None = None) -> Image.Image:
    """The scene as an RGB image with smooth edges, in its own size or with a given longer side."""
    scale = 1.0 if longer is None else longer / max(scene.width, scene.height)
    width, height = round(scene.width * scale), round(scene.height * scale)
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
