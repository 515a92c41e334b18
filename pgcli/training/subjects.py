"""The phrases that speak of things in a scene, and how many things each speaks of."""

from __future__ import annotations

from random import Random

from pgcli.training.scenes import COLOURS, SHAPES, Scene, Thing

#: What a phrase speaks of: a shape, a colour, or both; (None, None) is everything.
Subject = tuple[str | None, str | None]


def article(words: str) -> str:
    """The words with `a` or `an` before them."""
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def plural(words: str) -> str:
    """The words for several of what they name."""
    return words + ("es" if words.endswith("s") else "s")


def name(subject: Subject, thing: str = "shape") -> str:
    """What a person calls one such thing: `red circle`, `circle`, `red shape`, `shape`."""
    shape, colour = subject
    return f"{colour} {shape or thing}" if colour else shape or thing


def counts(scene: Scene) -> dict[Subject, int]:
    """How many things each phrase speaks of, for every phrase that speaks of one at least."""
    found: dict[Subject, int] = {}
    for thing in scene.things:
        for shape in (thing.shape, None):
            for colour in (thing.colour, None):
                found[shape, colour] = found.get((shape, colour), 0) + 1
    return found


def absent(scene: Scene, rng: Random) -> Subject:
    """A phrase that speaks of nothing here, mostly nearly right: this shape in another's colour."""
    found = counts(scene)
    shapes, colours = {t.shape for t in scene.things}, {t.colour for t in scene.things}
    near: list[Subject] = [
        (shape, colour)
        for shape in SHAPES
        for colour in COLOURS
        if (shape in shapes or colour in colours) and (shape, colour) not in found
    ]
    mixed = [s for s in near if s[0] in shapes and s[1] in colours]
    far: list[Subject] = [(shape, None) for shape in SHAPES if shape not in shapes]
    far += [(None, colour) for colour in COLOURS if colour not in colours]
    pools: list[list[Subject]] = [mixed or near, near, far]
    return rng.choice(rng.choices(pools, (45, 20, 35))[0])


def fits(subject: Subject, thing: Thing) -> bool:
    """Whether the phrase speaks of that thing."""
    shape, colour = subject
    return shape in (None, thing.shape) and colour in (None, thing.colour)
