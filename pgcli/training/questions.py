"""Natural questions about a scene, with the one answer that a person would give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

from pgcli.training.scenes import BACKGROUNDS, Extent, Scene
from pgcli.training.subjects import Subject, absent, article, counts, name, plural

Asked = tuple[str, str]  # question and answer

COLOUR_WORDS = ("colour", "color")
SHAPE_WORDS = ("shape", "object", "thing")
SIDES = ("left", "right", "above", "below")
OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}
SIDE_WORDS = {
    "left": ("left of", "to the left of"),
    "right": ("right of", "to the right of"),
    "above": ("above", "higher than"),
    "below": ("below", "under", "lower than"),
}
# few things are alike, so small counts would drown the others
COUNT_WEIGHTS = (3, 2, 5, 12, 30)
CLEARLY = 1.35  # how far one direction must outweigh the other for a side to be plain

HOW_MANY = (
    "how many {many} are there",
    "how many {many} are in the picture",
    "how many {many} do you see",
    "how many {many} can you see",
    "count the {many}",
    "what is the number of {many}",
)
WHICH_COLOUR = (
    "what {colour} is the {one}",
    "which {colour} is the {one}",
    "what is the {colour} of the {one}",
    "what is the {one}'s {colour}",
)
WHICH_COLOUR_ALL = (
    "what {colour} are the {many}",
    "which {colour} are the {many}",
    "what is the {colour} of the {many}",
)
WHICH_SHAPE = (
    "what shape is the {colour} one",
    "what shape is the {colour} {thing}",
    "which shape is the {colour} one",
    "what is the shape of the {colour} {thing}",
    "what is the {colour} {thing}",
    "which shape is {colour}",
)
WHICH_SHAPE_ALONE = (
    "what shape is it",
    "what shape is this",
    "what shape is in the picture",
    "which shape do you see",
    "what is the shape of the object",
)
WHERE = (
    "where is the {a} relative to the {b}",
    "where is the {a} compared to the {b}",
    "where is the {a}, seen from the {b}",
    "is the {a} left, right, above or below the {b}",
    "on which side of the {b} is the {a}",
)
ON_THAT_SIDE = (*["is the {a} {side} the {b}"] * 2, "do you see the {a} {side} the {b}")
IS_THERE = (
    "is there {some}",
    "is there {some} in the picture",
    "do you see {some}",
    "can you see {some}",
    "does the picture show {some}",
    "are there any {many}",
)
WHICH_BACKGROUND = (
    "what {colour} is the background",
    "which {colour} is the background",
    "what is the background {colour}",
    "what is the {colour} of the background",
)
IS_BACKGROUND = ("is the background {name}", "is the background {colour} {name}")


def how_many(scene: Scene, rng: Random) -> Asked | None:
    """How many there are of something, in digits."""
    groups: dict[int, list[Subject]] = {0: [absent(scene, rng)]}
    for subject, number in counts(scene).items():
        groups.setdefault(number, []).append(subject)
    numbers = sorted(groups)
    number = rng.choices(numbers, [COUNT_WEIGHTS[n] for n in numbers])[0]
    thing = rng.choice((*SHAPE_WORDS, "figure"))
    many = plural(name(rng.choice(groups[number]), thing))
    return rng.choice(HOW_MANY).format(many=many), str(number)


def which_colour(scene: Scene, rng: Random) -> Asked | None:
    """The colour of the only thing of its shape, or of several that all have the same."""
    of_shape: dict[str, list[str]] = {}
    for thing in scene.things:
        of_shape.setdefault(thing.shape, []).append(thing.colour)
    plain = [shape for shape, colours in of_shape.items() if len(set(colours)) == 1]
    if not plain:
        return None
    shape = rng.choice(plain)
    spelled, alone = rng.choice(COLOUR_WORDS), len(scene.things) == 1
    called = rng.choice((shape, *SHAPE_WORDS)) if alone else shape
    asked = rng.choice(WHICH_COLOUR if len(of_shape[shape]) == 1 else WHICH_COLOUR_ALL)
    return asked.format(colour=spelled, one=called, many=plural(shape)), of_shape[shape][0]


def which_shape(scene: Scene, rng: Random) -> Asked | None:
    """The shape of the only thing of its colour."""
    found = counts(scene)
    plain = [thing for thing in scene.things if found[None, thing.colour] == 1]
    if not plain:
        return None
    thing = rng.choice(plain)
    alone = len(scene.things) == 1 and rng.random() < 0.5
    asked = rng.choice(WHICH_SHAPE_ALONE if alone else WHICH_SHAPE)
    return asked.format(colour=thing.colour, thing=rng.choice(SHAPE_WORDS)), thing.shape


def where(scene: Scene, rng: Random) -> Asked | None:
    """The side of one thing on which another is."""
    pair = _pair(scene, rng)
    if pair is None:
        return None
    a, b, side = pair
    return rng.choice(WHERE).format(a=a, b=b), side


def on_that_side(scene: Scene, rng: Random) -> Asked | None:
    """Whether a thing is on that side of another: half of them yes; a no is the opposite side."""
    pair = _pair(scene, rng)
    if pair is None:
        return None
    a, b, true = pair
    answer = rng.choice(("yes", "no"))
    words = rng.choice(SIDE_WORDS[true if answer == "yes" else OPPOSITE[true]])
    return rng.choice(ON_THAT_SIDE).format(a=a, b=b, side=words), answer


def is_there(scene: Scene, rng: Random) -> Asked | None:
    """Whether something is there: half of them yes."""
    answer = rng.choice(("yes", "no"))
    present = [subject for subject in counts(scene) if subject != (None, None)]
    subject = rng.choice(present) if answer == "yes" else absent(scene, rng)
    called = name(subject, rng.choice(SHAPE_WORDS))
    some = article(called)
    if subject[0] is None and rng.random() < 0.5:
        some = f"anything {subject[1]}"
    return rng.choice(IS_THERE).format(some=some, many=plural(called)), answer


def which_background(scene: Scene, rng: Random) -> Asked | None:
    """The colour of the background, or whether it is that colour."""
    spelled = rng.choice(COLOUR_WORDS)
    if rng.random() < 0.6:
        return rng.choice(WHICH_BACKGROUND).format(colour=spelled), scene.background
    answer = rng.choice(("yes", "no"))
    others = [ground for ground in BACKGROUNDS if ground != scene.background]
    named = scene.background if answer == "yes" else rng.choice(others)
    if named == "grey":
        named = rng.choice(("grey", "gray"))
    return rng.choice(IS_BACKGROUND).format(name=named, colour=spelled), answer


#: Every kind of question; each is None where the scene has no plain answer.
QUESTIONS: dict[str, Callable[[Scene, Random], Asked | None]] = {
    "count": how_many,
    "colour": which_colour,
    "shape": which_shape,
    "where": where,
    "side": on_that_side,
    "exists": is_there,
    "background": which_background,
}


def spoken(question: str, rng: Random) -> str:
    """The question as people type it: with or without capital, mark and prefix `answer en`."""
    if rng.random() < 0.5:
        question = question[0].upper() + question[1:]
    if rng.random() < 0.75:
        question += "." if question.lower().startswith("count") else "?"
    return f"answer en {question}" if rng.random() < 0.25 else question


def _pair(scene: Scene, rng: Random) -> tuple[str, str, str] | None:
    """What two things are called, each unmistakable, and the side of the second the first is on."""
    called = _unmistakable(scene, rng)
    pairs = [
        (a, b, plain)
        for a in called
        for b in called
        if a != b and (plain := _side(scene, scene.boxes[a], scene.boxes[b])) is not None
    ]
    if not pairs:
        return None
    a, b, plain = rng.choice(pairs)
    return called[a], called[b], plain


def _unmistakable(scene: Scene, rng: Random) -> dict[int, str]:
    """By place in `things`: a name that fits no other thing, short or whole."""
    found = counts(scene)
    called = {}
    for place, thing in enumerate(scene.things):
        phrases: Sequence[Subject] = [(thing.shape, thing.colour)] * 2
        phrases = [*phrases, (thing.shape, None), (None, thing.colour)]
        fitting = [subject for subject in phrases if found[subject] == 1]
        if fitting:
            called[place] = name(rng.choice(fitting), rng.choice(("shape", "one")))
    return called


def _side(scene: Scene, a: Extent, b: Extent) -> str | None:
    """The side of `b` on which `a` plainly is: in the drawing's own shape and squeezed to a square.

    The model sees the squeezed one, a person the other; where they would differ there is no answer.
    """
    right = (a.xmin + a.xmax - b.xmin - b.xmax) / 2
    down = (a.ymin + a.ymax - b.ymin - b.ymax) / 2
    shape = scene.width / scene.height
    if abs(right) > CLEARLY * max(1.0, 1 / shape) * abs(down):
        return "right" if right > 0 else "left"
    if abs(down) > CLEARLY * max(1.0, shape) * abs(right):
        return "below" if down > 0 else "above"
    return None
