"""Drawings with words: equal for equal seeds, legible at the model's resolution, read as drawn."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy
import pytest

from examples.demo_model.lettered import lettered_scene, page_of_words
from examples.demo_model.render import render, scaled_size
from examples.demo_model.scenes import TRAINING_SEEDS, Scene
from examples.demo_model.training_examples import ocr_example
from examples.demo_model.words import FONTS, LETTERS, MAX_LETTERS

RESOLUTION = 112


@pytest.fixture(scope="module")
def many() -> list[Scene]:
    return [lettered_scene(seed) for seed in TRAINING_SEEDS[:200]]


def test_a_seed_always_gives_the_same_word_and_place() -> None:
    for made in (lettered_scene, page_of_words):
        assert made(7) == made(7)
        assert made(7).words != made(8).words


def test_words_have_every_length_letter_and_font(many: list[Scene]) -> None:
    words = [word for scene in many for word in scene.words]
    assert {len(scene.words) for scene in many} == {1}
    lengths = Counter(len(word.text) for word in words)
    assert set(lengths) == set(range(1, MAX_LETTERS + 1))
    assert min(lengths.values()) > 5
    assert {letter for word in words for letter in word.text} == set(LETTERS)
    assert {word.font for word in words} == set(FONTS)
    assert all(ocr_example(scene).suffix == scene.words[0].text for scene in many)


def test_letters_are_at_least_eight_pixels_high_and_inside(many: list[Scene]) -> None:
    for scene in [*many, *map(page_of_words, TRAINING_SEEDS[:30])]:
        for word in scene.words:
            assert (word.y - word.top) / scene.height * RESOLUTION > 7.99
            assert 0 < word.edges[0] < word.edges[-1] < scene.width
            assert 0 < word.top < word.y < scene.height


def test_no_object_touches_the_word(many: list[Scene]) -> None:
    assert Counter(len(scene.objects) for scene in many).keys() == {0, 1, 2, 3}
    for scene in many:
        (word,) = scene.words
        for drawn in scene.objects:
            right = max(word.edges[0] - drawn.x, drawn.x - word.edges[-1], 0.0)
            down = max(word.top - drawn.y, drawn.y - word.y, 0.0)
            assert math.hypot(right, down) > drawn.radius


def test_the_word_is_drawn_where_it_is_said_to_be(many: list[Scene]) -> None:
    """Its rectangle has pixels of its colour in every letter."""
    for scene in many[:20]:
        (word,) = scene.words
        pixels = numpy.asarray(render(scene, *scaled_size(scene, 400)), int)
        scale = pixels.shape[1] / scene.width
        is_ink = (abs(pixels - numpy.array(word.rgb)) < 60).all(-1)
        rows = is_ink[round(word.top * scale) : round(word.y * scale)]
        for left, right in pairwise(word.edges):
            assert rows[:, round(left * scale) : round(right * scale) + 1].any(), word
