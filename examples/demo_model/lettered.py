"""Random drawings with a word on them: each follows from its seed alone."""

from __future__ import annotations

from random import Random

from examples.demo_model.scenes import (
    BACKGROUNDS,
    COLOURS,
    GAP,
    JITTER,
    Rgb,
    Scene,
    SceneObject,
    jittered,
    random_kinds,
    random_object,
    random_size,
)
from examples.demo_model.words import FONTS, LETTERS, MAX_LETTERS, Word, cap_height, letter_edges

#: The smallest letters, in fractions of the drawing: 8 of 112 pixels. A word is as large or larger.
MIN_LETTER_WIDTH = 8 / 112
MIN_LETTER_HEIGHT = 8 / 112
MEAN_ADVANCE = 0.7  # of a capital letter, in sizes of the font
MAX_WORD_WIDTH = 0.94
MAX_LETTER_HEIGHT = 0.3
MIN_SHARE = 0.6  # of the largest size in which a word fits
MAX_LINE_SCALE = 2.5  # of the letters of a page, over the smallest ones
MIN_CONTRAST = 70  # levels of 255 between the word's brightness and the background's
OBJECTS = ((0, 1, 2, 3), (3, 4, 3, 1))


def lettered_scene(seed: int) -> Scene:
    """The drawing of a seed with a word of capital letters and up to three objects beside it."""
    rng = Random(f"word {seed}")
    background = rng.choice(tuple(BACKGROUNDS))
    light = BACKGROUNDS[background][0] + rng.randint(-JITTER, JITTER)
    ground = (light, light, light)
    length = rng.randint(1, MAX_LETTERS)
    kinds = random_kinds(rng)[: rng.choices(*OBJECTS)[0]]
    rgb = _ink(ground, rng)
    while True:
        text = "".join(rng.choices(LETTERS, k=length))
        width, height = random_size(rng)
        word = _placed_word(text, rng.choice(FONTS), rgb, width, height, rng)
        objects = None if word is None else _around(word, kinds, width, height, rng)
        if word is not None and objects is not None:
            return Scene(seed, width, height, background, ground, objects, (word,))


def page_of_words(seed: int) -> Scene:
    """The drawing of a seed with lines of words and nothing else.

    A vision tower learns letters from it much faster than from drawings with one word.
    """
    rng = Random(f"page {seed}")
    background = rng.choice(tuple(BACKGROUNDS))
    light = BACKGROUNDS[background][0] + rng.randint(-JITTER, JITTER)
    ground = (light, light, light)
    width, height = random_size(rng)
    words: list[Word] = []
    y = height * rng.uniform(0.02, 0.1)
    while True:
        font = rng.choice(FONTS)
        cap = cap_height(font)
        smallest = max(MIN_LETTER_WIDTH * width / MEAN_ADVANCE, MIN_LETTER_HEIGHT * height / cap)
        size = smallest * MAX_LINE_SCALE ** rng.random()
        y += cap * size
        if y > 0.98 * height:
            return Scene(seed, width, height, background, ground, (), tuple(words))
        words += _line(font, size, y, width, _ink(ground, rng), rng)
        y += size * rng.uniform(0.15, 0.5)


def _line(font: str, size: float, y: float, width: int, rgb: Rgb, rng: Random) -> list[Word]:
    """Words of random letters from side to side."""
    words: list[Word] = []
    x = width * rng.uniform(0.01, 0.12)
    while True:
        text = "".join(rng.choices(LETTERS, k=rng.randint(1, MAX_LETTERS)))
        edges = letter_edges(text, font)
        fitting = [count for count, edge in enumerate(edges) if x + edge * size < 0.99 * width]
        if len(fitting) < 2:  # not one letter
            return words
        words.append(Word(text[: fitting[-1]], font, size, rgb, x, y))
        x += size * (edges[fitting[-1]] + rng.uniform(0.3, 1.2))


def _ink(ground: Rgb, rng: Random) -> Rgb:
    """A colour that differs in brightness from the background."""
    named = (*COLOURS.values(), *BACKGROUNDS.values())
    return jittered(
        rng.choice([c for c in named if abs(_brightness(c) - _brightness(ground)) >= MIN_CONTRAST]),
        rng,
    )


def _brightness(rgb: Rgb) -> float:
    red, green, blue = rgb
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _placed_word(
    text: str, font: str, rgb: Rgb, width: int, height: int, rng: Random
) -> Word | None:
    """The word in a random size and place inside the drawing, or None if it does not fit."""
    advance, cap = letter_edges(text, font)[-1], cap_height(font)
    smallest = max(MIN_LETTER_WIDTH * width / MEAN_ADVANCE, MIN_LETTER_HEIGHT * height / cap)
    largest = min(MAX_WORD_WIDTH * width / advance, MAX_LETTER_HEIGHT * height / cap)
    if smallest > largest:
        return None
    smallest = max(smallest, MIN_SHARE * largest)
    size = smallest * (largest / smallest) ** rng.random()
    margin = (1 - MAX_WORD_WIDTH) / 2
    x = rng.uniform(margin * width, (1 - margin) * width - advance * size)
    y = rng.uniform(margin * height + cap * size, (1 - margin) * height)
    return Word(text, font, size, rgb, x, y)


def _around(
    word: Word, kinds: list[tuple[str, str]], width: int, height: int, rng: Random
) -> tuple[SceneObject, ...] | None:
    """Objects of these kinds beside the word, or None if they do not fit."""
    objects: list[SceneObject] = []
    gap = GAP * min(width, height)
    for shape, colour in kinds:
        drawn = random_object(shape, colour, objects, width, height, rng)
        if drawn is None or _touches(drawn, word, gap):
            return None
        objects.append(drawn)
    return tuple(objects)


def _touches(drawn: SceneObject, word: Word, gap: float) -> bool:
    """Whether the object's circle is nearer than the gap to the word's rectangle."""
    right = max(word.edges[0] - drawn.x, drawn.x - word.edges[-1], 0.0)
    down = max(word.top - drawn.y, drawn.y - word.y, 0.0)
    return bool((right**2 + down**2) ** 0.5 < drawn.radius + gap)
