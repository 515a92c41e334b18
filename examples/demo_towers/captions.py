"""Texts about a scene in varied wording, each with its meaning, and all that is true of a scene."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from random import Random
from typing import NamedTuple

from examples.demo_model.questions import Phrase, article, phrase_counts, plural
from examples.demo_model.scenes import COLOURS, SHAPES, Scene
from pgcli.embedding.texts import canonical_text

#: What a text says, in a form that does not depend on its wording.
Meaning = tuple[object, ...]

NUMBERS = ("no", "one", "two", "three", "four")
FRAMES = (
    *("{}",) * 6,
    *("a photo of {}", "a picture of {}", "a drawing of {}", "an image of {}"),
    *("this is {}", "there is {}", "here we see {}", "it shows {}", "this is a photo of {}"),
)
COLOUR_FRAMES = ("{} shape", "{} thing", "{} object", "{} one", "{}")
BACKGROUND_FRAMES = (
    *("on a {} background", "on {}", "in front of a {} background", "with a {} background"),
    *("against {}", "before a {} background"),
)


class Caption(NamedTuple):
    """A text and what it says."""

    text: str
    meaning: Meaning


def draw_captions(scene: Scene, rng: Random, count: int) -> list[Caption]:
    """Random captions of the scene: the first names all objects, most often with the background.

    The others name all objects, one kind of them, a shape, a colour, a number or the background.
    """
    captions = [full_caption(scene, rng, with_background=rng.random() < 0.8)]
    while len(captions) < count:
        kind = rng.choices(("full", "phrase", "count", "background"), (25, 50, 15, 10))[0]
        if kind == "full":
            captions.append(full_caption(scene, rng, with_background=rng.random() < 0.5))
        elif kind == "background":
            words = framed(rng.choice(BACKGROUND_FRAMES).format(grey(scene.background, rng)), rng)
            captions.append(Caption(words, ("background", scene.background)))
        else:
            phrase = rng.choice(sorted(phrase_counts(scene), key=str))
            number = phrase_counts(scene)[phrase] if kind == "count" else 1
            captions.append(phrase_caption(phrase, number, rng, is_exact=kind == "count"))
    return captions


def full_caption(scene: Scene, rng: Random, *, with_background: bool) -> Caption:
    """All objects of the scene, equal ones counted together, in any order."""
    kinds = object_kinds(scene)
    groups = [counted((shape, colour), number, rng) for (shape, colour), number in kinds.items()]
    rng.shuffle(groups)
    listed = rng.choice((", ", " and ")).join(groups[:-1]) if len(groups) > 1 else ""
    words = f"{listed} and {groups[-1]}" if listed else groups[-1]
    if with_background:
        words += " " + rng.choice(BACKGROUND_FRAMES).format(grey(scene.background, rng))
    return Caption(framed(words, rng), full_meaning(scene, with_background=with_background))


def phrase_caption(phrase: Phrase, number: int, rng: Random, *, is_exact: bool) -> Caption:
    """A text about the objects that a phrase describes: that there are some, or how many."""
    meaning: Meaning = ("count", *phrase, number) if is_exact and number > 1 else ("has", *phrase)
    return Caption(framed(counted(phrase, number, rng), rng), meaning)


def object_kinds(scene: Scene) -> Counter[tuple[str, str]]:
    """How many objects there are of each shape and colour."""
    return Counter((drawn.shape, drawn.colour) for drawn in scene.objects)


def full_meaning(scene: Scene, *, with_background: bool) -> Meaning:
    """The meaning of a caption that names all objects.

    "A red star" may be all that there is or one of several; it has one meaning, the weaker one.
    """
    kinds = sorted(object_kinds(scene).items())
    if with_background:
        return ("all", *kinds, scene.background)
    if len(kinds) > 1:
        return ("all", *kinds)
    (shape, colour), number = kinds[0]
    return ("count", shape, colour, number) if number > 1 else ("has", shape, colour)


def true_meanings(scene: Scene) -> Iterator[Meaning]:
    """Every meaning that is true of the scene."""
    yield full_meaning(scene, with_background=True)
    yield full_meaning(scene, with_background=False)
    yield ("background", scene.background)
    for phrase, number in phrase_counts(scene).items():
        yield ("has", *phrase)
        if number > 1:
            yield ("count", *phrase, number)


def tokenizer_corpus(seeds: range, captions: int = 8) -> Iterator[str]:
    """Captions of the drawings of the seeds, and every kind of object by itself."""
    for seed in seeds:
        for caption in draw_captions(Scene.from_seed(seed), Random(f"words {seed}"), captions):
            yield caption.text
    for colour, shape in product(COLOURS, SHAPES):
        yield f"a {colour} {shape}"


def counted(phrase: Phrase, number: int, rng: Random) -> str:
    """The phrase with its number in words or digits: `a red star`, `2 stars`, `something blue`."""
    shape, colour = phrase
    if shape is None and colour is not None and number == 1 and rng.random() < 0.2:
        return f"something {colour}"
    frame = rng.choice(COLOUR_FRAMES if number == 1 else COLOUR_FRAMES[:3])
    if shape is None:
        words = frame.format(colour) if colour else rng.choice(("shape", "thing", "object"))
    else:
        words = f"{colour} {shape}" if colour else shape
    if number > 1:
        figure = str(number) if rng.random() < 0.15 else NUMBERS[number]
        return f"{figure} {plural(words)}"
    return rng.choices((article(words), f"one {words}", words), (80, 8, 12))[0]


def framed(words: str, rng: Random) -> str:
    """The words within a phrase such as `a photo of`; half the texts as SigLIP's are prepared."""
    text = rng.choice(FRAMES).format(words) + ("." if rng.random() < 0.3 else "")
    return canonical_text(text) if rng.random() < 0.5 else text


def grey(background: str, rng: Random) -> str:
    """The background's name; `gray` now and then for `grey`."""
    return "gray" if background == "grey" and rng.random() < 0.3 else background
