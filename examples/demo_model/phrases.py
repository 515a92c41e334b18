"""Phrases such as `red circle` or `shape`, and the objects of a scene that each describes."""

from __future__ import annotations

from random import Random

from examples.demo_model.scenes import COLOURS, SHAPES, Scene, SceneObject

#: A shape, a colour, or both; (None, None) describes every object.
Phrase = tuple[str | None, str | None]


def article(words: str) -> str:
    """The words with `a` or `an` before them."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def plural(words: str) -> str:
    """The plural of the words."""
    return words + ("es" if words.endswith("s") else "s")


def phrase_text(phrase: Phrase, noun: str = "shape") -> str:
    """The phrase in words: `red circle`, `circle`, `red shape`, `shape`."""
    shape, colour = phrase
    return f"{colour} {shape or noun}" if colour else shape or noun


def phrase_counts(scene: Scene) -> dict[Phrase, int]:
    """The number of objects that each phrase describes, for phrases that describe at least one."""
    found: dict[Phrase, int] = {}
    for drawn in scene.objects:
        for shape in (drawn.shape, None):
            for colour in (drawn.colour, None):
                found[shape, colour] = found.get((shape, colour), 0) + 1
    return found


def absent_phrase(scene: Scene, rng: Random) -> Phrase:
    """A phrase that describes no object of the scene.

    Most are hard negatives: a shape of the scene in the colour of another object.
    """
    found = phrase_counts(scene)
    shapes, colours = {t.shape for t in scene.objects}, {t.colour for t in scene.objects}
    near: list[Phrase] = [
        (shape, colour)
        for shape in SHAPES
        for colour in COLOURS
        if (shape in shapes or colour in colours) and (shape, colour) not in found
    ]
    mixed = [s for s in near if s[0] in shapes and s[1] in colours]
    far: list[Phrase] = [(shape, None) for shape in SHAPES if shape not in shapes]
    far += [(None, colour) for colour in COLOURS if colour not in colours]
    pools: list[list[Phrase]] = [mixed or near, near, far]
    return rng.choice(rng.choices(pools, (45, 20, 35))[0])


def matches(phrase: Phrase, drawn: SceneObject) -> bool:
    """Whether the phrase describes the object."""
    shape, colour = phrase
    return shape in (None, drawn.shape) and colour in (None, drawn.colour)
